"""The steps between a row of logits and the tokens that are drawn from: edits, then truncation.

Every function takes one row, contiguous, and reduces it in an order that its length alone decides, so that a row's result
has the same bits whoever shares the batch. Tokens are ordered by (larger logit, lower id).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from octavo.sampling.exponential import block_sums, exponential, sum_in_order
from octavo.sampling.params import SamplingParams
from octavo.sampling.state import SamplingState

_GROUPS = 64
_USUAL_NUCLEUS = 1_024
_ONE_BUCKET = 0x3F80  # the upper half of the bits of 1.0
_LARGEST = float(np.finfo(np.float32).max)


def edited(row: NDArray[np.float32], state: SamplingState) -> NDArray[np.float32]:
    """The row [v] after grammar, bans, bias and penalties: a copy where any of them is on, else the row itself."""
    if not (is_restricted(state) or state.bias_ids.size or state.is_penalized):
        return row
    row = row.copy()
    _restrict(row, state)
    row[state.bias_ids] += state.bias_values
    if state.is_penalized:
        _penalize(row, state)
    return row


def is_restricted(state: SamplingState) -> bool:
    """Whether some tokens are out of the question."""
    has_mask = state.matcher is not None and state.matcher.mask is not None
    has_ban = state.must_go_on or state.allowed_mask is not None or bool(state.bad_words)
    return has_mask or has_ban or state.forced_id is not None


def _restrict(row: NDArray[np.float32], state: SamplingState) -> None:
    """Put minus infinity in the place of tokens that cannot be drawn. Where the text must end, since the grammar lets
    nothing follow, min_tokens does not keep it from ending."""
    if state.forced_id is not None:
        forced = row[state.forced_id]
        row[:] = -np.inf
        row[state.forced_id] = forced
        return
    if state.matcher is not None and state.matcher.mask is not None:
        row[forbidden(state.matcher.mask, row.size)] = -np.inf
    if state.allowed_mask is not None:
        row[forbidden(state.allowed_mask, row.size)] = -np.inf
    if state.bad_words:
        row[state.banned_ids] = -np.inf
    if state.must_go_on:
        ends = row[state.stop_token_ids]
        row[state.stop_token_ids] = -np.inf
        if state.matcher is not None and row.max() == -np.inf:
            row[state.stop_token_ids] = ends


def forbidden(mask: bytes | NDArray[np.uint8], vocab_size: int) -> NDArray[np.bool_]:
    """Which tokens [v] a bitmask leaves out: token i is bit i % 8 of byte i // 8; there are none behind its end."""
    bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), count=vocab_size, bitorder="little")
    out: NDArray[np.bool_] = bits == 0
    return out


def _penalize(row: NDArray[np.float32], state: SamplingState) -> None:
    """Repetition (logits shrink towards the unlikely side), then frequency, then presence; banned tokens stay banned."""
    params, ids, counts = state.params, state.counts.ids, state.counts.counts
    values = row[ids].astype(np.float64)
    penalized = np.where(values > 0.0, values / params.repetition_penalty, values * params.repetition_penalty)
    penalized -= params.frequency_penalty * counts
    penalized -= params.presence_penalty * (counts > 0)
    np.clip(penalized, -_LARGEST, _LARGEST, out=penalized)
    row[ids] = np.where(values == -np.inf, values, penalized)


def processed(
    row: NDArray[np.float32], best: np.float32, params: SamplingParams, buffer: NDArray[np.float32]
) -> NDArray[np.float32]:
    """The edited row [v] as the draw sees it: divided by the temperature, minus infinity for what min_p, top_k and top_p
    leave out. A greedy one stays as it is."""
    if params.is_greedy:
        return row
    ids, _ = kept_tokens(row, best, params, buffer)
    result = np.full_like(row, -np.inf)
    result[ids] = row[ids] * np.float32(1.0 / params.temperature)
    return result


def weights_of_all(
    row: NDArray[np.float32], best: np.float32, temperature: float, buffer: NDArray[np.float32]
) -> NDArray[np.float32]:
    """`weights_of` every token, in `buffer` [v rounded up to blocks], zero beyond the row."""
    buffer[: row.size] = weights_of(row, best, temperature)
    buffer[row.size :] = 0.0
    return buffer


def weights_of(logits: NDArray[np.float32], best: np.float32, temperature: float) -> NDArray[np.float32]:
    """exp((logit - best) / temperature): probabilities relative to the best's 1."""
    return exponential((logits - best) * np.float32(1.0 / temperature))


def kept_tokens(
    row: NDArray[np.float32], best: np.float32, params: SamplingParams, buffer: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """What min_p, top_k and top_p leave of a row: ids [k] in rising order and their weights, none of them 0.

    min_p keeps what has at least min_p times the best's probability, top_k the k first in order, top_p the fewest first in
    order whose share of what the others left reaches top_p (one token always stays). No step sorts the vocabulary.
    """
    if 0 < params.top_k < row.size:
        ids = largest(row, params.top_k)
    elif params.min_p > 0.0:
        ids = _above_min_p(row, best, params)
    else:
        return _nucleus_of_all(row, best, params, buffer)
    weights = weights_of(row[ids], best, params.temperature)
    kept = (weights > 0.0) & (weights.astype(np.float64) >= params.min_p)
    ids, weights = ids[kept], weights[kept]
    if params.top_p >= 1.0:
        return ids, weights
    wanted = params.top_p * sum_in_order(weights)
    return _nucleus(row, ids, weights, wanted, *_buckets(weights))


def largest(row: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Ids [count], rising, of the first `count` tokens in order (larger logit, lower id)."""
    candidates = np.flatnonzero(row >= _bound_of_largest(row, count))
    return candidates[_first(row[candidates], count)]


def _bound_of_largest(row: NDArray[np.float32], count: int) -> float:
    """A lower bound of the count-th largest value: the count-th largest of the maxima of disjoint groups."""
    columns = row.size // _GROUPS
    if count > columns:
        return -math.inf
    maxima = row[: columns * _GROUPS].reshape(_GROUPS, columns).max(axis=0)
    return float(np.partition(maxima, columns - count)[columns - count])


def _first(values: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """Places [count], rising, of the `count` largest values; of equal ones the first."""
    if count >= values.size:
        return np.arange(values.size)
    least = np.partition(values, values.size - count)[values.size - count]
    kept = values > least
    ties = np.flatnonzero(values == least)
    kept[ties[: count - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def _above_min_p(row: NDArray[np.float32], best: np.float32, params: SamplingParams) -> NDArray[np.int64]:
    """A few more than min_p keeps: the exact test follows on their weights."""
    floor = float(best) + params.temperature * math.log(params.min_p)
    return np.flatnonzero(row >= np.float32(floor - 1e-4 * (1.0 + abs(floor))))


def _nucleus_of_all(
    row: NDArray[np.float32], best: np.float32, params: SamplingParams, buffer: NDArray[np.float32]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """top_p of the whole vocabulary. Tokens below (1 - top_p) / v of the mass have less than 1 - top_p of it together, so
    the nucleus is among the others; and it is among any fewer most likely ones that reach top_p."""
    all_weights = weights_of_all(row, best, params.temperature, buffer)
    if params.top_p >= 1.0:  # all that can be drawn, though the sum of the first may be the whole already, as rounded
        ids = np.flatnonzero(all_weights[: row.size] > 0.0)
        return ids, all_weights[ids]
    total = sum_in_order(block_sums(all_weights))
    for size in (_USUAL_NUCLEUS, row.size):
        threshold = (1.0 - params.top_p) * total / size * (1.0 - 1e-3)  # sums are off by less
        ids = np.flatnonzero(all_weights[: row.size] >= np.float32(min(threshold, 1.0)))  # the best one at least
        weights = all_weights[ids]
        buckets, mass = _buckets(weights)
        if mass[-1] >= params.top_p * total:
            break
    return _nucleus(row, ids, weights, params.top_p * total, buckets, mass)


def _buckets(weights: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The bucket of each weight, by the upper half of its bits, which for positive numbers have the numbers' order, from 1
    downwards; and the sums of the buckets, cumulated."""
    buckets = _ONE_BUCKET - (weights.view(np.int32) >> 16)
    return buckets, np.cumsum(np.bincount(buckets, weights))


def _nucleus(
    row: NDArray[np.float32],
    ids: NDArray[np.int64],
    weights: NDArray[np.float32],
    wanted: float,
    buckets: NDArray[np.int32],
    mass: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The fewest first tokens whose weights reach `wanted`. Only the last bucket is sorted."""
    last = min(int(np.searchsorted(mass, wanted, side="left")), mass.size - 1)
    inside = np.flatnonzero(buckets == last)
    inside = inside[np.argsort(-row[ids[inside]], kind="stable")]
    missing = wanted - (mass[last - 1] if last else 0.0)
    sums = np.cumsum(weights[inside], dtype=np.float64)
    kept = buckets < last
    kept[inside[: int(np.searchsorted(sums, missing, side="left")) + 1]] = True
    return ids[kept], weights[kept]
