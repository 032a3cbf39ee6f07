"""Which op table runs: the native kernels where they load, else the numpy reference, with the reason in its description."""

from __future__ import annotations

from octavo.config import EngineConfig
from octavo.errors import StartupError
from octavo.kernels.ops import Ops

HOW_TO_GET_NATIVE = "install a C++ compiler (g++ or clang++), then install Octavo again"


def select_ops(config: EngineConfig) -> Ops:
    """The backend that `--backend`, `--cpu-threads` and `--cpu-isa` ask for. StartupError if `--backend cpu` or
    `--cpu-isa` asks for native kernels and they cannot run, ConfigError for an instruction set or a number of threads that
    this machine does not have."""
    from octavo.kernels.cpu.library import LibraryUnavailable

    if config.backend == "numpy":
        return _numpy("chosen by --backend numpy")
    try:
        return _native(config)
    except LibraryUnavailable as error:
        if config.backend == "cpu":
            raise StartupError(f"--backend cpu: {error}; {HOW_TO_GET_NATIVE}, or use --backend numpy (slow)") from error
        if config.cpu_isa != "auto":
            raise StartupError(f"--cpu-isa {config.cpu_isa}: {error}; {HOW_TO_GET_NATIVE}, or leave it out") from error
        return _numpy(f"slow, since {error}; for the fast one, {HOW_TO_GET_NATIVE}")


def _native(config: EngineConfig) -> Ops:
    from octavo.kernels.cpu.ops import CpuOps

    return CpuOps(config.cpu_threads, config.cpu_isa, pin=config.cpu_pin_threads)


def _numpy(reason: str) -> Ops:
    from octavo.kernels.numpy.ops import NumpyOps

    return NumpyOps(reason)
