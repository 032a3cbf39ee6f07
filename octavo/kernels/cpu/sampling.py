"""Rows of logits and the states of their sequences, as the native sampler takes them. What is computed is written in
octavo.sampling, whose results it gives to the last bit."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import CDLL, addressof, c_char
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.engine.plan import RowResult
from octavo.kernels.cpu.buffers import address
from octavo.kernels.cpu.library import failure
from octavo.kernels.cpu.scoring import score_rows
from octavo.kernels.ops import Array
from octavo.sampling.sampler import MASKED, NO_SEED, NOT_FINITE, sampled_logprobs
from octavo.sampling.state import SamplingState

_ERRORS = {-1: MASKED, -2: NOT_FINITE, -3: NO_SEED}

_INTEGER, _REAL = np.int64, np.float64
_ROW = np.dtype(  # octavo_sampling_row; pointers are integers
    [
        ("logits", _INTEGER),
        ("vocab_size", _INTEGER),
        ("is_greedy", _INTEGER),
        ("has_seed", _INTEGER),
        ("seed", _INTEGER),
        ("index", _INTEGER),
        ("position", _INTEGER),
        ("temperature", _REAL),
        ("top_p", _REAL),
        ("min_p", _REAL),
        ("top_k", _INTEGER),
        ("repetition_penalty", _REAL),
        ("frequency_penalty", _REAL),
        ("presence_penalty", _REAL),
        ("counted_ids", _INTEGER),
        ("counts", _INTEGER),
        ("num_counted", _INTEGER),
        ("stop_ids", _INTEGER),
        ("num_stops", _INTEGER),
        ("min_tokens", _INTEGER),
        ("banned_ids", _INTEGER),
        ("num_banned", _INTEGER),
        ("bias_ids", _INTEGER),
        ("bias_values", _INTEGER),
        ("num_biases", _INTEGER),
        ("masks", _INTEGER, 2),
        ("mask_bytes", _INTEGER, 2),
        ("may_end", _INTEGER),
    ]
)


def sample(
    library: CDLL, context: int | None, logits: Array, states: Sequence[SamplingState], logprobs_mode: str
) -> list[RowResult]:
    """The next token of each sequence from `logits` [r, v]; one row never affects another."""
    tokens = SamplingRows(states).draw(library, context, logits)
    if min(tokens, default=0) < 0:
        results = [RowResult(None if id < 0 else id, None, _ERRORS.get(id)) for id in tokens]
    else:
        results = [RowResult(id) for id in tokens]
    special = [row for row, state in enumerate(states) if state.is_special]
    for row in special:
        matcher = states[row].matcher
        if matcher is not None and matcher.error is not None:
            results[row] = RowResult(None, None, matcher.error)
    scored = [row for row in special if states[row].params.logprobs is not None and results[row].error is None]
    if scored and logprobs_mode == "raw_logprobs":
        _score(library, context, logits, states, results, scored)
    elif scored:
        for row in scored:
            token_id = results[row].token_id
            assert token_id is not None
            results[row].logprobs = sampled_logprobs(logits[row], states[row], token_id, logprobs_mode)
    return results


def _score(
    library: CDLL,
    context: int | None,
    logits: Array,
    states: Sequence[SamplingState],
    results: Sequence[RowResult],
    rows: list[int],
) -> None:
    """Give the results of `rows` their logprobs."""
    sizes = [states[row].vocab_size for row in rows]
    tops = [states[row].params.logprobs or 0 for row in rows]
    tops = [size if top < 0 else min(top, size) for top, size in zip(tops, sizes, strict=True)]
    part = logits if len(rows) == len(logits) else logits[rows]
    tokens = [results[row].token_id or 0 for row in rows]
    for row, scores in zip(rows, score_rows(library, context, part, sizes, tokens, tops), strict=True):
        results[row].logprobs = scores


class SamplingRows:
    """An octavo_sampling_row for each of `states` [r], and what they point to beside what the states own."""

    def __init__(self, states: Sequence[SamplingState]) -> None:
        self._rows = bytearray().join([state.prepared or _prepare(state) for state in states])
        self._positions = array("q", [len(state.output_token_ids) for state in states])
        self._kept: list[NDArray[Any]] = []
        for number, state in enumerate(states):
            if state.has_changing_edits:
                self._put_edits(np.frombuffer(self._rows, _ROW, 1, number * _ROW.itemsize)[0], state)

    def draw(self, library: CDLL, context: int | None, logits: NDArray[np.float32]) -> list[int]:
        """The tokens drawn from logits [r, v], and keys of _ERRORS where there are none."""
        count = len(self._positions)
        if logits.ndim != 2 or len(logits) != count:
            raise ValueError(f"expected {count} rows of logits, got shape {logits.shape}")
        tokens = array("q", bytes(8 * count))
        positions, _ = self._positions.buffer_info()
        rows = addressof(c_char.from_buffer(self._rows)) if count else None
        target, _ = tokens.buffer_info()
        status = library.octavo_sample(context, address(logits), logits.shape[1], positions, rows, count, target)
        if status:
            raise failure(status)
        return tokens.tolist()

    def _put_edits(self, row: Any, state: SamplingState) -> None:
        """What has changed with the last token."""
        if state.is_penalized:
            ids, counts = state.counts.ids, state.counts.counts
            row["counted_ids"], row["counts"], row["num_counted"] = ids.ctypes.data, counts.ctypes.data, ids.size
        if state.bad_words:
            row["banned_ids"], row["num_banned"] = self._keep(np.array(state.banned_ids, np.int64))
        if state.matcher is not None and state.matcher.mask is not None:
            row["masks"][0], row["mask_bytes"][0] = self._keep(np.frombuffer(state.matcher.mask, np.uint8))
        if state.forced_id is not None:
            mask = np.zeros(state.forced_id // 8 + 1, np.uint8)
            mask[-1] = 1 << state.forced_id % 8
            row["masks"], row["mask_bytes"] = (0, 0), (0, 0)
            row["masks"][0], row["mask_bytes"][0] = self._keep(mask)
            row["num_banned"] = row["min_tokens"] = 0

    def _keep(self, array: NDArray[Any]) -> tuple[int, int]:
        self._kept.append(array)
        return array.ctypes.data, array.size


def _prepare(state: SamplingState) -> bytes:
    """The part of a row that stays as it is as long as the sequence does."""
    row = np.zeros((), _ROW)
    params = state.params
    row["vocab_size"], row["index"] = state.vocab_size, state.index
    row["is_greedy"], row["has_seed"], row["seed"] = params.is_greedy, params.seed is not None, params.seed or 0
    row["temperature"], row["top_p"], row["min_p"] = params.temperature, params.top_p, params.min_p
    row["top_k"], row["min_tokens"] = max(params.top_k, 0), params.min_tokens
    row["repetition_penalty"] = params.repetition_penalty
    row["frequency_penalty"], row["presence_penalty"] = params.frequency_penalty, params.presence_penalty
    row["stop_ids"], row["num_stops"] = state.stop_token_ids.ctypes.data, state.stop_token_ids.size
    row["bias_ids"], row["num_biases"] = state.bias_ids.ctypes.data, state.bias_ids.size
    row["bias_values"] = state.bias_values.ctypes.data
    if state.allowed_mask is not None:
        row["masks"][1], row["mask_bytes"][1] = state.allowed_mask.ctypes.data, state.allowed_mask.size
    row["may_end"] = state.matcher is not None
    state.prepared = row.tobytes()
    return state.prepared
