"""From the engine's deltas of one request to a RequestOutput."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from octavo.engine.request import Request, RequestDelta, TokenLogprobs
from octavo.outputs import CompletionOutput, Logprob, LogprobsOnePosition, RequestMetrics, RequestOutput
from octavo.parsing.pipeline import OutputPipeline, Piece
from octavo.text.tokenizer import Tokenizer


class RequestCollector:
    """Gathers the n answers to one request."""

    def __init__(
        self, request: Request, prompt: str | None, tokenizer: Tokenizer | None, abort: Callable[[str, int, str], None]
    ) -> None:
        """`abort(request_id, index, reason)` is called when a stop string has ended an answer."""
        params = request.params
        self.request_id = request.request_id
        self.version = 0  # grows with each delta taken
        self.finished = False  # all n answers have ended
        self._tokenizer = tokenizer
        self._abort = abort
        self._pipelines = [OutputPipeline(tokenizer, params, request.prompt_token_ids) for _ in range(params.n)]
        self._answers = [CompletionOutput(index) for index in range(params.n)]
        if params.logprobs is not None:
            for answer in self._answers:
                answer.cumulative_logprob, answer.logprobs = 0.0, []
        self._metrics = RequestMetrics(arrival_time=request.arrival_time)
        self._output = RequestOutput(self.request_id, prompt, request.prompt_token_ids, [], False, metrics=self._metrics)

    def output(self) -> RequestOutput:
        """What has come so far, in lists that later deltas leave as they are."""
        return replace(
            self._output,
            outputs=[_copy(answer) for answer in self._answers],
            finished=self.finished,
            metrics=replace(self._metrics),
        )

    def add(self, delta: RequestDelta) -> None:
        """Take what one step gave to one of the answers."""
        answer = self._answers[delta.index]
        if answer.finished():
            return
        piece = self._pipelines[delta.index].push(delta)
        answer.text += piece.text
        answer.token_ids += piece.token_ids
        answer.finish_reason, answer.stop_reason = piece.finish_reason, piece.stop_reason
        if piece.logprobs and answer.logprobs is not None:
            answer.logprobs += [self._position(position) for position in piece.logprobs]
            answer.cumulative_logprob = (answer.cumulative_logprob or 0.0) + sum(one.logprobs[0] for one in piece.logprobs)
        if answer.finished() and delta.finish_reason is None:
            self._abort(self.request_id, delta.index, "stop")
        self._note(delta, piece)
        self.finished = all(answer.finished() for answer in self._answers)
        self.version += 1

    def _note(self, delta: RequestDelta, piece: Piece) -> None:
        """What a delta says of the request as a whole."""
        output, metrics, now = self._output, self._metrics, time.time()
        if delta.prompt_logprobs is not None:
            output.prompt_logprobs = [None if one is None else self._position(one) for one in delta.prompt_logprobs]
        output.error = output.error or piece.error
        output.num_cached_tokens = max(output.num_cached_tokens, delta.num_cached_tokens)
        metrics.num_preemptions = max(metrics.num_preemptions, delta.num_preemptions)
        metrics.scheduled_ts = metrics.scheduled_ts or delta.scheduled_time
        if piece.token_ids:
            metrics.num_generation_tokens += len(piece.token_ids)
            metrics.first_token_ts = metrics.first_token_ts or now
            metrics.first_token_latency = metrics.first_token_ts - metrics.arrival_time
            metrics.last_token_ts = now

    def _position(self, position: TokenLogprobs) -> LogprobsOnePosition:
        ranked = position.ranked().items()
        return {token_id: Logprob(logprob, rank, self._decoded(token_id)) for token_id, (logprob, rank) in ranked}

    def _decoded(self, token_id: int) -> str | None:
        return self._tokenizer.decode([token_id], skip_special_tokens=False) if self._tokenizer else None


def _copy(answer: CompletionOutput) -> CompletionOutput:
    logprobs = None if answer.logprobs is None else [*answer.logprobs]
    return replace(answer, token_ids=[*answer.token_ids], logprobs=logprobs)
