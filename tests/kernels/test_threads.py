"""How many threads run: fake /proc and /sys trees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.cpu.threads import default_threads, one_of_each_core

ROOT = Path(__file__).resolve().parent.parent.parent


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def topology(pairs: list[str]) -> dict[str, str]:
    """`pairs[i]`: the hyperthreads that share processor i's core."""
    return {f"sys/devices/system/cpu/cpu{i}/topology/thread_siblings_list": text for i, text in enumerate(pairs)}


def cgroup_v2(path: str, limits: dict[str, str]) -> dict[str, str]:
    return {"proc/self/cgroup": f"0::{path}"} | {f"sys/fs/cgroup{folder}/cpu.max": text for folder, text in limits.items()}


EIGHT = set(range(8))


def test_without_any_limit_every_processor_counts(tmp_path):
    assert default_threads(write(tmp_path, {}), EIGHT) == 8


def test_affinity(tmp_path):
    assert default_threads(write(tmp_path, {}), {0, 1, 2, 3}) == 4


@pytest.mark.parametrize(
    ("limit", "threads"),
    [("200000 100000", 2), ("765000 100000", 7), ("50000 100000", 1), ("max 100000", 8), ("9900000 100000", 8)],
)
def test_cgroup_v2_quota(tmp_path, limit, threads):
    assert default_threads(write(tmp_path, cgroup_v2("/", {"": limit})), EIGHT) == threads


def test_the_tightest_ancestor_counts(tmp_path):
    limits = {"/a/b": "max 100000", "/a": "300000 100000", "": "max 100000"}
    assert default_threads(write(tmp_path, cgroup_v2("/a/b", limits)), EIGHT) == 3


def test_a_container_whose_own_path_is_not_mounted(tmp_path):
    assert default_threads(write(tmp_path, cgroup_v2("/../docker/0123", {"": "200000 100000"})), EIGHT) == 2


@pytest.mark.parametrize("controllers", ["cpu,cpuacct", "cpu"])
@pytest.mark.parametrize(("quota", "threads"), [("200000", 2), ("-1", 8), ("10000", 1)])
def test_cgroup_v1(tmp_path, controllers, quota, threads):
    folder = f"sys/fs/cgroup/{controllers}/docker/0123"
    files = {
        "proc/self/cgroup": f"5:memory:/docker/0123\n4:{controllers}:/docker/0123\n1:name=systemd:/docker/0123\n0::/",
        f"{folder}/cpu.cfs_quota_us": quota,
        f"{folder}/cpu.cfs_period_us": "100000",
    }
    assert default_threads(write(tmp_path, files), EIGHT) == threads


def test_hyperthreads_of_a_core_count_once(tmp_path):
    root = write(tmp_path, topology(["0,4", "1,5", "2,6", "3,7"] * 2))
    assert default_threads(root, EIGHT) == 4
    assert default_threads(root, {0, 1, 4}) == 2
    assert one_of_each_core(root, {5, 1, 7, 6, 4}) == [1, 4, 6, 7]


def test_all_limits_together(tmp_path):
    root = write(tmp_path, topology(["0-1", "0-1", "2-3", "2-3"]) | cgroup_v2("/", {"": "150000 100000"}))
    assert default_threads(root, {0, 1, 2, 3}) == 1


def test_an_openmp_variable_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert default_threads(write(tmp_path, {}), EIGHT) == 8


PINNED = """
import os, numpy as np
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.cpu.threads import one_of_each_core
pin, threads = __PIN__, len(one_of_each_core())
before = set(os.listdir("/proc/self/task"))
ops = CpuOps(threads, pin=pin)
ops.linear(np.ones((64, 512), np.float32), ops.linear_weight([np.ones((512, 512), np.float32)]))
workers = sorted(set(os.listdir("/proc/self/task")) - before, key=int)
masks = [sorted(os.sched_getaffinity(int(worker))) for worker in workers]
expected = [[cpu] for cpu in one_of_each_core()[1:]] if pin else [sorted(os.sched_getaffinity(0))] * (threads - 1)
assert masks == expected, (masks, expected)
assert ("pinned" in ops.description) == pin
"""


@pytest.mark.parametrize("pin", [True, False])
def test_workers_are_pinned_when_that_is_asked_for(pin):
    subprocess.run([sys.executable, "-c", PINNED.replace("__PIN__", str(pin))], check=True, cwd=ROOT)


def test_pinning_what_cannot_be_pinned_is_refused():
    with pytest.raises(ConfigError, match=r"--cpu-pin-threads: 900 threads need as many cores, .* --cpu-threads \d+ works"):
        CpuOps(900, pin=True)
    with pytest.raises(ConfigError, match=r"--cpu-pin-threads .* no meaning with --backend numpy"):
        EngineConfig(backend="numpy", cpu_pin_threads=True)
