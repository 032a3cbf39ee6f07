"""Logprobs of the tokens that are asked for: log-softmax of logits, by default of those that the model gave."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.engine.request import TokenLogprobs
from octavo.sampling.exponential import BLOCK, block_sums, sum_in_order
from octavo.sampling.logits import largest, weights_of_all

FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot carry."""


def token_logprobs(
    logits: NDArray[np.float32], token_ids: Sequence[int] | NDArray[np.integer], top: int, *, normalize: bool = True
) -> list[TokenLogprobs]:
    """Logprobs of `token_ids` [r] and of the `top` most likely tokens (-1: all) in each row of `logits` [r, v].

    `rank` is 1 + the number of strictly more likely tokens; equally likely ones stand in the order of their ids. A row
    that is not finite where it is largest has FLOOR everywhere. Without `normalize` they are the logits themselves.
    """
    buffer = np.empty(-(-logits.shape[1] // BLOCK) * BLOCK, dtype=np.float32)
    count = logits.shape[1] if top < 0 else min(top, logits.shape[1])
    with np.errstate(over="ignore"):
        return [
            _row_logprobs(row, int(token), count, buffer if normalize else None)
            for row, token in zip(logits, token_ids, strict=True)
        ]


def _row_logprobs(row: NDArray[np.float32], token_id: int, top: int, buffer: NDArray[np.float32] | None) -> TokenLogprobs:
    """Logits, without a buffer."""
    best = row.max()
    if not np.isfinite(best):
        return TokenLogprobs([token_id, *range(top)], [FLOOR] * (top + 1), 1)
    ids = np.concatenate([[token_id], _most_likely(row, top)])
    logprobs = np.maximum(row[ids].astype(np.float64), FLOOR)
    if buffer is not None:
        log_total = float(best) + math.log(sum_in_order(block_sums(weights_of_all(row, best, 1.0, buffer))))
        logprobs = np.clip(row[ids].astype(np.float64) - log_total, FLOOR, 0.0)
    return TokenLogprobs(ids.tolist(), logprobs.tolist(), 1 + int(np.count_nonzero(row > row[token_id])))


def _most_likely(row: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    ids = largest(row, count) if count else np.empty(0, dtype=np.int64)
    return ids[np.argsort(-row[ids], kind="stable")]
