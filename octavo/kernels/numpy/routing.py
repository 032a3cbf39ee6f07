"""Which experts a row goes through, and with what weight: `Ops.route`."""

from __future__ import annotations

import numpy as np

from octavo.kernels.ops import Array, Routing

_TINY = np.float32(1e-20)  # beside a sum that may be 0, as DeepSeek's own code has it


def route(logits: Array, routing: Routing, bias: Array | None) -> Array:
    """[t, e] -> [t, e]. ValueError for a routing that does not fit so many experts."""
    problem = routing.problem(logits.shape[1])
    if problem is not None:
        raise ValueError(problem)
    scores, total = _scores(logits, routing)
    # Without the scores' roundings where nothing is added to them: both functions keep the order.
    ranked = logits if bias is None and routing.group_best == 1 else scores / total + (0 if bias is None else bias)
    order = np.argsort(-_within_groups(ranked, routing), axis=-1, kind="stable")[:, : routing.chosen]
    kept = np.zeros_like(scores)
    np.put_along_axis(kept, order, np.take_along_axis(scores, order, axis=-1), axis=-1)
    divisor = kept.sum(axis=-1, keepdims=True, dtype=np.float32) + _TINY if routing.normalise else total
    weights: Array = kept / divisor * np.float32(routing.scale)
    weights[np.isnan(weights) & (kept == 0)] = 0  # 0 / NaN
    return weights


def _scores(logits: Array, routing: Routing) -> tuple[Array, Array]:
    """[t, e], and what they are to be divided by, [t, 1]; NaN in rows with NaN."""
    if routing.scoring == "softmax":
        weights: Array = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return weights, weights.sum(axis=-1, keepdims=True, dtype=np.float32)
    with np.errstate(over="ignore"):  # exp(-logit) = inf, whose sigmoid is 0
        sigmoid: Array = np.float32(1) / (np.float32(1) + np.exp(-logits))
    sigmoid[np.isnan(logits).any(axis=-1)] = np.nan
    return sigmoid, np.ones((len(logits), 1), np.float32)


def _within_groups(ranked: Array, routing: Routing) -> Array:
    """The same, -inf outside of the best groups."""
    if routing.chosen_groups == routing.groups:
        return ranked
    grouped = ranked.reshape(len(ranked), routing.groups, -1)
    best = np.sort(grouped, axis=-1)[..., -routing.group_best :].sum(axis=-1)  # [t, groups]
    order = np.argsort(-best, axis=-1, kind="stable")[:, : routing.chosen_groups]
    limited = np.full_like(grouped, -np.inf)
    np.put_along_axis(limited, order[..., None], np.take_along_axis(grouped, order[..., None], axis=1), axis=1)
    return limited.reshape(ranked.shape)
