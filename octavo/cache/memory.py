"""How much memory this process may use: what the machine has available, and the limits of its cgroups."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a number near 2^63


def usable_memory(root: Path = Path("/")) -> int:
    """Bytes: the smaller of available memory and the tightest cgroup limit. `root` is where /proc and /sys are."""
    limits = [available_memory(root), cgroup_memory_limit(root)]
    return min(limit for limit in limits if limit is not None)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that the machine can give without swapping (Linux's MemAvailable); elsewhere all of its memory."""
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    return sizes.get("MemAvailable", sizes["MemTotal"])


def cgroup_memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes: the tightest limit on the way from this process's cgroup (version 1 or 2) to the root; None without one."""
    limits = [limit for file in _limit_files(root) if (limit := _read_limit(file)) is not None]
    return min(limits, default=None)


def _limit_files(root: Path) -> Iterator[Path]:
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            mounted, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mounted, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's and not exist here; the mount's own top is then the container's group.
        inside = PurePosixPath(path.lstrip("/"))
        yield from (mounted / group / name for group in (inside, *inside.parents))


def _read_limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    limit = _UNLIMITED if text == "max" else int(text)
    return limit if limit < _UNLIMITED else None
