"""How much memory this process may use: what the machine has available, and the limits of its cgroups."""

from __future__ import annotations

import os
from pathlib import Path

from octavo.cgroups import control_groups, read_text

_FILES = (  # the limit, what is used, and the key of memory.stat, in version 2 and version 1
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
_UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a number near 2^63


def usable_memory(root: Path = Path("/")) -> int:
    """Bytes: the smaller of what the machine has available and what the tightest cgroup has left. `root` is where /proc and
    /sys are."""
    limits = [available_memory(root), cgroup_memory_left(root)]
    return max(0, min(limit for limit in limits if limit is not None))


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that the machine can give without swapping (Linux's MemAvailable); elsewhere all of its memory."""
    text = read_text(root / "proc/meminfo")
    if text is None:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    lines = (line.partition(":") for line in text.splitlines())
    sizes = {name: int(rest.split()[0]) * 1024 for name, _, rest in lines}
    return sizes.get("MemAvailable", sizes["MemTotal"])


def cgroup_memory_left(root: Path = Path("/")) -> int | None:
    """Bytes: of the groups with a limit, from this process's (version 1 or 2) to the root, what the one that has least left
    would give; None without a limit. File pages that nobody used lately (inactive_file) count as free, since the system
    takes them back."""
    groups = list(control_groups("memory", root))
    left = [_left(group, limit, usage, cache) for group in groups for limit, usage, cache in _FILES]
    return min((size for size in left if size is not None), default=None)


def _left(group: Path, limit_file: str, usage_file: str, cache_key: str) -> int | None:
    text = read_text(group / limit_file)
    if text in (None, "max") or int(text) >= _UNLIMITED:
        return None
    fields = (line.split() for line in (read_text(group / "memory.stat") or "").splitlines())
    cache = {name: int(value) for name, value in fields}.get(cache_key, 0)
    return int(text) - max(0, int(read_text(group / usage_file) or 0) - cache)
