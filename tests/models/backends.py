"""The backends that every test of a model runs on."""

from __future__ import annotations

from collections.abc import Callable

from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.numpy.ops import NumpyOps
from octavo.kernels.ops import Ops

BACKENDS: dict[str, Callable[[], Ops]] = {"numpy": NumpyOps, "cpu": CpuOps}
