"""Causal attention of one sequence (Vaswani et al., 2017), with grouped query heads (Ainslie et al., 2023)."""

from __future__ import annotations

import numpy as np

from octavo.kernels.ops import Array

_QUERIES_AT_ONCE = 128  # bounds the scores of a long prompt to [n, 128, s]


def attend(queries: Array, keys: Array, values: Array, scale: float) -> Array:
    """The last t of s positions ask: queries [t, n, d], keys and values [s, k, d] -> [t, n, d]."""
    output = np.empty_like(queries)
    first = len(keys) - len(queries)
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        piece = slice(start, start + _QUERIES_AT_ONCE)
        output[piece] = _attend_piece(queries[piece], keys, values, first + start, scale)
    return output


def _attend_piece(queries: Array, keys: Array, values: Array, first: int, scale: float) -> Array:
    """As `attend`, for queries at the positions first .. first + t - 1."""
    t, n, d = queries.shape
    k = keys.shape[1]
    length = first + t  # no query of the piece sees further
    grouped = queries.reshape(t, k, n // k, d).transpose(1, 2, 0, 3)  # [k, n/k, t, d]
    scores = (grouped @ keys[:length].transpose(1, 2, 0)[:, None]) * np.float32(scale)  # [k, n/k, t, length]
    hidden = np.arange(length) > first + np.arange(t)[:, None]  # [t, length]
    weights = _softmax(np.where(hidden, np.float32(-np.inf), scores))
    mixed = weights @ values[:length].transpose(1, 0, 2)[:, None]  # [k, n/k, t, d]
    output: Array = mixed.transpose(2, 0, 1, 3).reshape(t, n, d)
    return output


def _softmax(scores: Array) -> Array:
    weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights
