"""The asyncio front of both clients: streams, disconnects, stop strings found outside, death."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from octavo.engine.async_client import AsyncClient
from octavo.engine.process import ProcessClient
from octavo.engine.request import EngineStats, RequestDelta
from octavo.errors import EngineDeadError, ValidationError
from tests.engine.clients import KINDS, make_client, tokens
from tests.scripted import FACTORY, Script, default_token, make_request, script_file

Body = Callable[[AsyncClient], Awaitable[None]]


@pytest.fixture(params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., None]:
    """Runs a coroutine function with an AsyncClient around a scripted engine."""

    def run(body: Body, **script: object) -> None:
        async def main() -> None:
            client = AsyncClient(make_client(request.param, tmp_path, Script(**script)))
            try:
                await asyncio.wait_for(body(client), 30)
            finally:
                await client.close()

        asyncio.run(main())

    return run


async def collect(client: AsyncClient, request_id: str, prompt: int = 5, **options: object) -> list[RequestDelta]:
    deltas: list[RequestDelta] = []
    await client.run(make_request(request_id, prompt, **options), deltas.append)
    return deltas


async def held_blocks(client: AsyncClient) -> int:
    return (await client.call("check_integrity"))["held"]


def expected(request_id: str, prompt: int, count: int) -> list[int]:
    request = make_request(request_id, prompt)
    return [default_token(request, 0, i) for i in range(count)]


def test_many_streams_at_once_get_their_own_ids(run: Callable[..., None]) -> None:
    async def body(client: AsyncClient) -> None:
        results = await asyncio.gather(*(collect(client, f"r{i}", 3 + i, max_tokens=20) for i in range(30)))
        for i, deltas in enumerate(results):
            assert tokens(deltas, f"r{i}") == expected(f"r{i}", 3 + i, 20)
            assert deltas[-1].finish_reason == "length"

    run(body, num_blocks=30)


def test_a_stream_ends_when_the_last_of_n_has_ended(run: Callable[..., None]) -> None:
    async def body(client: AsyncClient) -> None:
        deltas = await collect(client, "a", max_tokens=8, n=3, temperature=1.0)
        assert [len(tokens(deltas, "a", index)) for index in range(3)] == [8, 3, 8]

    run(body, outputs={"a/1": [5, 6, 999]}, row_errors={"a/1": 3})


def test_an_error_of_the_consumer_behind_a_stop_of_its_own_is_raised(run: Callable[..., None]) -> None:
    async def body(client: AsyncClient) -> None:
        def take(delta: RequestDelta) -> None:
            client.abort("a", 0, "stop")
            raise ZeroDivisionError("of the consumer")

        with pytest.raises(ZeroDivisionError, match="of the consumer"):
            await client.run(make_request("a", 5, max_tokens=400), take)

    run(body)


def test_an_error_of_the_consumer_ends_its_request_alone(run: Callable[..., None]) -> None:
    async def body(client: AsyncClient) -> None:
        taken: list[RequestDelta] = []

        def take(delta: RequestDelta) -> None:
            taken.append(delta)
            if len(taken) == 3:
                raise ZeroDivisionError("of the consumer")

        other = asyncio.create_task(collect(client, "other", max_tokens=40))
        with pytest.raises(ZeroDivisionError, match="of the consumer"):
            await client.run(make_request("a", 5, max_tokens=400), take)
        assert len(tokens(await other, "other")) == 40
        assert len(taken) == 3
        assert await held_blocks(client) == 0
        assert len(await collect(client, "a", max_tokens=2)) == 2  # the id is free again

    run(body, step_seconds=0.002)


@pytest.mark.parametrize("state", ["decoding", "in prefill", "waiting"])
def test_a_disconnect_frees_the_blocks_within_a_step(run: Callable[..., None], state: str) -> None:
    async def body(client: AsyncClient) -> None:
        if state == "waiting":
            other = asyncio.create_task(collect(client, "other", max_tokens=400))
            await next_stats(client)
        prompt = 400 if state == "in prefill" else 5
        task = asyncio.create_task(collect(client, "a", prompt, max_tokens=90))
        await next_stats(client)
        await next_stats(client)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        state_after = await client.call("debug_state")
        assert not [s for s in state_after["running"] + state_after["waiting"] if s["request_id"].startswith("a#")]
        if state == "waiting":
            assert len(tokens(await other, "other")) == 400
        assert await held_blocks(client) == 0

    run(body, max_num_seqs=1, max_num_batched_tokens=16, step_seconds=0.002)


async def next_stats(client: AsyncClient) -> EngineStats:
    """The stats of the next step."""
    arrived: asyncio.Future[EngineStats] = asyncio.get_running_loop().create_future()
    client.on_stats(lambda stats: None if arrived.done() else arrived.set_result(stats))
    return await arrived


def test_a_stop_found_outside_ends_one_sequence_or_the_stream(run: Callable[..., None]) -> None:
    async def body(client: AsyncClient) -> None:
        counts = {0: 0, 1: 0}

        def take(delta: RequestDelta) -> None:
            counts[delta.index] += 1
            if delta.index == 0 and counts[0] == 3:
                client.abort("a", 0, "stop")
            if delta.index == 1 and counts[1] == 6:
                client.abort("a", 1, "stop")

        await client.run(make_request("a", 5, max_tokens=400, n=2, temperature=1.0), take)
        assert counts == {0: 3, 1: 6}
        assert await held_blocks(client) == 0
        while client.stats.num_finished < 2:
            await next_stats(client)
        assert client.stats.num_aborted == 0

    run(body, step_seconds=0.002)


def test_another_task_may_abort_a_stream(run: Callable[..., None]) -> None:
    async def body(client: AsyncClient) -> None:
        task = asyncio.create_task(collect(client, "a", max_tokens=400))
        await next_stats(client)
        client.abort("a")
        client.abort("unknown")
        deltas = await task
        assert all(delta.finish_reason is None for delta in deltas)

    run(body, step_seconds=0.002)


def test_an_id_in_use_is_refused(run: Callable[..., None]) -> None:
    async def body(client: AsyncClient) -> None:
        task = asyncio.create_task(collect(client, "a", max_tokens=50))
        await next_stats(client)
        with pytest.raises(ValidationError, match="'a' is in use"):
            await collect(client, "a")
        assert len(await task) == 50

    run(body, step_seconds=0.002)


def test_close_ends_open_streams(run: Callable[..., None]) -> None:
    async def body(client: AsyncClient) -> None:
        task = asyncio.create_task(collect(client, "a", max_tokens=400))
        await next_stats(client)
        await client.close()
        with pytest.raises(EngineDeadError, match="The engine was closed"):
            await task
        with pytest.raises(EngineDeadError, match="The engine was closed"):
            await collect(client, "b")

    run(body, step_seconds=0.01)


def test_a_dead_engine_ends_every_stream_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        process = ProcessClient(script_file(tmp_path, Script(step_seconds=0.01)), factory=FACTORY)
        client = AsyncClient(process)
        phases: list[str] = []
        client.on_status(lambda status: phases.append(status.phase))
        assert (await client.wait_until_ready()).is_ready
        tasks = [asyncio.create_task(collect(client, f"r{i}", max_tokens=400)) for i in range(5)]
        await next_stats(client)
        os.kill(process.pid, signal.SIGKILL)
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 2.0)
        assert [type(result) for result in results] == [EngineDeadError] * 5
        assert client.status.is_dead
        assert phases == ["loading weights", "ready", "dead"]
        with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
            await client.wait_until_ready()
        await client.close()

    asyncio.run(main())


def test_a_failed_start_reaches_whoever_waits(tmp_path: Path) -> None:
    async def main() -> None:
        client = AsyncClient(ProcessClient(script_file(tmp_path, Script(start_error="no such model")), factory=FACTORY))
        with pytest.raises(EngineDeadError, match="no such model"):
            await asyncio.wait_for(client.wait_until_ready(), 20)
        await client.close()

    asyncio.run(main())
