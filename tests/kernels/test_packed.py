"""Packed projections: what their codes stand for, and products with them beside numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.packed import Packing
from tests.kernels.native import NUMPY, each_linear_isa, native
from tests.kernels.packed import BFLOAT16, FLOAT16, FLOAT32, random_packed

PACKINGS = [
    Packing("int4", 32, BFLOAT16),
    Packing("int4", 64, FLOAT16, "zero"),
    Packing("int4", 128, FLOAT16, "least"),
    Packing("int4", 0, BFLOAT16, "zero"),
    Packing("int8", 0, BFLOAT16),
    Packing("int8", 0, FLOAT32, activation_bits=8),
    Packing("int8", 16, FLOAT16, "zero"),
    Packing("int8", 128, FLOAT32, activation_bits=8),
    Packing("fp8_e4m3", 0, BFLOAT16),
    Packing("fp8_e4m3", 128, FLOAT32),
]
each_packing = pytest.mark.parametrize(
    "packing", PACKINGS, ids=lambda p: f"{p.codes}-{p.group}-{p.scale}-{p.offset}-{p.activation_bits}"
)


@each_packing
def test_numbers_are_those_of_the_definition(packing):
    """One number after the other, in Python's own arithmetic."""
    packed = random_packed(np.random.default_rng(1), packing, 3, 40, ordered=True)
    matrix = packed.dequantized()
    group = packing.group or 40
    for output in range(3):
        for column in range(40):
            code = int(packed.codes[output, column])
            scale = float(packed.scales[output, column // group])
            offset = 0.0 if packed.offsets is None else float(packed.offsets[output, column // group])
            if packing.codes == "fp8_e4m3":
                exponent, mantissa = code >> 3 & 15, code & 7
                value = 2.0 ** (max(exponent, 1) - 10) * (mantissa + 8 * (exponent > 0)) * (-1 if code >= 128 else 1)
            else:
                value = float(code - (0 if packing.offset != "none" else 8 if packing.codes == "int4" else 128))
            expected = scale * (value - offset) if packing.offset == "zero" else scale * value + offset
            assert matrix[output, packed.order[column]] == np.float32(expected)


@each_linear_isa
@each_packing
@given(width=st.integers(1, 300), out=st.integers(1, 90), seed=st.integers(0, 99))
def test_rows_that_are_looked_up_are_what_is_stored_exactly(isa, packing, width, out, seed):
    part = random_packed(np.random.default_rng(seed), packing, out, width, ordered=seed % 2 == 0)
    ids = np.arange(out, dtype=np.int32)
    for ops in (NUMPY, native(isa)):
        assert np.array_equal(ops.embedding(ids, ops.linear_weight([part])), part.dequantized())
