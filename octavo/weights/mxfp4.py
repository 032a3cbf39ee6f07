"""MXFP4 (Open Compute Project, Microscaling Formats 1.0): floats of 4 bits, 32 of which share a power of two."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

GROUP = 32
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # E2M1; the highest of the four bits is the sign
_VALUES = np.array([*_MAGNITUDES, *(-each for each in _MAGNITUDES)], np.float32)
_PAIRS = np.stack([_VALUES[np.arange(256) % 16], _VALUES[np.arange(256) // 16]], axis=1)  # of a byte, the lower half first
_BIAS = 127


def unpack_mxfp4(blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> NDArray[np.float32]:
    """blocks [out, groups, 16], two numbers a byte, and exponents [out, groups] -> exact float32 [out, 32 * groups]."""
    values = _PAIRS[blocks].reshape(*scales.shape, GROUP)
    values *= np.ldexp(np.float32(1), scales.astype(np.int32) - _BIAS)[..., None]
    unpacked: NDArray[np.float32] = values.reshape(len(values), -1)
    return unpacked
