"""Norm, activation and rotation against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.cpu.elementwise import silu_and_multiply
from tests.kernels.native import FLOAT32, NUMPY, each_isa, error, native
from tests.kernels.paged import rotate

RANDOM = np.random.default_rng(11)
ROWS, WIDTHS = st.integers(1, 40), st.integers(1, 200)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, np.float32)


@each_isa
@given(rows=ROWS, width=WIDTHS)
def test_rms_norm(isa, rows, width):
    x, weight = normal(rows, width) * 3, normal(width)
    assert error(native(isa).rms_norm(x, weight, 1e-5), NUMPY.rms_norm(x, weight, 1e-5)) < 1e-6


@each_isa
@given(rows=ROWS, width=WIDTHS)
def test_silu_and_multiply(isa, rows, width):
    gate_up = normal(rows, 2 * width) * 10
    gate, up = np.split(gate_up.astype(np.float64), 2, axis=1)
    exact = gate / (1 + np.exp(-gate)) * up
    got = silu_and_multiply(native(isa).calls, gate_up)
    assert np.all(np.abs(got - exact) <= 1e-6 * np.abs(exact) + 1e-30)


@each_isa
def test_silu_over_all_of_float32(isa):
    gate = np.concatenate([np.linspace(-120, 120, 40_001), np.logspace(-38, 38, 4_000), -np.logspace(-38, 38, 4_000)])
    gate = gate.astype(np.float32)
    gate = np.concatenate([gate, np.float32([0, np.inf])])
    gate_up = np.concatenate([gate, np.ones_like(gate)])[None]
    with np.errstate(over="ignore"):
        exact = gate.astype(np.float64) / (1 + np.exp(-gate.astype(np.float64)))
    with np.errstate(invalid="ignore"):
        difference = np.abs(silu_and_multiply(native(isa).calls, gate_up)[0] - exact)
    difference[exact == silu_and_multiply(native(isa).calls, gate_up)[0]] = 0  # the infinity
    assert np.all(difference <= 1e-6 * np.abs(exact) + 1e-36)
    nan = np.full((1, 2), np.nan, np.float32)
    assert np.isnan(silu_and_multiply(native(isa).calls, nan)).all()


@each_isa
@given(
    tokens=ROWS,
    heads=st.tuples(st.integers(1, 4), st.integers(1, 2), st.sampled_from([8, 40, 64])),
    rotary=st.sampled_from([2, 6, 8]) | st.none(),
)
def test_rotary(isa, tokens, heads, rotary):
    n, k, d = heads
    qkv, table = normal(tokens, (n + 2 * k) * d), normal(50, d if rotary is None else rotary)
    positions = RANDOM.integers(0, 50, tokens).astype(np.int32)
    expected, before = qkv.copy(), qkv.copy()
    rotate(NUMPY, expected, table, positions, heads, FLOAT32)
    rotate(native(isa), qkv, table, positions, heads, FLOAT32)
    assert error(qkv, expected) < 1e-6
    assert np.array_equal(qkv[:, (n + k) * d :], before[:, (n + k) * d :])


@each_isa
def test_rows_have_the_same_bits_alone_and_over_threads(isa):
    x, weight = normal(300, 576), normal(576)
    table, positions = normal(300, 64), np.arange(300, dtype=np.int32)
    heads = (5, 2, 64)
    alone = native(isa, 1)
    turned, turned_alone = x.copy(), x.copy()
    rotate(native(isa, 2), turned, table, positions, heads, FLOAT32)
    for i in range(300):
        row = slice(i, i + 1)
        assert np.array_equal(native(isa, 2).rms_norm(x, weight, 1e-5)[row], alone.rms_norm(x[row], weight, 1e-5))
        assert np.array_equal(silu_and_multiply(native(isa, 2).calls, x)[row], silu_and_multiply(alone.calls, x[row]))
        rotate(alone, turned_alone[row], table, positions[row], heads, FLOAT32)
    assert np.array_equal(turned, turned_alone)


def test_wrong_arguments_are_refused():
    ops = native("auto")
    qkv, table = normal(2, 4 * 8), normal(10, 8)
    heads = (2, 1, 8)
    for wrong in (-1, 10):
        with pytest.raises(IndexError, match="position"):
            rotate(ops, qkv, table, np.array([0, wrong], np.int32), heads, FLOAT32)
    with pytest.raises(ValueError, match="2 positions"):
        rotate(ops, qkv, table, np.zeros(3, np.int32), heads, FLOAT32)
    with pytest.raises(ValueError, match="rotary part of 9"):
        rotate(ops, qkv, normal(10, 9), np.zeros(2, np.int32), heads, FLOAT32)
    with pytest.raises(ValueError, match="rows of"):
        rotate(ops, normal(2, 33), table, np.zeros(2, np.int32), heads, FLOAT32)
    qkv.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        rotate(ops, qkv, table, np.zeros(2, np.int32), heads, FLOAT32)
    with pytest.raises(ValueError, match="weight of shape"):
        ops.rms_norm(normal(2, 5), normal(6), 1e-5)
