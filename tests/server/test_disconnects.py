"""A client that leaves: its sequences end within one step, whatever they were doing, and give their blocks back."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from octavo.engine.intake import Intake
from tests.scripted import Script
from tests.server.running import RunningServer, running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
LONG = {"prompt": "Hello", "messages": [{"role": "user", "content": "Say hi"}], "max_tokens": 400, "ignore_eos": True}


def connect(server: RunningServer, path: str, body: Any) -> socket.socket:
    """A connection that has sent a request and read nothing."""
    data = json.dumps(body).encode()
    connection = socket.create_connection(server.listener.getsockname()[:2], timeout=10)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    connection.sendall(head.encode() + data)
    return connection


@pytest.fixture(scope="module")
def slow(intake: Intake) -> Any:
    """A server that computes one sequence at a time."""
    with running(intake, Script(max_num_seqs=1, num_blocks=64)) as server:
        yield server


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["waiting", "prefill", "decode"])
def test_c119_the_request_ends_within_one_step(slow: RunningServer, path: str, stream: bool, phase: str) -> None:
    """The gate holds the engine inside of a step while the client leaves; after it there may be no further step for it."""
    first = None
    if phase == "decode":
        leaver = connect(slow, path, {**LONG, "stream": stream})
        slow.until(lambda: slow.metrics.engine.num_running == 1 and slow.metrics.generation_tokens > 3)
        slow.gate.open.clear()
    else:
        slow.gate.open.clear()
        received = slow.metrics.received
        if phase == "waiting":
            first = connect(slow, TEXT, {**LONG, "stream": True})
            slow.until(lambda: slow.metrics.received == received + 1)
        leaver = connect(slow, path, {**LONG, "stream": stream})
        slow.until(lambda: slow.metrics.received == received + (2 if first else 1))
    aborted = slow.metrics.success["abort"]
    leaver.close()
    slow.until(lambda: slow.metrics.success["abort"] == aborted + 1)
    if first is not None:
        first.close()
        slow.until(lambda: slow.metrics.success["abort"] == aborted + 2)
    steps = slow.runner.num_steps
    slow.gate.open.set()
    slow.until(slow.idle)
    assert slow.runner.num_steps <= steps + 1
    assert slow.integrity()["held"] == 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("behind", [b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /hea"])
def test_c119_with_another_request_behind_it(
    slow: RunningServer, stream: bool, behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    aborted = slow.metrics.success["abort"]
    leaver = connect(slow, TEXT, {**LONG, "stream": stream})
    leaver.sendall(behind)
    slow.until(lambda: slow.metrics.engine.num_running == 1 and slow.metrics.generation_tokens > 3)
    leaver.close()
    slow.until(lambda: slow.metrics.success["abort"] == aborted + 1)
    slow.until(slow.idle)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_many_requests_at_once_in_one_connection(slow: RunningServer) -> None:
    with socket.create_connection(slow.listener.getsockname()[:2], timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 2_000)
        answers = b""
        while answers.count(b"HTTP/1.1 200") < 2_000:
            answers += connection.recv(1 << 16)


@pytest.fixture(scope="module")
def steady(intake: Intake) -> Any:
    """A server whose longest answers take a second."""
    with running(intake, Script(step_seconds=0.002, num_blocks=256)) as server:
        yield server


@pytest.mark.parametrize("cycles", [12, pytest.param(300, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("more", "count"), [({"n": 3}, 3), ({"prompt": ["a", "b", "c"]}, 3), ({"prompt": ["a", "b"], "n": 2}, 4)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_c118_all_sequences_of_a_request_end(
    steady: RunningServer, more: Any, count: int, stream: bool, cycles: int
) -> None:
    for _ in range(cycles):
        aborted = steady.metrics.success["abort"]
        connection = connect(steady, TEXT, {**LONG, **more, "stream": stream})
        if stream:
            assert connection.recv(100).startswith(b"HTTP/1.1 200")
        else:
            steady.until(lambda: steady.metrics.num_unfinished == count)
        connection.close()
        steady.until(steady.idle)
        assert steady.metrics.success["abort"] == aborted + count
    assert steady.integrity()["held"] == 0


def test_a_client_that_leaves_within_its_request_is_nobody(server: RunningServer) -> None:
    connection = socket.create_connection(server.listener.getsockname()[:2], timeout=10)
    connection.sendall(
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 50\r\n\r\n{"
    )
    connection.close()
    key = ("/v1/completions", "POST", "4xx")
    server.until(lambda: server.metrics.http_requests.get(key, 0) >= 1)
    assert server.post(TEXT, {"prompt": "a", "max_tokens": 1}).status_code == 200


def test_a_connection_serves_many_requests(server: RunningServer) -> None:
    """The watch for a disconnect must not outlive its request on a connection that is kept."""
    expected = server.post(TEXT, {"prompt": "a", "max_tokens": 3}).json()["choices"]
    for stream in (True, False) * 5:
        response = server.post(TEXT, {"prompt": "a", "max_tokens": 3, "stream": stream})
        assert response.status_code == 200
        if not stream:
            assert response.json()["choices"] == expected
