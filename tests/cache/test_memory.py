"""Memory limits read from fake /proc and /sys trees: cgroups of both versions, nested, unlimited, inside containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cache.memory import available_memory, cgroup_memory_left, usable_memory

MIB = 1 << 20
MEMINFO = "MemTotal:       16384000 kB\nMemFree:         1024000 kB\nMemAvailable:    8192000 kB\nBuffers: 1 kB\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", MEMINFO)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_without_a_cgroup_all_available_memory_may_be_used(root: Path) -> None:
    assert available_memory(root) == usable_memory(root) == 8192000 * 1024
    assert cgroup_memory_left(root) is None


def test_old_kernels_know_only_the_total(root: Path) -> None:
    write(root, "proc/meminfo", "MemTotal:       16384000 kB\nMemFree:         1024000 kB\n")
    assert available_memory(root) == 16384000 * 1024


def test_version_2_takes_the_tightest_limit_up_to_the_root(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/machine.slice/job\n")
    write(root, "sys/fs/cgroup/machine.slice/job/memory.max", "max\n")
    assert cgroup_memory_left(root) is None
    write(root, "sys/fs/cgroup/machine.slice/memory.max", f"{512 * MIB}\n")
    assert cgroup_memory_left(root) == usable_memory(root) == 512 * MIB
    write(root, "sys/fs/cgroup/machine.slice/job/memory.max", f"{256 * MIB}\n")
    assert cgroup_memory_left(root) == 256 * MIB


@pytest.mark.parametrize(
    ("limit", "usage", "key"),
    [
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ],
)
def test_what_others_use_is_gone_but_not_the_files_that_lie_in_memory(root: Path, limit: str, usage: str, key: str) -> None:
    write(root, "proc/self/cgroup", "5:memory:/\n" if "/" in limit else "0::/\n")
    write(root, f"sys/fs/cgroup/{limit}", f"{512 * MIB}\n")
    write(root, f"sys/fs/cgroup/{usage}", f"{200 * MIB}\n")
    assert usable_memory(root) == 312 * MIB
    write(root, f"sys/fs/cgroup/{Path(limit).parent}/memory.stat", f"anon 5\n{key} {150 * MIB}\nactive_file {9 * MIB}\n")
    assert usable_memory(root) == 462 * MIB
    write(root, f"sys/fs/cgroup/{usage}", f"{900 * MIB}\n")  # the limit was lowered
    assert usable_memory(root) == 0


def test_the_group_with_least_left_decides(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/slice/job\n")
    write(root, "sys/fs/cgroup/slice/job/memory.max", f"{300 * MIB}\n")
    write(root, "sys/fs/cgroup/slice/memory.max", f"{500 * MIB}\n")
    write(root, "sys/fs/cgroup/slice/memory.current", f"{250 * MIB}\n")  # by other groups of the slice
    assert usable_memory(root) == 250 * MIB


def test_version_2_in_a_container(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/memory.max", f"{300 * MIB}\n")
    assert cgroup_memory_left(root) == 300 * MIB


def test_version_1_with_a_path_of_the_host(root: Path) -> None:
    write(root, "proc/self/cgroup", "9:cpu,cpuacct:/docker/abc\n5:memory:/docker/abc\n1:name=systemd:/docker/abc\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", f"{700 * MIB}\n")
    assert cgroup_memory_left(root) == 700 * MIB
    write(root, "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", f"{600 * MIB}\n")
    assert cgroup_memory_left(root) == 600 * MIB


def test_version_1_says_no_limit_with_a_huge_number(root: Path) -> None:
    write(root, "proc/self/cgroup", "5:memory:/\n")
    write(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert cgroup_memory_left(root) is None


def test_a_limit_above_what_is_available_changes_nothing(root: Path) -> None:
    write(root, "proc/self/cgroup", "0::/\n")
    write(root, "sys/fs/cgroup/memory.max", f"{64 << 30}\n")
    assert usable_memory(root) == 8192000 * 1024


def test_systems_without_proc_have_their_whole_memory(tmp_path: Path) -> None:
    assert available_memory(tmp_path) > 64 * MIB
    assert cgroup_memory_left(tmp_path) is None
