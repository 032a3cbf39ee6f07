"""How many threads the kernels may use: min(affinity, cgroup quota, physical cores), at least 1.

Containers limit processor time by a quota that neither os.cpu_count() nor the affinity mask shows; a thread more than the
quota is throttled together with all others. A second hyperthread of a core adds nothing to code that is bound by memory
or by the vector units."""

from __future__ import annotations

import math
import os
from pathlib import Path

from octavo.cgroups import control_groups, read_text


def default_threads(root: Path = Path("/"), affinity: set[int] | None = None) -> int:
    """Threads of the native kernels. `root` is where /proc and /sys are looked for, `affinity` the processors that this
    process may run on (by default what the operating system says)."""
    cpus = _affinity() if affinity is None else affinity
    quota = cgroup_quota(root)
    limit = len(cpus) if quota is None else min(len(cpus), math.floor(quota))
    return max(1, min(limit, len(one_of_each_core(root, cpus))))


def _affinity() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def one_of_each_core(root: Path = Path("/"), affinity: set[int] | None = None) -> list[int]:
    """The first processor of each core that this process may run on, in ascending order; by the kernel's topology files,
    processors without one counting as cores."""
    cores: dict[str, int] = {}
    for cpu in sorted(_affinity() if affinity is None else affinity):
        siblings = read_text(root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        cores.setdefault(siblings or f"cpu{cpu}", cpu)
    return list(cores.values())


def cgroup_quota(root: Path) -> float | None:
    """The tightest processor quota of this process's control group and its ancestors, in processors; None: no quota."""
    quotas = [quota(group) for group in control_groups("cpu", root) for quota in (_quota_v2, _quota_v1)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota_v2(group: Path) -> float | None:
    fields = (read_text(group / "cpu.max") or "max").split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    return int(fields[0]) / int(fields[1])


def _quota_v1(group: Path) -> float | None:
    quota = int(read_text(group / "cpu.cfs_quota_us") or -1)
    period = int(read_text(group / "cpu.cfs_period_us") or 0)
    return quota / period if quota > 0 and period > 0 else None
