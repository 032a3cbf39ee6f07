"""What the kernel tests share: a backend per instruction set, the weight dtypes, and how far each may be off."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest

from octavo.kernels.cpu.library import supported_isas
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.numpy.ops import NumpyOps

NUMPY = NumpyOps()
FLOAT32, BFLOAT16, FLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
DTYPES = (FLOAT32, BFLOAT16, FLOAT16)

each_isa = pytest.mark.parametrize("isa", supported_isas())
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@cache
def native(isa: str, threads: int = 2) -> CpuOps:
    """One backend per instruction set and thread count, for all tests."""
    return CpuOps(threads, isa)


def rounds_activations(isa: str, dtype: np.dtype) -> bool:
    """Whether activations are rounded to bfloat16 before a product (VDPBF16PS takes nothing else)."""
    return isa == "avx512_bf16" and dtype == BFLOAT16


def tolerance(isa: str, dtype: np.dtype) -> float:
    """Allowed error of a product of random numbers, relative to its largest value."""
    return 1e-2 if rounds_activations(isa, dtype) else 3e-6


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference relative to the largest wanted value."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    return float(np.abs(got - want).max() / np.abs(want).max())
