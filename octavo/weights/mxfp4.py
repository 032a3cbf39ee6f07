"""MXFP4 (Open Compute Project, Microscaling Formats 1.0): floats of 4 bits, E2M1, 32 of which share a power of two."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.errors import LoadError
from octavo.kernels.packed import PackedTensor, Packing

GROUP = 32
PACKING = Packing("fp4_e2m1", GROUP, np.dtype(ml_dtypes.bfloat16))
_POWERS = np.ldexp(1.0, np.arange(255) - 127).astype(ml_dtypes.bfloat16)  # exact
_NAN = 255


def mxfp4_tensor(name: str, blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> PackedTensor:
    """blocks [out, groups, 16], two codes a byte with the first in its lower half, and exponents [out, groups] that are 127
    too large -> [out, 32 * groups]. LoadError names the tensor of `scales` if one stands for NaN, which no tool writes."""
    if bool(np.any(scales == _NAN)):
        raise LoadError(f"tensor {name} holds scales that are no numbers; the file is damaged")
    codes = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(len(blocks), -1)
    return PackedTensor(PACKING, codes, _POWERS[scales])
