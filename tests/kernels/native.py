"""What the kernel tests share: a backend per instruction set, the weight dtypes, and how far each may be off."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest

from octavo.kernels.cpu.library import EMULATED_ISAS, supported_isas
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.numpy.ops import NumpyOps

NUMPY = NumpyOps()
FLOAT32, BFLOAT16, FLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
INT8, FLOAT8 = np.dtype(np.int8), np.dtype(ml_dtypes.float8_e4m3fn)
DTYPES = (FLOAT32, BFLOAT16, FLOAT16)
CACHE_DTYPES = (*DTYPES, INT8, FLOAT8)

each_isa = pytest.mark.parametrize("isa", supported_isas())
each_linear_isa = pytest.mark.parametrize("isa", [*supported_isas(), *EMULATED_ISAS])  # where tiles are tested too
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
each_cache_dtype = pytest.mark.parametrize("dtype", CACHE_DTYPES, ids=str)


@cache
def native(isa: str, threads: int = 2) -> CpuOps:
    """One backend per instruction set and thread count, for all tests."""
    return CpuOps(threads, isa)


def rounds_activations(isa: str, dtype: np.dtype) -> bool:
    """Whether activations are rounded to bfloat16 before a product (VDPBF16PS and tiles take nothing else)."""
    return isa in ("amx", "amx_emulated", "avx512_bf16") and dtype in (BFLOAT16, FLOAT8)


def tolerance(isa: str, dtype: np.dtype) -> float:
    """Allowed error of a product of random numbers, relative to its largest value."""
    return 1e-2 if rounds_activations(isa, dtype) else 3e-6


def is_product(got: np.ndarray, want: np.ndarray, width: int) -> bool:
    """Whether two products of `width` normal numbers each agree but for float32's rounding: whose size is that of the terms,
    not of the result."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    return bool(np.abs(got - want).max() < 1e-5 * (1 + width**0.5))


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference relative to the largest wanted value."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    return float(np.abs(got - want).max() / np.abs(want).max())
