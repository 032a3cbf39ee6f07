"""What a step's results are to those who wait for them: the deltas of one sequence."""

from __future__ import annotations

from octavo.engine.plan import RowResult
from octavo.engine.request import Request, RequestDelta
from octavo.engine.sequence import Sequence
from octavo.pooling.params import Pooled


def token_delta(
    sequence: Sequence, token_id: int, result: RowResult, reason: str | None, stop_reason: int | None
) -> RequestDelta:
    """The token that the sequence's output ends with now; `reason`: why the sequence ends with it, if it does."""
    is_first = len(sequence.output_token_ids) == 1
    return RequestDelta(
        request_id=sequence.request.request_id,
        index=sequence.index,
        token_ids=[token_id],
        logprobs=[result.logprobs] if result.logprobs is not None else None,
        prompt_logprobs=sequence.prompt_logprobs if is_first else None,
        finish_reason=reason,
        stop_reason=stop_reason,
        num_cached_tokens=(sequence.prompt_use.num_cached_tokens or 0) if is_first else 0,
        num_preemptions=sequence.num_preemptions,
        scheduled_time=sequence.scheduled_time if is_first else 0.0,
    )


def pooled_delta(sequence: Sequence, pooled: Pooled) -> RequestDelta:
    """All that a pooling request wants."""
    return RequestDelta(
        request_id=sequence.request.request_id,
        index=sequence.index,
        finish_reason="stop",
        pooled=pooled,
        num_cached_tokens=sequence.prompt_use.num_cached_tokens or 0,
        num_preemptions=sequence.num_preemptions,
        scheduled_time=sequence.scheduled_time,
    )


def error_delta(request: Request, index: int, message: str, *, is_refusal: bool = False) -> RequestDelta:
    """The end of a sequence that failed, or (`is_refusal`) asks for what cannot be had."""
    return RequestDelta(request.request_id, index, finish_reason="error", error=message, is_refusal=is_refusal)
