"""Clients that read slowly or not at all: the engine does not wait for them, and nothing of their answers is lost."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from octavo.engine.intake import Intake
from octavo.server.outlet import Outlet
from tests.scripted import Script
from tests.server.running import RunningServer, decode_events, running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "Hello", "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 400, "n": 3}
SMALL = 4096  # bytes of the system's buffers; an answer has some 250,000


@pytest.fixture(scope="module")
def server(intake: Intake) -> Iterator[RunningServer]:
    """A server whose connections take little at a time."""
    with running(intake, Script(num_blocks=256)) as server:
        server.listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
        yield server


def ask(server: RunningServer, path: str, **more: Any) -> socket.socket:
    """A connection that has asked for a stream and reads nothing."""
    data = json.dumps({**LONG, "ignore_eos": True, "temperature": 1, "seed": 5, "stream": True, **more}).encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
    connection.settimeout(10)
    connection.connect(server.listener.getsockname()[:2])
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-request-id: a\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
    return connection


def read(connection: socket.socket) -> list[Any]:
    """All events."""
    with connection, http.client.HTTPResponse(connection) as response:
        response.begin()
        return decode_events(response.read().decode())


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_engine_does_not_wait_for_a_reader(server: RunningServer, path: str) -> None:
    quick = [event["choices"] for event in read(ask(server, path))]
    server.until(server.idle)
    ended = server.metrics.success["length"]
    connection = ask(server, path)
    server.until(lambda: server.metrics.success["length"] == ended + 3)
    assert server.state.running, "most of it waits"
    assert server.buffered() < HIGH_WATER_LIMIT + SMALL
    slow = [event["choices"] for event in read(connection)]
    assert len(slow) > 1000, "an event for each token"
    assert sorted(map(repr, slow)) == sorted(map(repr, quick))
    for index in range(3):
        ours = [[part for part in choices if part["index"] == index] for choices in slow]
        assert [part for part in ours if part] == [c for c in quick if c[0]["index"] == index]
    server.until(server.idle)


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_one_that_leaves_takes_what_waits_with_it(server: RunningServer, path: str) -> None:
    ended = server.metrics.success["length"]
    connection = ask(server, path)
    server.until(lambda: server.metrics.success["length"] == ended + 3)
    assert server.state.running
    connection.close()
    server.until(lambda: not server.state.running)
    assert server.state.admission.counts() == {"sequences": 0, "prompt_tokens": 0}


def test_what_waits_does_not_outlive_its_answer() -> None:
    class Stuck:
        started = True
        write_now = staticmethod(lambda data: False)

        async def write(self, data: bytes) -> None:
            await asyncio.Event().wait()

    async def main() -> set[Any]:
        with closing(Outlet(Stuck(), ())) as outlet:  # type: ignore[arg-type]
            outlet.write(b"a")
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        return asyncio.all_tasks() - {asyncio.current_task()}

    assert asyncio.run(main()) == set()


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_deadline_is_told_behind_what_waits(server: RunningServer, path: str) -> None:
    server.gate.after(300)
    aborted, before = server.metrics.success["abort"], server.metrics.generation_tokens
    connection = ask(server, path, timeout=0.5, return_token_ids=True)
    server.until(lambda: server.metrics.success["abort"] == aborted + 3)
    server.gate.open.set()
    *events, error = read(connection)
    assert error["error"]["code"] == 504
    token_ids = [id for event in events for part in event["choices"] for id in part.get("token_ids") or ()]
    assert len(token_ids) == server.metrics.generation_tokens - before
    server.until(server.idle)
