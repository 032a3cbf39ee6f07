"""Random packed projections of every kind, for tests."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from octavo.kernels.packed import INTEGER_BITS, PackedTensor, Packing

BFLOAT16, FLOAT16, FLOAT32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)


def random_packed(
    random: np.random.Generator, packing: Packing, outputs: int, inputs: int, *, ordered: bool = False
) -> PackedTensor:
    """Every code, with scales and offsets of the size of a model's."""
    groups = outputs, packing.groups(inputs)
    bits = INTEGER_BITS.get(packing.codes, 4 if packing.codes == "fp4_e2m1" else 8)
    codes = random.integers(0, 2**bits, (outputs, inputs), np.uint8)
    if packing.codes == "fp8_e4m3":
        codes[codes & 0x7F == 0x7F] = 0
    order = random.permutation(inputs).astype(np.int32) if ordered else None
    if packing.has_factors:
        of_blocks, least = (outputs, packing.factors(inputs)), packing.offset == "least"
        scales, offsets = (random.integers(-128, 128, groups, np.int8) for _ in range(2))
        factors = (np.exp2(random.uniform(-14, -12, of_blocks)) * random.choice([-1, 1], of_blocks)).astype(FLOAT16)
        return PackedTensor(packing, codes, scales, offsets if least else None, order, factors)
    scales = (np.exp2(random.uniform(-9, -5, groups)) * random.choice([-1, 1, 1, 1], groups)).astype(packing.scale)
    offsets = None
    if packing.offset == "zero":
        offsets = random.integers(0, 2**bits, groups, np.uint8)
    elif packing.offset == "least":
        offsets = random.standard_normal(groups).astype(FLOAT16)
    return PackedTensor(packing, codes, scales, offsets, order)
