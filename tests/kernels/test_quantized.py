"""Quantized products: the same integers as numpy's, and results within float32's rounding of them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.ops import Quantization
from tests.kernels.native import DTYPES, NUMPY, each_linear_isa, error, is_product, native

RANDOM = np.random.default_rng(13)
QUANTIZATIONS = [
    Quantization(bits, group, activation_bits)
    for bits, group in ((8, 0), (4, 32), (4, 64), (4, 128))
    for activation_bits in (16, 8)
]
each_quantization = pytest.mark.parametrize("quantization", QUANTIZATIONS, ids=str)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, np.float32)


def spread(*shape: int) -> np.ndarray:
    """Rows of very different sizes, with outliers, zeros and whole rows of zeros."""
    values = normal(*shape) * np.exp2(RANDOM.integers(-20, 20, (shape[0], 1))).astype(np.float32)
    values *= RANDOM.choice(np.float32([0, 1, 1, 1, 30]), shape)
    values[RANDOM.random(shape[0]) < 0.1] = 0
    return values


@each_linear_isa
@each_quantization
@given(
    rows=st.integers(1, 40),
    width=st.integers(1, 300),
    outs=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    bias=st.booleans(),
    residual=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_linear_equals_numpy(isa, quantization, rows, width, outs, bias, residual, dtype):
    parts = [normal(out, width).astype(dtype) for out in outs]
    biases = [normal(out).astype(dtype) for out in outs] if bias else None
    x, old = normal(rows, width), normal(rows, sum(outs))
    ours, numpys = (
        ops.linear(x, ops.linear_weight(parts, biases, quantization=quantization), old.copy() if residual else None)
        for ops in (native(isa), NUMPY)
    )
    assert is_product(ours, numpys, width)


@each_quantization
@given(rows=st.integers(1, 40), width=st.integers(1, 300), out=st.integers(1, 90))
def test_tiles_and_vectors_have_the_same_bits(quantization, rows, width, out):
    """Sums of integers are exact in any order, and what follows is the same in two instruction sets without fused sums."""
    part, x = normal(out, width), normal(rows, width)
    tiles, vectors = (
        ops.linear(x, ops.linear_weight([part], quantization=quantization))
        for ops in (native("amx_emulated"), native("generic"))
    )
    assert np.array_equal(tiles, vectors)


@each_linear_isa
@each_quantization
@given(rows=st.integers(1, 20), width=st.integers(1, 200), inner=st.integers(1, 70), bias=st.booleans())
def test_activation_equals_numpy(isa, quantization, rows, width, inner, bias):
    parts, biases = [normal(inner, width), normal(inner, width)], [normal(inner), normal(inner)]
    x = normal(rows, width)
    ours, numpys = (
        ops.linear(x, ops.linear_weight(parts, biases if bias else None, quantization=quantization, activation="silu"))
        for ops in (native(isa), NUMPY)
    )
    assert np.abs(ours - numpys).max() < 1e-5 * max(np.abs(numpys).max(), width)


@each_linear_isa
@each_quantization
@given(rows=st.integers(1, 40), width=st.integers(1, 200), dtype=st.sampled_from(DTYPES))
def test_weights_are_rounded_to_the_same_integers(isa, quantization, rows, width, dtype):
    """Looking rows up gives the scale times the integer, exactly."""
    with np.errstate(over="ignore"):
        part = np.nan_to_num(spread(rows, width).astype(dtype), posinf=1, neginf=-1)
    ids = np.arange(rows, dtype=np.int32)
    ours, numpys = (ops.embedding(ids, ops.linear_weight([part], quantization=quantization)) for ops in (native(isa), NUMPY))
    assert np.array_equal(ours, numpys)


@each_linear_isa
@each_quantization
@given(width=st.integers(1, 200))
def test_activations_are_rounded_to_the_same_integers(isa, quantization, width):
    """A product with the unit matrix gives the rounded activations back, but for one rounding of their scale."""
    ops, x = native(isa), spread(17, width)
    unit = np.eye(width, dtype=np.float32)
    ours = ops.linear(x, ops.linear_weight([unit], quantization=quantization))
    numpys = NUMPY.linear(x, NUMPY.linear_weight([unit], quantization=quantization))
    assert np.all(np.abs(ours - numpys) <= 1e-6 * np.abs(numpys))


@each_linear_isa
@each_quantization
@pytest.mark.parametrize("width", [64, 577])
def test_bits_of_a_row_do_not_depend_on_the_others(isa, quantization, width):
    weight = native(isa).linear_weight([normal(150, width)], [normal(150)], quantization=quantization)
    x = normal(200, width)
    alone = np.concatenate([native(isa).linear(x[i : i + 1], weight) for i in range(len(x))])
    for threads in (1, 2):
        ops = native(isa, threads)
        for rows in [*range(1, 65), 97, 200]:
            assert np.array_equal(ops.linear(x[:rows], weight), alone[:rows]), (threads, rows)


@each_linear_isa
@each_quantization
def test_a_prompt_sized_product(isa, quantization):
    """Several passes over the rows, many panels and threads."""
    part, x = normal(310, 300), normal(1100, 300)
    ours, numpys = (ops.linear(x, ops.linear_weight([part], quantization=quantization)) for ops in (native(isa), NUMPY))
    assert error(ours, numpys) < 1e-5


@each_linear_isa
@each_quantization
def test_what_is_not_finite_stays_in_its_row(isa, quantization):
    ops = native(isa)
    weight = ops.linear_weight([normal(40, 100)], quantization=quantization)
    x = normal(5, 100)
    clean = ops.linear(x, weight)
    for bad in (np.nan, np.inf, -np.inf):
        x[3, 77] = bad
        got = ops.linear(x, weight)
        assert np.isnan(got[3]).all()
        assert np.array_equal(got[[0, 1, 2, 4]], clean[[0, 1, 2, 4]])


@each_linear_isa
def test_sums_do_not_overflow(isa):
    """As many inputs as are allowed, all of them of the largest value."""
    ops, width = native(isa), 131072
    for activation_bits in (8, 16):
        weight = ops.linear_weight([np.ones((2, width), np.float32)], quantization=Quantization(8, 0, activation_bits))
        assert np.allclose(ops.linear(np.full((1, width), -1, np.float32), weight), -width, rtol=1e-6)
        with pytest.raises(ValueError, match="at most 131072 inputs"):
            ops.linear_weight([np.ones((2, width + 1), np.float32)], quantization=Quantization(8, 0, activation_bits))


def test_memory_is_that_of_the_bits():
    ops = native("auto")
    part = np.zeros((320, 640), DTYPES[1])
    for quantization in QUANTIZATIONS:
        bits = 8 * 640 + 32 if quantization.bits == 8 else 4 * 640 + 640 // quantization.group * 32
        assert ops.linear_weight([part], quantization=quantization).nbytes == 320 * bits // 8
        assert ops.weight_bytes([part], quantization=quantization) == 320 * bits // 8


def test_wrong_groups_are_refused():
    ops = native("auto")
    for wrong in (Quantization(4, 8), Quantization(4, 40)):
        with pytest.raises(ValueError, match="groups of"):
            ops.linear_weight([normal(4, 64)], quantization=wrong)
