"""A mixture of experts against numpy, and its bits alone, in a batch, and over threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.kernels.ops import Array, Handle, Ops, Quantization, Routing
from tests.kernels.native import BFLOAT16, FLOAT32, NUMPY, each_isa, error, native, tolerance

BITS8, BITS4 = Quantization(8, activation_bits=16), Quantization(4, group=32, activation_bits=16)
FORMATS = [(FLOAT32, None), (BFLOAT16, None), (BFLOAT16, BITS8), (BFLOAT16, BITS4)]
each_format = pytest.mark.parametrize(("dtype", "quantization"), FORMATS, ids=["float32", "bfloat16", "int8", "int4"])


def experts(
    ops: Ops, count: int, hidden: int, inner: int, dtype: np.dtype, quantization: Quantization | None, seed: int = 0
) -> Handle:
    """`count` experts of random weights."""
    gate_up, down = [], []
    for *gates, last in random_weights(count, hidden, inner, dtype, seed):
        gate_up.append(ops.linear_weight(gates, quantization=quantization, activation="silu"))
        down.append(ops.linear_weight([last], quantization=quantization))
    return ops.expert_weights(gate_up, down)


def random_weights(count: int, hidden: int, inner: int, dtype: np.dtype, seed: int) -> list[list[np.ndarray]]:
    """Gate, up and down of each expert."""
    random = np.random.default_rng(seed)
    shapes = (inner, hidden), (inner, hidden), (hidden, inner)
    return [[random.standard_normal(shape, np.float32).astype(dtype) for shape in shapes] for _ in range(count)]


def usual_size(x: Array, routing: Array, weights: list[list[np.ndarray]]) -> Array:
    """[t, h]: of results whose terms have such sizes and any signs. What rounding does is a share of that where the terms
    happen to cancel out."""
    size = np.zeros_like(x)
    for share, each in zip(routing.T, weights, strict=True):
        gate, up, down = (weight.astype(np.float32) ** 2 for weight in each)
        size += share[:, None] * np.sqrt((x**2 @ gate.T) * (x**2 @ up.T) @ down.T)
    return size


def routed(rows: int, count: int, chosen: int, seed: int) -> Array:
    logits = np.random.default_rng(seed).standard_normal((rows, count), np.float32)
    return NUMPY.route(logits, Routing(chosen, normalise=True))


@each_isa
@each_format
@given(
    rows=st.integers(1, 70),
    count=st.integers(1, 9),
    hidden=st.integers(1, 100),
    inner=st.integers(1, 80),
    chosen=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_experts_equal_numpy(isa, dtype, quantization, rows, count, hidden, inner, chosen, seed):
    if quantization is not None:  # whole groups
        hidden, inner = -(-hidden // 32) * 32, -(-inner // 32) * 32
    x = np.random.default_rng(seed).standard_normal((rows, hidden), np.float32)
    routing = routed(rows, count, min(chosen, count), seed)
    residual = np.random.default_rng(seed + 1).standard_normal((rows, hidden), np.float32)
    shape = count, hidden, inner, dtype, quantization, seed
    numpys = NUMPY.experts(x, routing, experts(NUMPY, *shape))
    weights = experts(native(isa), *shape)
    ours = native(isa).experts(x, routing, weights)
    allowed = 3e-2 if dtype == BFLOAT16 else tolerance(isa, dtype) * 10  # both products round
    size = usual_size(x, routing, random_weights(count, hidden, inner, dtype, seed))
    assert np.all(np.abs(ours - numpys) <= allowed * (size + np.abs(numpys)))
    added = residual.copy()
    assert native(isa).experts(x, routing, weights, added) is added
    assert np.abs(added - (residual + ours)).max() <= 1e-5 * np.abs(residual + ours).max() + 1e-5


@each_isa
@each_format
def test_bits_do_not_depend_on_batch_or_threads(isa, dtype, quantization):
    x = np.random.default_rng(1).standard_normal((64, 96), np.float32)
    routing = routed(64, 6, 2, seed=3)
    weights = experts(native(isa), 6, 96, 64, dtype, quantization)
    whole = native(isa).experts(x, routing, weights)
    alone = [native(isa, 1).experts(x[i : i + 1], routing[i : i + 1], weights)[0] for i in range(64)]
    assert np.array_equal(np.stack(alone), whole)
    for size in range(1, 65):
        assert np.array_equal(native(isa).experts(x[:size], routing[:size], weights), whole[:size]), size


def test_many_rows_in_several_passes():
    """More assignments than are in memory at once, experts without rows, and rows without experts."""
    ops = native("auto")
    x = np.random.default_rng(1).standard_normal((3000, 32), np.float32)
    routing = routed(3000, 8, 3, seed=5)
    routing[:, 4] = 0
    routing[100:200] = 0
    weights = experts(ops, 8, 32, 16, FLOAT32, None)
    whole = ops.experts(x, routing, weights)
    assert not whole[100:200].any()
    assert error(whole, NUMPY.experts(x, routing, experts(NUMPY, 8, 32, 16, FLOAT32, None))) < 1e-4
    for row in (0, 99, 1364, 1365, 1366, 2999):
        assert np.array_equal(ops.experts(x[row : row + 1], routing[row : row + 1], weights)[0], whole[row])


@given(
    rows=st.integers(1, 20),
    count=st.integers(1, 40),
    chosen=st.integers(1, 8),
    normalise=st.booleans(),
    seed=st.integers(0, 99),
)
def test_route(rows, count, chosen, normalise, seed):
    chosen = min(chosen, count)
    logits = np.random.default_rng(seed).integers(-9, 9, (rows, count)).astype(np.float32)  # with many equal ones
    got, numpys = (ops.route(logits, Routing(chosen, normalise)) for ops in (native("auto"), NUMPY))
    assert np.array_equal(got != 0, numpys != 0)
    assert np.allclose(got, numpys, rtol=1e-6, atol=0)
    assert np.all((got != 0).sum(axis=1) == chosen)
    exact = np.exp(logits.astype(np.float64))
    exact = np.where(got != 0, exact, 0) / (np.where(got != 0, exact, 0) if normalise else exact).sum(axis=1, keepdims=True)
    assert np.allclose(got, exact, rtol=1e-5, atol=0)
    least_chosen = np.where(got != 0, logits, np.inf).min(axis=1)
    assert np.all(np.where(got != 0, -np.inf, logits).max(axis=1) <= least_chosen)


def chosen_by_hand(logits: np.ndarray, routing: Routing, bias: np.ndarray | None) -> np.ndarray:
    """One row's weights, expert by expert, in float64."""
    exact = np.exp(logits.astype(np.float64) - logits.max())
    scores = exact / exact.sum() if routing.scoring == "softmax" else 1 / (1 + np.exp(-logits.astype(np.float64)))
    ranked = scores if bias is None else scores + bias
    size = len(logits) // routing.groups
    groups = [range(first, first + size) for first in range(0, len(logits), size)]
    groups.sort(key=lambda members: -sum(sorted(ranked[list(members)])[-routing.group_best :]))
    allowed = [expert for members in groups[: routing.chosen_groups] for expert in members]
    best = sorted(allowed, key=lambda expert: -ranked[expert])[: routing.chosen]
    weights = np.zeros(len(logits))
    weights[best] = scores[best] / (scores[best].sum() if routing.normalise else 1) * routing.scale
    return weights


@given(
    rows=st.integers(1, 20),
    groups=st.integers(1, 5),
    size=st.integers(2, 8),
    scoring=st.sampled_from(["softmax", "sigmoid"]),
    normalise=st.booleans(),
    is_biased=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_route_in_groups_with_a_bias(rows, groups, size, scoring, normalise, is_biased, seed):
    random = np.random.default_rng(seed)
    chosen_groups = int(random.integers(1, groups + 1))
    chosen, best = int(random.integers(1, chosen_groups * size + 1)), int(random.integers(1, 3))
    routing = Routing(chosen, normalise, scoring, groups, chosen_groups, best, scale=2.5)
    logits = random.standard_normal((rows, groups * size), np.float32)
    bias = random.standard_normal(groups * size, np.float32) if is_biased else None
    by_hand = np.array([chosen_by_hand(row, routing, bias) for row in logits])
    for ops in (native("auto"), NUMPY):
        weights = ops.route(logits, routing, bias)
        assert np.allclose(weights, by_hand, rtol=1e-5, atol=1e-7)
        assert np.array_equal(ops.route(logits[:1], routing, bias), weights[:1])


def test_the_bits_of_a_routing_do_not_depend_on_threads():
    logits = np.random.default_rng(2).standard_normal((3000, 64), np.float32)
    routing = Routing(6, True, "sigmoid", groups=8, chosen_groups=3, group_best=2)
    assert np.array_equal(native("auto", 1).route(logits, routing), native("auto", 2).route(logits, routing))


def test_scores_of_nothing_are_zero():
    """exp(-logit) overflows, and the sum of the chosen scores is 0."""
    logits = np.full((1, 4), -200, np.float32)
    for ops in (native("auto"), NUMPY):
        assert not ops.route(logits, Routing(2, True, "sigmoid")).any()


@pytest.mark.parametrize("scoring", ["softmax", "sigmoid"])
def test_a_nan_stays_in_its_row(scoring):
    logits = np.float32([[1, np.nan, 3], [1, 2, 3]])
    for ops in (native("auto"), NUMPY):
        routing = ops.route(logits, Routing(2, True, scoring))
        assert np.isnan(routing[0]).sum() == 2
        assert np.array_equal(routing[1] != 0, [False, True, True])
        y = ops.experts(np.ones((2, 8), np.float32), routing, experts(ops, 3, 8, 8, FLOAT32, None))
        assert np.isnan(y[0]).all()
        assert np.isfinite(y[1]).all()


@pytest.mark.parametrize(
    ("routing", "message"),
    [
        (Routing(4), "4 of 3 experts"),
        (Routing(0), "0 of 3 experts"),
        (Routing(1, groups=2), "3 experts do not make 2 groups"),
        (Routing(1, groups=3, chosen_groups=4), "4 of 3 groups"),
        (Routing(1, group_best=4), "the 4 best"),
        (Routing(2, groups=3), "2 experts cannot be chosen in 1 groups of 1"),
    ],
)
def test_what_cannot_be_chosen_is_refused(routing, message):
    for ops in (native("auto"), NUMPY):
        with pytest.raises(ValueError, match=message):
            ops.route(np.ones((2, 3), np.float32), routing)


def test_wrong_arguments_are_refused():
    ops = native("auto")
    weights = experts(ops, 3, 8, 16, FLOAT32, None)
    x, routing = np.ones((2, 8), np.float32), np.ones((2, 3), np.float32)
    with pytest.raises(ValueError, match="bias of 3 values"):
        ops.route(routing, Routing(1), np.ones(4, np.float32))
    with pytest.raises(ValueError, match=r"routing of shape \(2, 3\)"):
        ops.experts(x, routing[:1], weights)
    with pytest.raises(ValueError, match="expert 0"):
        ops.experts(np.ones((2, 9), np.float32), routing, weights)
    with pytest.raises(ValueError, match="residual of shape"):
        ops.experts(x, routing, weights, np.ones((3, 8), np.float32))
    odd = ops.linear_weight([np.ones((8, 4), np.float32)])
    with pytest.raises(ValueError, match="expert 1"):
        ops.experts(x, routing[:, :2].copy(), ops.expert_weights(weights.gate_up[:2], [weights.down[0], odd]))
    with pytest.raises(ValueError, match="2 and 1 weights"):
        ops.expert_weights(weights.gate_up[:2], weights.down[:1])
