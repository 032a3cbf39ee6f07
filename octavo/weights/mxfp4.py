"""MXFP4 (Open Compute Project, Microscaling Formats 1.0): floats of 4 bits, 32 of which share a power of two."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

GROUP = 32
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # E2M1; the highest of the four bits is the sign
_VALUES = np.array([*_MAGNITUDES, *(-each for each in _MAGNITUDES)])
_BIAS = 127


def unpack_mxfp4(blocks: NDArray[np.uint8], scales: NDArray[np.uint8], dtype: np.dtype[Any]) -> NDArray[Any]:
    """blocks [out, groups, 16], two numbers a byte, and exponents [out, groups] -> `dtype` [out, 32 * groups], which is
    exact but where float16 does not reach as far."""
    pairs = _pairs(dtype)[scales.astype(np.uint16)[..., None] << 8 | blocks]
    unpacked: NDArray[Any] = pairs.view(dtype).reshape(len(blocks), -1)
    return unpacked


@cache
def _pairs(dtype: np.dtype[Any]) -> NDArray[Any]:
    """What every exponent and byte stand for, the byte's lower half first: [65536], two numbers in one."""
    halves = np.stack([_VALUES[np.arange(256) % 16], _VALUES[np.arange(256) // 16]], axis=1)
    powers = np.ldexp(1.0, np.arange(256) - _BIAS)
    with np.errstate(over="ignore"):
        values = (powers[:, None, None] * halves).astype(dtype)  # [256, 256, 2]
    pairs: NDArray[Any] = values.reshape(-1).view(f"u{2 * dtype.itemsize}")
    return pairs
