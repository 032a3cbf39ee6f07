"""Whether numbers as they are stored are finite."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_AT_ONCE = 1 << 18  # numbers, so that a large tensor has no large copy


def are_finite(numbers: NDArray[Any]) -> bool:
    """Whether floating-point numbers of any width hold neither NaN nor infinity. (`np.isfinite` of 16 bits is slow.)"""
    kind = np.dtype(f"u{numbers.itemsize}")
    infinity = np.array(np.inf, numbers.dtype).view(kind)  # all bits of the exponent
    bits = numbers.reshape(-1).view(kind)
    starts = range(0, bits.size, _AT_ONCE)
    return all((bits[start : start + _AT_ONCE] & infinity).max() != infinity for start in starts)
