"""Products of which every head has its own, and arrays side by side, against numpy; and their bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.ops import Handle, Ops
from tests.kernels.native import FLOAT32, NUMPY, each_dtype, each_linear_isa, error, native, tolerance


def heads(ops: Ops, count: int, out: int, width: int, dtype: np.dtype, seed: int = 0) -> Handle:
    random = np.random.default_rng(seed)
    parts = [random.standard_normal((out, width), np.float32).astype(dtype) for _ in range(count)]
    return ops.head_weights([ops.linear_weight([part]) for part in parts])


@each_linear_isa
@each_dtype
@given(
    rows=st.integers(1, 120),
    count=st.integers(1, 6),
    out=st.integers(1, 90),
    width=st.integers(1, 90),
    seed=st.integers(0, 1000),
)
def test_products_of_heads_equal_numpy(isa, dtype, rows, count, out, width, seed):
    x = np.random.default_rng(seed).standard_normal((rows, count * width), np.float32)
    ours, numpys = (ops.linear_heads(x, heads(ops, count, out, width, dtype, seed)) for ops in (native(isa), NUMPY))
    assert np.abs(ours - numpys).max() <= tolerance(isa, dtype) * 10 * (1 + np.abs(numpys).max())


@each_linear_isa
@each_dtype
def test_bits_do_not_depend_on_batch_or_threads(isa, dtype):
    x = np.random.default_rng(1).standard_normal((300, 4 * 72), np.float32)
    weights = heads(native(isa), 4, 100, 72, dtype)
    whole = native(isa).linear_heads(x, weights)
    for size in (1, 5, 12, 13, 96, 97, 200):
        assert np.array_equal(native(isa, 1).linear_heads(x[:size].copy(), weights), whole[:size]), size
    assert np.array_equal(native(isa).linear_heads(x[299:].copy(), weights), whole[299:])


@given(rows=st.integers(1, 300), widths=st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_side_by_side(rows, widths):
    parts = [np.random.default_rng(width).standard_normal((rows, width), np.float32) for width in widths]
    parts.append(parts[0])
    for ops in (native("auto"), NUMPY):
        assert np.array_equal(ops.concatenate(parts), np.concatenate(parts, axis=1))


def test_wrong_arguments_are_refused():
    ops = native("auto")
    weights = heads(ops, 3, 8, 16, FLOAT32)
    with pytest.raises(ValueError, match="rows of 3 \\* 16"):
        ops.linear_heads(np.ones((2, 47), np.float32), weights)
    odd = ops.head_weights([weights.heads[0], ops.linear_weight([np.ones((8, 32), np.float32)])])
    with pytest.raises(ValueError, match="head 1"):
        ops.linear_heads(np.ones((2, 32), np.float32), odd)
    with pytest.raises(ValueError, match="as many rows"):
        ops.concatenate([np.ones((2, 3), np.float32), np.ones((3, 3), np.float32)])
    assert error(ops.concatenate([np.ones((2, 3), np.float32)]), np.ones((2, 3), np.float32)) == 0
