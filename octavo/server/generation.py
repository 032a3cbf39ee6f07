"""The one path from checked engine requests to text: chat and completions, streaming and not, n of one prompt or many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from octavo.engine.async_client import Take
from octavo.engine.request import Request, RequestDelta, TokenLogprobs
from octavo.errors import EngineError, OctavoError, ValidationError
from octavo.parsing.answer import AnswerParser
from octavo.parsing.parts import Part, ToolCall, reasoning_and_calls
from octavo.parsing.pipeline import OutputPipeline, Piece
from octavo.server.admission import Visit
from octavo.server.metrics import Metrics, SequenceEnd, SequenceTimes
from octavo.text.tokenizer import Tokenizer

Show = Callable[["Choice", Piece], None]


class Engine(Protocol):
    """What generation needs of `octavo.engine.async_client.AsyncClient`."""

    async def run(self, request: Request, take: Take) -> None:
        """Call `take` with the deltas of all the request's sequences. Cancelling it ends what is unfinished."""

    def abort(self, request_id: str, index: int | None = None, reason: str = "abort") -> None:
        """End a sequence; nothing follows."""


@dataclass(slots=True)
class Prompt:
    """One engine request: a prompt and what the engine said about it."""

    request: Request
    text: str | None  # as it was given or rendered; None for token ids
    logprobs: list[TokenLogprobs | None] | None = None  # one per prompt token, when asked for
    parser: Callable[[], AnswerParser | None] = lambda: None  # for each choice: what looks for reasoning and calls
    num_cached_tokens: int = 0
    is_prefilled: bool = False  # whether any choice has its first token


@dataclass(slots=True)
class Choice:
    """One sequence, numbered through all prompts: prompt_index * n + index."""

    number: int
    prompt: Prompt
    pipeline: OutputPipeline
    times: SequenceTimes
    num_tokens: int = 0
    num_preemptions: int = 0
    finish_reason: str | None = None


@dataclass(slots=True)
class Transcript:
    """All that came of one choice."""

    choice: Choice
    text: str = ""
    reasoning: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class Generation:
    """Runs the sequences of one HTTP request and counts them, in the metrics and in its visit. `prompts` all have the same
    `n`. QueueFullError when there are too many prompt tokens in the server already."""

    def __init__(
        self, engine: Engine, metrics: Metrics, tokenizer: Tokenizer | None, prompts: Sequence[Prompt], visit: Visit
    ) -> None:
        self._engine = engine
        self._metrics = metrics
        self._visit = visit
        self.prompts = prompts
        self.choices: list[Choice] = []
        for prompt in prompts:
            for _ in range(prompt.request.params.n):
                request = prompt.request
                pipeline = OutputPipeline(tokenizer, request.params, request.prompt_token_ids, prompt.parser())
                self.choices.append(Choice(len(self.choices), prompt, pipeline, SequenceTimes(request.arrival_time)))
        visit.add_prompts(self.num_prompt_tokens)

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each counted once however many choices it has."""
        return sum(len(prompt.request.prompt_token_ids) for prompt in self.prompts)

    @property
    def num_cached_tokens(self) -> int:
        """Of all prompts' tokens, those that were found in the prefix cache."""
        return sum(prompt.num_cached_tokens for prompt in self.prompts)

    @property
    def num_output_tokens(self) -> int:
        """Tokens that the model made so far, in all choices."""
        return sum(choice.num_tokens for choice in self.choices)

    @property
    def num_reasoning_tokens(self) -> int:
        """Of these, the tokens of reasoning."""
        return sum(choice.pipeline.num_reasoning_tokens for choice in self.choices)

    async def run(self, show: Show) -> None:
        """Call `show` with every choice's pieces, as they come and before anything else happens in the event loop; each
        choice's last has a finish_reason. Cancelling it aborts the rest.

        Raises ValidationError when a sequence cannot be what was asked for, EngineError when it fails, EngineDeadError
        when the engine does, and what `show` raises; the other sequences are then aborted.
        """
        n = len(self.choices) // len(self.prompts)
        runs = [self._run(prompt, self.choices[i * n : (i + 1) * n], show) for i, prompt in enumerate(self.prompts)]
        tasks = [asyncio.create_task(run) for run in runs]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def collect(self) -> list[Transcript]:
        """Everything, when all is done."""
        transcripts = [Transcript(choice) for choice in self.choices]
        texts: list[list[str]] = [[] for _ in self.choices]
        parts: list[list[Part]] = [[] for _ in self.choices]

        def add(choice: Choice, piece: Piece) -> None:
            transcript = transcripts[choice.number]
            texts[choice.number].append(piece.text)
            parts[choice.number] += piece.parts
            transcript.token_ids += piece.token_ids
            transcript.logprobs += piece.logprobs or ()
            transcript.finish_reason, transcript.stop_reason = piece.finish_reason, piece.stop_reason

        await self.run(add)
        for transcript in transcripts:
            number = transcript.choice.number
            transcript.text = "".join(texts[number])
            transcript.reasoning, transcript.calls = reasoning_and_calls(parts[number])
        return transcripts

    async def _run(self, prompt: Prompt, choices: Sequence[Choice], show: Show) -> None:
        self._metrics.on_received(len(choices))
        ending = "abort"

        def take(delta: RequestDelta) -> None:
            choice = choices[delta.index]
            show(choice, self._advance(choice, delta))

        try:
            await self._engine.run(prompt.request, take)
        except OctavoError:
            ending = "error"
            raise
        finally:
            for choice in choices:
                if choice.finish_reason is None:
                    self._end(choice, ending)
            self._metrics.on_request_end(len(choices), max(choice.num_tokens for choice in choices))

    def _advance(self, choice: Choice, delta: RequestDelta) -> Piece:
        if delta.finish_reason == "error":
            if delta.is_refusal:
                raise ValidationError(delta.error or "The request cannot be served.")
            raise EngineError(delta.error or "The request failed in the engine.")
        prompt = choice.prompt
        if choice.num_tokens == 0:
            choice.times.scheduled = delta.scheduled_time
            if not prompt.is_prefilled:
                prompt.is_prefilled = True
                prompt.logprobs, prompt.num_cached_tokens = delta.prompt_logprobs, delta.num_cached_tokens
                self._metrics.on_prefill(len(prompt.request.prompt_token_ids), delta.num_cached_tokens)
                self._visit.prompt_computed(len(prompt.request.prompt_token_ids))
        if delta.token_ids:
            choice.num_tokens += len(delta.token_ids)
            self._metrics.on_tokens(choice.times, len(delta.token_ids), time.time())
        choice.num_preemptions = delta.num_preemptions or choice.num_preemptions
        piece = choice.pipeline.push(delta)
        if piece.finish_reason is not None:
            if delta.finish_reason is None:  # a stop string, which only this side can see
                self._engine.abort(prompt.request.request_id, delta.index, "stop")
            self._end(choice, piece.finish_reason)
        return piece

    def _end(self, choice: Choice, reason: str) -> None:
        choice.finish_reason = reason
        self._visit.sequence_ended()
        request = choice.prompt.request
        end = SequenceEnd(
            reason=reason,
            times=choice.times,
            num_prompt_tokens=len(request.prompt_token_ids),
            num_output_tokens=choice.num_tokens,
            num_cached_tokens=choice.prompt.num_cached_tokens,
            num_preemptions=choice.num_preemptions,
            max_tokens=request.params.max_tokens or 0,
        )
        self._metrics.on_end(end, time.time())
