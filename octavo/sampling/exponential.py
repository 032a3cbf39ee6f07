"""exp and sums whose every bit is written down, so that another implementation can give the same ones.

Each value comes of single IEEE operations in the order that stands here, without fused ones. The native kernels
(native/src/kernels/sampling.cpp) do the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BLOCK = 256
"""Weights are summed in blocks of so many; buffers for weights are whole blocks."""

_LANES = 16
_LOWEST = np.float32(-87.33654)  # ln(2^-126): what is below has no weight
_LOG2_E = np.float32(1.44269504)
_ROUND = np.float32(12582912.0)  # 1.5 * 2^23: adding it rounds to an integer
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)  # Cody and Waite's two parts of ln 2
_FIRST = np.float32(0.00829027214)  # of the polynomial for 2^f with the least relative error (9.2e-8) and p(0) = 1
_REST = tuple(np.float32(value) for value in (0.0418981598, 0.166676381, 0.499991478, 0.999999706, 1.0))


def exponential(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """e^x of values that are not positive, with a relative error below 3e-7. e^0 is 1, and 0 is what is below 2^-126."""
    bounded = np.maximum(values, _LOWEST)
    whole = (bounded * _LOG2_E + _ROUND) - _ROUND
    rest = (bounded - whole * _LN2_HIGH) - whole * _LN2_LOW
    result: NDArray[np.float32] = np.full_like(bounded, _FIRST)
    for coefficient in _REST:
        result *= rest
        result += coefficient
    result *= ((whole.astype(np.int32) + 127) << 23).view(np.float32)
    result[values < _LOWEST] = 0.0
    return result


def block_sums(weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """Sums [blocks] of a buffer of whole blocks, in float64: of 16 lanes, each in order, which are then folded in half."""
    steps = weights.reshape(-1, BLOCK // _LANES, _LANES)
    lanes = np.zeros((len(steps), _LANES))
    for step in range(BLOCK // _LANES):
        lanes += steps[:, step]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    return lanes[:, 0]


def sum_in_order(values: NDArray[np.floating]) -> float:
    """The float64 sum from the first value to the last; 0 of none."""
    return float(np.cumsum(values, dtype=np.float64)[-1]) if values.size else 0.0
