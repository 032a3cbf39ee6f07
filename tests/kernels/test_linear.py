"""Packed products against numpy, and the promise that a row's bits depend on that row alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.cpu.library import EMULATED_ISAS
from tests.kernels.native import (
    BFLOAT16,
    NUMPY,
    each_dtype,
    each_linear_isa,
    error,
    is_product,
    native,
    rounds_activations,
    tolerance,
)

RANDOM = np.random.default_rng(7)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, np.float32)


@each_linear_isa
@each_dtype
@given(
    rows=st.integers(1, 60),
    width=st.integers(1, 200),
    outs=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    bias=st.booleans(),
    residual=st.booleans(),
)
def test_linear_equals_numpy(isa, dtype, rows, width, outs, bias, residual):
    parts = [normal(out, width).astype(dtype) for out in outs]
    biases = [normal(out).astype(dtype) for out in outs] if bias else None
    x, old = normal(rows, width), normal(rows, sum(outs))
    ours = native(isa).linear(x, native(isa).linear_weight(parts, biases), old.copy() if residual else None)
    seen = x.astype(BFLOAT16).astype(np.float32) if rounds_activations(isa, dtype) else x
    numpys = NUMPY.linear(seen, NUMPY.linear_weight(parts, biases), old.copy() if residual else None)
    assert is_product(ours, numpys, width)


@each_linear_isa
@each_dtype
@given(rows=st.integers(1, 30), width=st.integers(1, 100), inner=st.integers(1, 70), bias=st.booleans(), old=st.booleans())
def test_activation_equals_numpy(isa, dtype, rows, width, inner, bias, old):
    parts, biases = [normal(inner, width).astype(dtype) for _ in range(2)], [normal(inner), normal(inner)]
    x, residual = normal(rows, width), normal(rows, inner)
    seen = x.astype(BFLOAT16).astype(np.float32) if rounds_activations(isa, dtype) else x
    ours, numpys = (
        ops.linear(
            values,
            ops.linear_weight(parts, biases if bias else None, activation="silu"),
            residual.copy() if old else None,
        )
        for ops, values in ((native(isa), x), (NUMPY, seen))
    )
    assert np.abs(ours - numpys).max() < 1e-5 * max(np.abs(numpys).max(), width)


@each_linear_isa
@each_dtype
def test_bits_of_an_activated_row_do_not_depend_on_the_others(isa, dtype):
    parts = [normal(75, 130).astype(dtype) for _ in range(2)]
    weight = native(isa).linear_weight(parts, [normal(75), normal(75)], activation="silu")
    x = normal(70, 130)
    alone = np.concatenate([native(isa).linear(x[i : i + 1], weight) for i in range(len(x))])
    for threads in (1, 2):
        for rows in range(1, 71):
            assert np.array_equal(native(isa, threads).linear(x[:rows], weight), alone[:rows]), (threads, rows)


@each_linear_isa
@each_dtype
@pytest.mark.parametrize("width", [64, 577])
def test_bits_of_a_row_do_not_depend_on_the_others(isa, dtype, width):
    weight = native(isa).linear_weight([normal(150, width).astype(dtype)], [normal(150)])
    x = normal(97 if isa in EMULATED_ISAS else 700, width)
    alone = np.concatenate([native(isa).linear(x[i : i + 1], weight) for i in range(len(x))])
    for threads in (1, 2):
        ops = native(isa, threads)
        for rows in [*range(1, 65), 97, 511, 513, len(x)]:
            assert np.array_equal(ops.linear(x[:rows], weight), alone[:rows]), (threads, rows)


@each_linear_isa
def test_residual_is_added_in_place(isa):
    ops = native(isa)
    weight = ops.linear_weight([normal(70, 33)])
    x, residual = normal(5, 33), normal(5, 70)
    before = residual.copy()
    assert ops.linear(x, weight, residual) is residual
    assert np.array_equal(residual, before + ops.linear(x, weight))


@given(rows=st.integers(1, 40), width=st.integers(1, 150), out=st.integers(1, 70))
def test_tiles_add_up_as_the_manual_says(rows, width, out):
    """TDPBF16PS, bit for bit: in each 32 inputs the even and the odd products are summed apart, then together, then into the
    rest. (Products of bfloat16 are exact in float32, so a fused sum is a plain one.)"""
    x, part = normal(rows, width).astype(BFLOAT16), normal(out, width).astype(BFLOAT16)
    padding = ((0, 0), (0, -width % 32))
    a, b = (np.pad(each.astype(np.float32), padding).reshape(len(each), -1, 16, 2) for each in (x, part))
    expected = np.zeros((rows, out), np.float32)
    for tile in range(a.shape[1]):
        even_odd = np.zeros((2, rows, out), np.float32)
        for k in range(16):
            for odd in range(2):
                even_odd[odd] += a[:, None, tile, k, odd] * b[None, :, tile, k, odd]
        expected += even_odd[0] + even_odd[1]
    ops = native("amx_emulated")
    assert np.array_equal(ops.linear(x.astype(np.float32), ops.linear_weight([part])), expected)


@each_linear_isa
@each_dtype
def test_embedding_gives_the_weight_rows_exactly(isa, dtype):
    ops = native(isa)
    table = normal(77, 45).astype(dtype)
    weight = ops.linear_weight([table])
    ids = np.array([0, 76, 31, 32, 32, 5], np.int32)
    assert np.array_equal(ops.embedding(ids, weight), table[ids].astype(np.float32))


@each_linear_isa
@each_dtype
def test_a_prompt_sized_product(isa, dtype):
    """Several passes over the rows, many panels and threads."""
    part, x = normal(310, 300).astype(dtype), normal(1100, 300)
    ours = native(isa).linear(x, native(isa).linear_weight([part]))
    assert error(ours, NUMPY.linear(x, NUMPY.linear_weight([part]))) < tolerance(isa, dtype)


def test_bfloat16_products_on_the_best_isa_are_within_bfloat16_of_exact():
    x, part = normal(8, 2048), normal(64, 2048)
    weight = part.astype(BFLOAT16)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    for isa in ("auto", "generic"):
        got = native(isa).linear(x, native(isa).linear_weight([weight]))
        assert np.abs(got - exact).max() / np.abs(exact).max() < 4e-3


def test_no_rows_and_read_only_weights():
    ops = native("auto")
    part = normal(10, 6)
    part.flags.writeable = False
    weight = ops.linear_weight([part])
    assert ops.linear(np.zeros((0, 6), np.float32), weight).shape == (0, 10)
    assert np.array_equal(ops.linear(np.eye(6, dtype=np.float32), weight), part.T)


def test_weight_bytes_are_counted():
    assert native("auto").linear_weight([np.zeros((128, 64), BFLOAT16)]).nbytes == 128 * 64 * 2


def test_wrong_arguments_are_refused():
    ops = native("auto")
    weight = ops.linear_weight([normal(10, 6)])
    with pytest.raises(ValueError, match="rows of 6"):
        ops.linear(normal(2, 5), weight)
    with pytest.raises(ValueError, match="float32, got float64"):
        ops.linear(np.zeros((2, 6)), weight)
    with pytest.raises(ValueError, match="contiguous"):
        ops.linear(normal(4, 6)[::2], weight)
    with pytest.raises(ValueError, match="residual of shape"):
        ops.linear(normal(2, 6), weight, normal(2, 11))
    with pytest.raises(ValueError, match="differ"):
        ops.linear_weight([normal(2, 3), normal(2, 4)])
    with pytest.raises(ValueError, match="float32, bfloat16 or float16"):
        ops.linear_weight([np.zeros((2, 3), np.int8)])
    with pytest.raises(ValueError, match="a gate and an up"):
        ops.linear_weight([normal(2, 3), normal(3, 3)], activation="silu")
    with pytest.raises(ValueError, match="no rows to look up"):
        ops.embedding(np.zeros(1, np.int32), ops.linear_weight([normal(2, 3), normal(2, 3)], activation="silu"))
    with pytest.raises(ValueError, match="bias of 2"):
        ops.linear_weight([normal(2, 3)], [normal(3)])
    for wrong in (-1, 10):
        with pytest.raises(IndexError, match="token id"):
            ops.embedding(np.array([0, wrong], np.int32), weight)
