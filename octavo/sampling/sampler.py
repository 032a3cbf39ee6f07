"""From a row of logits to the next token.

The order of the steps, which is vLLM's:

0. logprobs, where asked for, are the log-softmax of the logits as the model gave them: no step below changes them
   (--logprobs-mode: or of the logits behind step 7; or these logits themselves)
1. bans: what the grammar does not let follow; tokens that are not among allowed_token_ids; those that would complete
   one of bad_words; before min_tokens, EOS and stop_token_ids (under ignore_eos too) unless nothing else may follow; where
   thinking_token_budget is used up, all but the tokens that close the block
2. logit_bias is added
3. penalties: repetition (prompt and output), frequency, presence (output)
4. temperature divides; below 0.01 the most likely token is taken and nothing more is done
5. min_p
6. top_k
7. top_p, of what min_p and top_k left
8. draw: a number keyed by (seed, index of n, position in the output) is looked up in the kept tokens' cumulated
   probabilities, in the order of their ids

Of equally likely tokens the one with the lower id comes first, in every step. A row's result depends on its logits and its
state alone, to the last bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.engine.plan import RowResult
from octavo.engine.request import TokenLogprobs
from octavo.sampling.exponential import BLOCK, block_sums, sum_in_order
from octavo.sampling.logits import edited, kept_tokens, processed, weights_of_all
from octavo.sampling.logprobs import token_logprobs
from octavo.sampling.rng import uniforms
from octavo.sampling.state import SamplingState

MASKED = (
    "every token is masked: no token is left that `structured_outputs` (or `response_format`, a forced call), `bad_words`, "
    "`allowed_token_ids` and `min_tokens` of the request all let come next"
)
NOT_FINITE = "the model's logits are not finite"
NO_SEED = "the request has no seed"


def sample(
    logits: NDArray[np.float32], states: Sequence[SamplingState], logprobs_mode: str = "raw_logprobs"
) -> list[RowResult]:
    """The next token of each sequence from `logits` [r, v], which stay as they are. `states` are not appended to.
    `logprobs_mode` is that of `EngineConfig`."""
    numbers = _numbers(states)
    buffer = np.empty(-(-logits.shape[1] // BLOCK) * BLOCK, dtype=np.float32)
    with np.errstate(over="ignore"):  # a difference beyond float32 is minus infinity, whose weight is 0
        return [_sample_row(logits[row], state, numbers.get(row), buffer, logprobs_mode) for row, state in enumerate(states)]


def _numbers(states: Sequence[SamplingState]) -> dict[int, float]:
    """For each row that draws one: its random number. Rows without a seed get none."""
    keys = [
        (row, state.params.seed, state.index, state.position)
        for row, state in enumerate(states)
        if state.params.seed is not None and not state.params.is_greedy
    ]
    if not keys:
        return {}
    rows, seeds, indexes, positions = zip(*keys, strict=True)
    return dict(zip(rows, uniforms(seeds, indexes, positions).tolist(), strict=True))


def _sample_row(
    logits: NDArray[np.float32],
    state: SamplingState,
    number: float | None,
    buffer: NDArray[np.float32],
    logprobs_mode: str,
) -> RowResult:
    params, logits = state.params, logits[: state.vocab_size]
    if state.matcher is not None and state.matcher.error is not None:
        return RowResult(error=state.matcher.error)
    row = edited(logits, state)
    token_id = int(row.argmax())  # the first NaN, if there is one
    best = row[token_id]
    if not np.isfinite(best):
        return RowResult(error=MASKED if best == -np.inf else NOT_FINITE)
    if not params.is_greedy:
        if number is None:
            return RowResult(error=NO_SEED)
        token_id = _draw(row, best, state, number, buffer)
    if params.logprobs is None:
        return RowResult(token_id)
    shown = processed(row, best, params, buffer) if logprobs_mode.startswith("processed") else logits
    return RowResult(token_id, _shown_logprobs(shown, token_id, params.logprobs, logprobs_mode))


def sampled_logprobs(
    logits: NDArray[np.float32], state: SamplingState, token_id: int, logprobs_mode: str
) -> TokenLogprobs | None:
    """What `sample` gives with a token that was drawn from the row `logits` [v], in any mode."""
    count, shown = state.params.logprobs, logits[: state.vocab_size]
    if count is None:
        return None
    if logprobs_mode.startswith("processed"):
        buffer = np.empty(-(-shown.size // BLOCK) * BLOCK, dtype=np.float32)
        with np.errstate(over="ignore"):
            row = edited(shown, state)
            shown = processed(row, row.max(), state.params, buffer)
    return _shown_logprobs(shown, token_id, count, logprobs_mode)


def _shown_logprobs(shown: NDArray[np.float32], token_id: int, count: int, logprobs_mode: str) -> TokenLogprobs:
    return token_logprobs(shown[None], [token_id], count, normalize=logprobs_mode.endswith("logprobs"))[0]


def _draw(
    row: NDArray[np.float32], best: np.float32, state: SamplingState, number: float, buffer: NDArray[np.float32]
) -> int:
    params = state.params
    if params.top_k <= 0 and params.top_p >= 1.0 and params.min_p <= 0.0:
        weights = weights_of_all(row, best, params.temperature, buffer)
        sums = block_sums(weights)
        block, rest = _locate(sums, number * sum_in_order(sums))
        return block * BLOCK + _locate(weights[block * BLOCK : (block + 1) * BLOCK], rest)[0]
    ids, kept_weights = kept_tokens(row, best, params, buffer)
    return int(ids[_locate(kept_weights, number * sum_in_order(kept_weights))[0]])


def _locate(weights: NDArray[np.floating], target: float) -> tuple[int, float]:
    """The first place at which the cumulated weights exceed `target`, and the target's distance from the place's start.

    Never a place without weight, even where rounding has put the target at the very end."""
    cumulated = np.cumsum(weights, dtype=np.float64)
    target = min(target, float(np.nextafter(cumulated[-1], 0.0)))
    place = int(np.searchsorted(cumulated, target, side="right"))
    return place, target - (float(cumulated[place - 1]) if place else 0.0)
