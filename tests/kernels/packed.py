"""Random packed projections of every kind, for tests."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from octavo.kernels.packed import PackedTensor, Packing

BFLOAT16, FLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)


def random_packed(
    random: np.random.Generator, packing: Packing, outputs: int, inputs: int, *, ordered: bool = False
) -> PackedTensor:
    """Every code, with scales and offsets of the size of a model's."""
    groups = outputs, packing.groups(inputs)
    bits = 4 if packing.codes in ("int4", "fp4_e2m1") else 8
    codes = random.integers(0, 2**bits, (outputs, inputs), np.uint8)
    if packing.codes == "fp8_e4m3":
        codes[codes & 0x7F == 0x7F] = 0
    scales = (np.exp2(random.uniform(-9, -5, groups)) * random.choice([-1, 1, 1, 1], groups)).astype(packing.scale)
    offsets = None
    if packing.offset == "zero":
        offsets = random.integers(0, 2**bits, groups, np.uint8)
    elif packing.offset == "least":
        offsets = random.standard_normal(groups).astype(FLOAT16)
    order = random.permutation(inputs).astype(np.int32) if ordered else None
    return PackedTensor(packing, codes, scales, offsets, order)
