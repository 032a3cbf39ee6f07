"""Which backend runs, what it says about itself, and the life of a backend."""

from __future__ import annotations

import os
import sys
import threading

import numpy as np
import pytest

from octavo.config import EngineConfig
from octavo.errors import ConfigError, StartupError
from octavo.kernels import select
from octavo.kernels.cpu.library import EMULATED_ISAS, ISAS, LibraryUnavailable, load_library, supported_isas
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.select import select_ops
from tests.kernels.native import native


def test_native_by_default():
    ops = select_ops(EngineConfig(cpu_threads=2))
    assert ops.name == "cpu"
    assert ops.description == f"{supported_isas()[0]}, 2 threads"
    ops.close()


def test_a_forced_instruction_set():
    assert select_ops(EngineConfig(cpu_isa="generic", cpu_threads=1)).description == "generic, 1 thread"


def test_an_instruction_set_that_is_not_there(monkeypatch):
    monkeypatch.setattr("octavo.kernels.cpu.ops.supported_isas", lambda: ("avx2", "generic"))
    with pytest.raises(ConfigError, match="--cpu-isa avx512 is not available here; choose auto or one of: avx2, generic"):
        select_ops(EngineConfig(cpu_isa="avx512"))
    assert set(supported_isas()) <= set(ISAS)


def test_a_trial_runs_in_a_process_that_may_die():
    """What the processor does not have dies there of an illegal instruction, and not here."""
    library = load_library()
    passed = {isa for isa in (*ISAS, *EMULATED_ISAS) if library.octavo_isa_trial(isa.encode())}
    assert passed == {*supported_isas(), *EMULATED_ISAS}
    assert not library.octavo_isa_trial(b"sse2")


def test_numpy_on_request():
    ops = select_ops(EngineConfig(backend="numpy"))
    assert ops.name == "numpy"
    assert "--backend numpy" in ops.description


def test_without_the_library(monkeypatch):
    def missing(config):
        raise LibraryUnavailable("the native kernels were not built")

    monkeypatch.setattr(select, "_native", missing)
    ops = select_ops(EngineConfig())
    assert ops.name == "numpy"
    assert "not built" in ops.description
    assert "install a C++ compiler" in ops.description
    with pytest.raises(StartupError, match="--backend cpu: the native kernels were not built; install a C"):
        select_ops(EngineConfig(backend="cpu"))
    with pytest.raises(StartupError, match=r"--cpu-isa avx2: the native kernels were not built; .*, or leave it out"):
        select_ops(EngineConfig(cpu_isa="avx2"))


def test_calls_after_close_are_errors():
    ops = CpuOps(2)
    weight = ops.linear_weight([np.ones((4, 4), np.float32)])
    ops.close()
    ops.close()
    with pytest.raises(ValueError, match="closed"):
        ops.linear(np.ones((1, 4), np.float32), weight)
    with pytest.raises(ValueError, match="closed"):
        ops.linear_weight([np.ones((4, 4), np.float32)])


def test_wrong_thread_counts():
    with pytest.raises(ConfigError, match="--cpu-threads must be at least 1"):
        CpuOps(0)
    with pytest.raises(ValueError, match="threads must be"):
        CpuOps(100_000)


def test_callers_in_several_threads_take_turns():
    ops = native("auto", 2)
    random = np.random.default_rng(0)
    weight = ops.linear_weight([random.standard_normal((300, 200), np.float32)])
    x = random.standard_normal((300, 200), np.float32)
    want = ops.linear(x, weight)
    results: list[bool] = []

    def work() -> None:
        results.extend(np.array_equal(ops.linear(x, weight), want) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 60


def test_the_threads_end_with_the_last_backend_and_survive_a_fork():
    """In a process of its own, where no other test holds the pool."""
    program = """
import os, numpy as np
from octavo.kernels.cpu.ops import CpuOps
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
a, b = CpuOps(3), CpuOps(2)
weight = a.linear_weight([np.ones((300, 200), np.float32)])
x = np.ones((300, 200), np.float32)
assert (a.linear(x, weight) == 200).all()
assert count() == before + 2
pid = os.fork()
if pid == 0:
    os._exit(0 if (a.linear(x, weight) == 200).all() and count() == 3 else 1)
assert os.waitpid(pid, 0)[1] == 0
a.close()
assert count() == before + 2
b.close()
assert count() == before
c = CpuOps(2)
assert (c.linear(x, weight) == 200).all()
"""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    assert os.spawnve(os.P_WAIT, sys.executable, [sys.executable, "-c", program], environment) == 0
