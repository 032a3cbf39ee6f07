"""Attention of one sequence (Vaswani et al., 2017), with grouped query heads (Ainslie et al., 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.kernels.ops import Array

_QUERIES_AT_ONCE = 128  # bounds the scores of a long prompt to [n, 128, s]


@dataclass(frozen=True)
class Scoring:
    """What becomes of a query's products with the keys; the fields are the arguments of `Ops.attention`."""

    scale: float
    window: int | None = None
    soft_cap: float | None = None
    sinks: Array | None = None
    causal: bool = True

    def first_key(self, position: int) -> int:
        """The first key that the query at `position` sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)


def attend(queries: Array, keys: Array, values: Array, scoring: Scoring, first_key: int = 0) -> Array:
    """The last t positions ask: queries [t, n, d], keys and values [s, k, d] from position `first_key` on -> [t, n, d]."""
    output = np.empty_like(queries)
    first = first_key + len(keys) - len(queries)
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        piece = slice(start, start + _QUERIES_AT_ONCE)
        end = min(start + _QUERIES_AT_ONCE, len(queries)) if scoring.causal else len(queries)
        seen = slice(0, len(keys) - len(queries) + end)
        output[piece] = _attend_piece(queries[piece], keys[seen], values[seen], first + start, first_key, scoring)
    return output


def _attend_piece(queries: Array, keys: Array, values: Array, first: int, first_key: int, scoring: Scoring) -> Array:
    """As `attend`, for queries at the positions first .. first + t - 1, none of which sees further than the keys go."""
    t, n, d = queries.shape
    s, k, _ = keys.shape
    grouped = queries.reshape(t, k, n // k, d).transpose(1, 2, 0, 3)  # [k, n/k, t, d]
    scores = (grouped @ keys.transpose(1, 2, 0)[:, None]) * np.float32(scoring.scale)  # [k, n/k, t, s]
    if scoring.soft_cap is not None:
        scores = np.float32(scoring.soft_cap) * np.tanh(scores / np.float32(scoring.soft_cap))
    weights = _softmax(np.where(_visible(t, s, first, first_key, scoring), scores, np.float32(-np.inf)), scoring.sinks)
    mixed = weights @ values.transpose(1, 0, 2)[:, None]  # [k, n/k, t, d]
    output: Array = mixed.transpose(2, 0, 1, 3).reshape(t, n, d)
    return output


def _visible(t: int, s: int, first: int, first_key: int, scoring: Scoring) -> np.ndarray:
    """[t, s]: whether the query sees the key."""
    distance = (first + np.arange(t))[:, None] - (first_key + np.arange(s))
    in_window = distance < (distance.max() + 1 if scoring.window is None else scoring.window)
    return in_window & (distance >= 0) if scoring.causal else in_window


def _softmax(scores: Array, sinks: Array | None) -> Array:
    """Over the last axis of [k, n/k, t, s]; a sink of each head [n] joins in, and its weight is left out."""
    largest = scores.max(axis=-1, keepdims=True)
    weights: Array = np.exp(scores - largest)
    total = weights.sum(axis=-1, keepdims=True)
    if sinks is not None:
        with np.errstate(over="ignore"):  # a sink far above all keys leaves them nothing
            total = total + np.exp(sinks.reshape(*scores.shape[:2], 1, 1) - largest)
    weights /= total
    return weights
