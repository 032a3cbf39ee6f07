"""The control groups that limit this process, under version 1, version 2 or both (Linux, admin-guide/cgroup-v1 and -v2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def control_groups(controller: str, root: Path) -> Iterator[Path]:
    """Folders of this process's group and of all above it, for the controller "cpu" or "memory"; not all of them exist.
    `root` is where /proc and /sys are.

    In a container the path may be the host's and not be there; the mount's own top is then the container's group.
    """
    mount = root / "sys/fs/cgroup"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2, alone or beside version 1
            bases = [mount, mount / "unified"]
        elif controller in controllers.split(","):
            bases = [mount / controllers, mount / controller]
        else:
            continue
        inside = PurePosixPath(path.lstrip("/"))
        yield from (base / group for base in bases for group in (inside, *inside.parents))


def read_text(file: Path) -> str | None:
    """The content of a file of /proc or /sys, stripped; None if it cannot be read."""
    try:
        return file.read_text().strip()
    except OSError:
        return None
