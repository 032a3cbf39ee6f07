"""Log probabilities of tokens in rows of logits. What is computed is written in octavo.sampling.logprobs, whose results it
gives to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL

import numpy as np
from numpy.typing import NDArray

from octavo.engine.request import TokenLogprobs
from octavo.kernels.cpu.buffers import FLOAT32
from octavo.kernels.cpu.library import failure

_SCORE = np.dtype(  # octavo_score
    [(name, np.int64) for name in ("logits", "vocab_size", "token_id", "top", "ids", "logprobs", "rank")]
)


def score_rows(
    library: CDLL,
    context: int | None,
    logits: NDArray[np.float32],
    vocab_sizes: Sequence[int],
    token_ids: Sequence[int],
    tops: Sequence[int],
) -> list[TokenLogprobs]:
    """Logprobs of `token_ids` [r] and of the `tops` [r] most likely tokens in each row of logits [r, v], of which
    `vocab_sizes` [r] count."""
    scores = _Scores(tops)
    rows = np.zeros(len(tops), _SCORE)
    rows["logits"] = _row_addresses(logits, len(tops))
    rows["vocab_size"], rows["token_id"], rows["top"] = vocab_sizes, token_ids, tops
    rows["ids"] = scores.ids.ctypes.data + 8 * scores.starts[:-1]
    rows["logprobs"] = scores.logprobs.ctypes.data + 8 * scores.starts[:-1]
    rows["rank"] = scores.ranks.ctypes.data + 8 * np.arange(len(tops))
    status = library.octavo_score_rows(context, rows.ctypes.data, len(rows))
    if status:
        raise failure(status)
    return scores.token_logprobs()


class _Scores:
    """Memory for the logprobs of rows, 1 + top of each."""

    def __init__(self, tops: Sequence[int]) -> None:
        self.starts = np.cumsum([0, *(top + 1 for top in tops)])
        self.ids = np.empty(self.starts[-1], np.int64)
        self.logprobs = np.empty(self.starts[-1], np.float64)
        self.ranks = np.empty(len(tops), np.int64)

    def token_logprobs(self) -> list[TokenLogprobs]:
        """What has been computed, row by row."""
        starts, ids, logprobs = self.starts.tolist(), self.ids.tolist(), self.logprobs.tolist()
        ranks = self.ranks.tolist()
        return [
            TokenLogprobs(ids[start:end], logprobs[start:end], rank)
            for start, end, rank in zip(starts, starts[1:], ranks, strict=False)
        ]


def _row_addresses(logits: NDArray[np.float32], rows: int) -> NDArray[np.int64]:
    if logits.dtype != FLOAT32 or logits.ndim != 2 or len(logits) != rows or logits.strides[1] != 4:
        raise ValueError(f"expected {rows} rows of contiguous float32 logits, got {logits.dtype} {logits.shape}")
    return logits.ctypes.data + logits.strides[0] * np.arange(rows)
