"""Layer norm, norms of columns and into a residual, soft cap, activations behind products, scaled lookups, and the rotation
of neighbours, against numpy and against their own formula; and a row's bits alone and among others."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.ops import ACTIVATIONS, UNGATED
from tests.kernels.native import FLOAT32, NUMPY, each_isa, native
from tests.kernels.native import error as float32_error
from tests.kernels.paged import rotate

RANDOM = np.random.default_rng(12)
ROWS, WIDTHS = st.integers(1, 40), st.integers(2, 200)


def normal(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape, np.float32)


@each_isa
@given(rows=ROWS, width=st.integers(16, 200), has_bias=st.booleans(), offset=st.sampled_from([0.0, 100.0]))
def test_layer_norm(isa, rows, width, has_bias, offset):
    x, weight, bias = normal(rows, width) * 3 + np.float32(offset), normal(width), normal(width) if has_bias else None
    exact = x.astype(np.float64) - x.mean(axis=1, keepdims=True, dtype=np.float64)
    exact = exact / np.sqrt((exact**2).mean(axis=1, keepdims=True) + 1e-5) * weight + (0 if bias is None else bias)
    for ops in (NUMPY, native(isa)):
        normed = x.copy()
        assert ops.layer_norm(normed, weight, bias, 1e-5, in_place=True) is normed
        assert np.array_equal(normed, ops.layer_norm(x, weight, bias, 1e-5))
        assert error(normed, exact) < (2e-4 if offset else 5e-6)


@each_isa
@given(rows=ROWS, width=WIDTHS)
def test_a_norm_may_be_added(isa, rows, width):
    x, weight, residual = normal(rows, width), normal(width), normal(rows, width)
    expected = residual + NUMPY.rms_norm(x, weight, 1e-5)
    for ops in (NUMPY, native(isa)):
        y = residual.copy()
        assert ops.rms_norm(x, weight, 1e-5, y) is y
        assert error(y, expected) < 1e-6


@each_isa
@given(rows=ROWS, width=st.integers(1, 80), count=st.integers(1, 4), first=st.integers(0, 9), behind=st.integers(0, 9))
def test_norms_of_columns_leave_the_others_alone(isa, rows, width, count, first, behind):
    x, weight = normal(rows, first + count * width + behind), normal(width)
    runs = np.s_[:, first : first + count * width]
    expected = x.copy()
    expected[runs] = NUMPY.rms_norm(x[runs].reshape(rows, count, width), weight, 1e-5).reshape(rows, -1)
    for ops in (NUMPY, native(isa)):
        y = x.copy()
        ops.rms_norm_columns(y, weight, 1e-5, first, count)
        assert error(y, expected) < 1e-6
        expected[runs] = y[runs]
        assert np.array_equal(y, expected)


@each_isa
@given(rows=ROWS, width=WIDTHS)
def test_soft_cap(isa, rows, width):
    x = normal(rows, width) * 40
    x[0, 0], x[-1, -1] = 3e38, -3e38
    exact = 30 * np.tanh(x.astype(np.float64) / 30)
    for ops in (NUMPY, native(isa)):
        y = x.copy()
        assert ops.soft_cap(y, 30.0) is y
        assert np.abs(y - exact).max() < 3e-5


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Relative to the largest wanted value, which may be float64."""
    return float32_error(got, want.astype(np.float32))


def activated(name: str, x: np.ndarray) -> np.ndarray:
    """In float64."""
    if name == "relu":
        return np.maximum(x, 0)
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "clamped_silu":
        return np.minimum(x, 7) / (1 + np.exp(-1.702 * np.minimum(x, 7)))
    if name == "gelu":
        return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("name", ACTIVATIONS)
@each_isa
def test_activations_over_a_wide_range(isa, name):
    x = np.concatenate([np.linspace(-12, 12, 4001), np.logspace(-30, 10, 99), -np.logspace(-30, 10, 99)]).astype(np.float32)
    with np.errstate(over="ignore"):
        exact = activated(name, x.astype(np.float64))
    eye = np.ones((1, 1), np.float32)
    for ops in (NUMPY, native(isa)):
        y = ops.linear(x[:, None], ops.linear_weight([eye], activation=UNGATED + name))[:, 0]
        assert np.all(np.abs(y - exact) <= 2e-7 * np.abs(x) + 1e-6 * np.abs(exact)), name
        assert np.isnan(ops.linear(np.full((1, 1), np.nan, np.float32), ops.linear_weight([eye], activation=UNGATED + name)))


@each_isa
@given(
    rows=ROWS,
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 70),
    name=st.sampled_from(ACTIVATIONS),
    gated=st.booleans(),
    has_bias=st.booleans(),
    adds=st.booleans(),
)
def test_activations_behind_products(isa, rows, inputs, outputs, name, gated, has_bias, adds):
    x, residual = normal(rows, inputs), normal(rows, outputs)
    parts = [normal(outputs, inputs) for _ in range(1 + gated)]
    biases = [normal(outputs) for _ in parts] if has_bias else None
    sums = [x.astype(np.float64) @ part.T + (0 if biases is None else biases[i]) for i, part in enumerate(parts)]
    ups = [np.clip(up, -7, 7) + 1 if name == "clamped_silu" else up for up in sums[1:]]
    exact = activated(name, sums[0]) * (ups[0] if gated else 1) + (residual if adds else 0)
    for ops in (NUMPY, native(isa)):
        weight = ops.linear_weight(parts, biases, activation=name if gated else UNGATED + name)
        got = ops.linear(x, weight, residual.copy() if adds else None)
        assert np.abs(got - exact).max() < 1e-5 * max(1.0, float(np.abs(exact).max()))  # ReLU may leave nothing


@each_isa
@given(ids=st.lists(st.integers(0, 49), min_size=1, max_size=40), width=WIDTHS, adds=st.booleans())
def test_lookups_may_be_scaled_and_added(isa, ids, width, adds):
    table, residual = normal(50, width), normal(len(ids), width)
    expected = table[ids] * np.float32(0.3) + (residual if adds else 0)
    for ops in (NUMPY, native(isa)):
        weight, rows = ops.linear_weight([table]), residual.copy() if adds else None
        assert error(ops.embedding(np.array(ids, np.int32), weight, scale=0.3, residual=rows), expected) < 1e-6


@each_isa
@given(tokens=ROWS, heads=st.tuples(st.integers(1, 4), st.integers(1, 2), st.sampled_from([8, 40])), half=st.integers(1, 4))
def test_neighbours_are_rotated(isa, tokens, heads, half):
    n, k, d = heads
    qkv, positions = normal(tokens, (n + 2 * k) * d), RANDOM.integers(0, 50, tokens).astype(np.int32)
    angles = RANDOM.uniform(0, 6, (50, half))
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    expected = qkv.reshape(tokens, n + 2 * k, d).astype(np.complex128)
    pairs = expected[:, : n + k, : 2 * half : 2] + 1j * expected[:, : n + k, 1 : 2 * half : 2]
    turned = pairs * np.exp(1j * angles[positions])[:, None]
    expected[:, : n + k, : 2 * half : 2], expected[:, : n + k, 1 : 2 * half : 2] = turned.real, turned.imag
    for ops in (NUMPY, native(isa)):
        y = qkv.copy()
        rotate(ops, y, table, positions, heads, FLOAT32, interleaved=True)
        assert error(y, expected.real.reshape(tokens, -1)) < 1e-6


@each_isa
def test_rows_have_the_same_bits_alone_and_over_threads(isa):
    x, weight, bias = normal(300, 576), normal(576), normal(576)
    alone, together = native(isa, 1), native(isa, 2)
    normed, capped, columns = together.layer_norm(x, weight, bias, 1e-6), x.copy(), x.copy()
    together.soft_cap(capped, 2.0)
    together.rms_norm_columns(columns, weight[:64], 1e-6, 64, 5)
    packed = alone.linear_weight([normal(40, 576)], activation=UNGATED + "gelu")
    product = together.linear(x, packed)
    for i in range(0, 300, 7):
        row = x[i : i + 1].copy()
        assert np.array_equal(alone.layer_norm(row, weight, bias, 1e-6), normed[i : i + 1])
        assert np.array_equal(alone.linear(row, packed), product[i : i + 1])
        assert np.array_equal(alone.soft_cap(row.copy(), 2.0), capped[i : i + 1])
        alone.rms_norm_columns(row, weight[:64], 1e-6, 64, 5)
        assert np.array_equal(row, columns[i : i + 1])


@each_isa
def test_wrong_shapes_are_refused(isa):
    ops, x = native(isa), normal(3, 8)
    with pytest.raises(ValueError, match="a weight of shape"):
        ops.layer_norm(x, normal(7), None, 1e-5)
    with pytest.raises(ValueError, match="a weight of shape"):
        ops.layer_norm(x, normal(8), normal(7), 1e-5)
    with pytest.raises(ValueError, match="3 runs of 3 columns from 0 on are not in rows of 8"):
        ops.rms_norm_columns(x, normal(3), 1e-5, 0, 3)
    with pytest.raises(ValueError, match="a residual of shape"):
        ops.rms_norm(x, normal(8), 1e-5, normal(2, 8))
