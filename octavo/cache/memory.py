"""How much memory this process may use: what the machine has available, and the limits of its cgroups."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.cgroups import control_groups, read_text

_LIMIT_FILES = ("memory.max", "memory.limit_in_bytes")  # of version 2 and version 1
_UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a number near 2^63


def usable_memory(root: Path = Path("/")) -> int:
    """Bytes: the smaller of available memory and the tightest cgroup limit. `root` is where /proc and /sys are."""
    limits = [available_memory(root), cgroup_memory_limit(root)]
    return min(limit for limit in limits if limit is not None)


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that the machine can give without swapping (Linux's MemAvailable); elsewhere all of its memory."""
    text = read_text(root / "proc/meminfo")
    if text is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lines = (line.partition(":") for line in text.splitlines())
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in lines}
    return sizes.get("MemAvailable", sizes["MemTotal"])


def cgroup_memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes: the tightest limit on the way from this process's cgroup (version 1 or 2) to the root; None without one."""
    texts = [read_text(group / name) for group in control_groups("memory", root) for name in _LIMIT_FILES]
    limits = [int(text) for text in texts if text not in (None, "max")]
    return min((limit for limit in limits if limit < _UNLIMITED), default=None)
