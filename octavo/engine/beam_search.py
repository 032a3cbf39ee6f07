"""Beam search, above the engine: each step asks for one token behind every beam, and for the most likely ones beside it.

Only what is here knows of beams. The engine sees requests for one token; the prefix cache keeps them from computing what
the step before has computed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from octavo.engine.async_client import AsyncClient, Take
from octavo.engine.request import Request, RequestDelta, TokenLogprobs
from octavo.errors import EngineError


@dataclass(frozen=True)
class Beam:
    """An answer so far. `logprob` is the sum over its tokens."""

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    logprob: float = 0.0
    finish_reason: str | None = None
    stop_reason: int | None = None


@dataclass
class BeamSearch:
    """One prompt's search. While `is_open`, ask for `2 * width` logprobs behind each of `prompts` and `take` them.

    A beam that draws one of `end_token_ids` is complete; the `width` best of the others go on. Scores are vLLM's: the sum of
    logprobs over (length of prompt and answer, the end token not counted) ** length_penalty.
    """

    prompt_token_ids: Sequence[int]
    width: int
    max_tokens: int
    length_penalty: float
    end_token_ids: dict[int, int | None]  # -> the stop reason that the answer then has
    num_logprobs: int | None = None  # to keep with each token of the answers
    _beams: list[Beam] = field(default_factory=lambda: [Beam()])
    _complete: list[Beam] = field(default_factory=list)

    @classmethod
    def of(cls, request: Request, length_penalty: float) -> BeamSearch:
        """What a checked request asks for, its `n` being the width."""
        params = request.params
        ends: dict[int, int | None] = {}
        if not params.ignore_eos:
            ends = {token: token if place else None for place, token in enumerate(request.eos_token_ids)}
        ends.update({token: token for token in params.stop_token_ids or ()})
        return cls(
            request.prompt_token_ids, params.n, params.max_tokens or 1, length_penalty, ends, num_logprobs=params.logprobs
        )

    @property
    def is_open(self) -> bool:
        """Whether any beam goes on."""
        return bool(self._beams)

    @property
    def prompts(self) -> list[list[int]]:
        """Prompt and answer of every beam that goes on."""
        return [[*self.prompt_token_ids, *beam.token_ids] for beam in self._beams]

    def take(self, positions: Sequence[TokenLogprobs]) -> None:
        """The logprobs behind each of `prompts`, in their order."""
        candidates: list[Beam] = []
        for beam, position in zip(self._beams, positions, strict=True):
            top = list(zip(position.token_ids[1:], position.logprobs[1:], strict=True))[: 2 * self.width]
            for rank, (token_id, logprob) in enumerate(top):
                candidates.append(self._longer(beam, token_id, logprob, self._shown(position, rank)))
        self._complete += [beam for beam in candidates if beam.finish_reason == "stop"]
        going_on = [beam for beam in candidates if beam.finish_reason != "stop"]
        self._beams = sorted(going_on, key=lambda beam: -beam.logprob)[: self.width]
        if self._beams and self._beams[0].finish_reason == "length":
            self._complete += self._beams
            self._beams = []

    def best(self) -> list[Beam]:
        """The answers, the best first; `width` of them, unless the vocabulary is smaller than that."""
        return sorted(self._complete, key=lambda beam: -self._score(beam))[: self.width]

    def _shown(self, position: TokenLogprobs, rank: int) -> tuple[TokenLogprobs, ...]:
        """The position's logprobs as they are for the token of that rank (from 0)."""
        if self.num_logprobs is None:
            return ()
        ids, values = position.token_ids, position.logprobs
        end = 1 + self.num_logprobs
        return (TokenLogprobs([ids[1 + rank], *ids[1:end]], [values[1 + rank], *values[1:end]], rank + 1),)

    def _longer(self, beam: Beam, token_id: int, logprob: float, shown: tuple[TokenLogprobs, ...]) -> Beam:
        token_ids = (*beam.token_ids, token_id)
        reason = "length" if len(token_ids) >= self.max_tokens else None
        stop_reason = self.end_token_ids.get(token_id)
        if token_id in self.end_token_ids:
            reason = "stop"
        return Beam(token_ids, (*beam.logprobs, *shown), beam.logprob + logprob, reason, stop_reason)

    def _score(self, beam: Beam) -> float:
        length = len(self.prompt_token_ids) + len(beam.token_ids) - (beam.finish_reason == "stop")
        return beam.logprob / float(length**self.length_penalty)


def step_request(request: Request, request_id: str, prompt_token_ids: list[int]) -> Request:
    """The request for one token behind a beam, of which only the logprobs matter."""
    params = msgspec.structs.replace(
        request.params, n=1, max_tokens=1, min_tokens=0, temperature=0.0, logprobs=2 * request.params.n, ignore_eos=True
    )
    return msgspec.structs.replace(request, request_id=request_id, prompt_token_ids=prompt_token_ids, params=params)


class BeamEngine:
    """An engine whose answers are beams: what `octavo.server.generation` needs of an `AsyncClient`."""

    def __init__(self, client: AsyncClient, length_penalty: float) -> None:
        self._client = client
        self._length_penalty = length_penalty

    async def run(self, request: Request, take: Take) -> None:
        """Call `take` with one delta for each of the n answers, the best first, when the search is over."""
        search, number, first = BeamSearch.of(request, self._length_penalty), 0, None
        while search.is_open:
            prompts = search.prompts
            names = [f"{request.request_id}/beam-{number + i}" for i in range(len(prompts))]
            number += len(prompts)
            steps = [step_request(request, *one) for one in zip(names, prompts, strict=True)]
            deltas = await self._all(steps)
            first = first or deltas[0]
            search.take([position for delta in deltas for position in delta.logprobs or ()])
        for index, beam in enumerate(search.best()):
            delta = RequestDelta(
                request_id=request.request_id,
                index=index,
                token_ids=list(beam.token_ids),
                logprobs=None if request.params.logprobs is None else list(beam.logprobs),
                finish_reason=beam.finish_reason,
                stop_reason=beam.stop_reason,
                num_cached_tokens=first.num_cached_tokens if first is not None else 0,
                scheduled_time=first.scheduled_time if first is not None else 0.0,
            )
            take(delta)

    def abort(self, request_id: str, index: int | None = None, reason: str = "abort") -> None:
        """Nothing of an answer that is there is still going on."""

    async def _all(self, steps: list[Request]) -> list[RequestDelta]:
        tasks = [asyncio.create_task(self._step(step)) for step in steps]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def _step(self, request: Request) -> RequestDelta:
        deltas: list[RequestDelta] = []
        await self._client.run(request, deltas.append)
        if not deltas:
            raise EngineError("The request ended without a token.")
        if deltas[0].error is not None:
            raise EngineError(deltas[0].error)
        return deltas[0]
