"""From checked requests to their results: all of one HTTP request at once, counted as they come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.engine.async_client import Take
from octavo.engine.pooling_intake import Pair, PoolingIntake
from octavo.engine.request import Request, RequestDelta
from octavo.engine.truncation import Truncation
from octavo.errors import EngineError, OctavoError, ValidationError
from octavo.pooling.params import Pooled, PoolingParams
from octavo.pooling.settings import Pooling
from octavo.server.admission import Visit
from octavo.server.exchange import Exchange
from octavo.server.metrics import Metrics, SequenceEnd, SequenceTimes
from octavo.server.openai.schema import tell_truncation
from octavo.server.pooling import schema
from octavo.server.pooling.schema import PoolingFields
from octavo.server.state import ServerState, offload

MOST_NUMBERS = 1 << 26  # in one answer; in memory 4 bytes each, as text some 20
Vector = NDArray[np.float32]  # [n], or [t, n] of a task with a result for each token
_AT_ONCE = 512  # of one HTTP request in the engine, so that the others find their turn


class Engine(Protocol):
    """What is needed of `octavo.engine.async_client.AsyncClient`."""

    async def run(self, request: Request, take: Take) -> None:
        """Call `take` with the one delta of a pooling request. Cancelling it ends what is unfinished."""


async def pool(
    server: ServerState,
    exchange: Exchange,
    body: PoolingFields,
    inputs: Sequence[str | Sequence[int] | Pair],
    params: PoolingParams,
    most_numbers: int = MOST_NUMBERS,
    **options: Any,
) -> tuple[list[Vector], list[int]]:
    """The results of the inputs in their order, and how many tokens each had. Whatever can be refused is refused before
    anything is computed, with the place of the input, and so are inputs whose results together would be more than
    `most_numbers`. `options` are further ones of `PoolingIntake.request`."""
    client, model = server.ready()
    intake = PoolingIntake.of(model.intake)
    visit = server.let_in(exchange, len(inputs), body.timeout)
    id = schema.response_id("", exchange, body)
    truncations = [schema.truncation(body) for _ in inputs]
    more = {"cache_salt": body.cache_salt, "priority": body.priority, **options}

    def work() -> list[Request]:
        ids = [server.engine_id(id) for _ in inputs]
        return [_prepare(intake, i, ids[i], inputs, params, truncations[i], more) for i in range(len(inputs))]

    requests = await offload(exchange.num_body_bytes, work)
    tell_truncation(exchange, truncations)
    counts = [len(request.prompt_token_ids) for request in requests]
    _check_size(requests, intake.pooling, most_numbers)
    visit.add_prompts(sum(counts))
    return await _Run(client, server.metrics, visit).results(requests), counts


def _check_size(requests: Sequence[Request], pooling: Pooling, most: int) -> None:
    count = 0
    for request in requests:
        work = request.pooling
        assert work is not None
        count += (work.dimensions or pooling.size) * (len(request.prompt_token_ids) if work.per_token else 1)
    if count > most:
        raise ValidationError(
            f"The results would be {count} numbers, and one request can have at most {most} in this form; send fewer inputs "
            "at a time.",
            parameter="input",
        )


def _prepare(
    intake: PoolingIntake,
    i: int,
    id: str,
    inputs: Sequence[str | Sequence[int] | Pair],
    params: PoolingParams,
    truncation: Truncation | None,
    more: dict[str, Any],
) -> Request:
    name = f"input[{i}]" if len(inputs) > 1 else "input"
    try:
        return intake.request(id, inputs[i], params, name=name, truncation=truncation, **more)
    except ValidationError as error:
        if len(inputs) > 1 and name not in error.message:
            error.message = f"Input {i} of the list: {error.message}"
        raise


class _Run:
    """The requests of one HTTP request in the engine."""

    def __init__(self, engine: Engine, metrics: Metrics, visit: Visit) -> None:
        self._engine = engine
        self._metrics = metrics
        self._visit = visit
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def results(self, requests: Sequence[Request]) -> list[Vector]:
        """In their order. EngineError when one fails, EngineDeadError when the engine does; the others are aborted."""
        tasks = [asyncio.create_task(self._result(request)) for request in requests]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _result(self, request: Request) -> Vector:
        async with self._places:
            self._metrics.on_received(1)
            times, ending = SequenceTimes(request.arrival_time), "abort"
            num_cached = 0
            try:
                deltas: list[RequestDelta] = []
                await self._engine.run(request, deltas.append)
                if not deltas:
                    raise EngineError("The request ended in the engine without a result.")
                delta = deltas[0]
                if delta.finish_reason == "error" or delta.pooled is None:
                    raise EngineError(delta.error or "The request failed in the engine.")
                ending, num_cached = "stop", delta.num_cached_tokens
                times.scheduled, times.first_token = delta.scheduled_time, time.time()
                times.last_token = times.first_token
                self._metrics.on_prefill(len(request.prompt_token_ids), num_cached)
                return vector(delta.pooled)
            except OctavoError:
                ending = "error"
                raise
            finally:
                self._end(request, ending, times, num_cached)

    def _end(self, request: Request, reason: str, times: SequenceTimes, num_cached: int) -> None:
        num_tokens = len(request.prompt_token_ids)
        self._visit.prompt_computed(num_tokens)
        self._visit.sequence_ended()
        self._metrics.on_end(SequenceEnd(reason, times, num_tokens, 0, num_cached, 0, 0), time.time())
        self._metrics.on_request_end(1, 0)


def vector(pooled: Pooled) -> Vector:
    """The numbers that the engine sent."""
    return np.frombuffer(pooled.data, "<f4").reshape(pooled.shape)
