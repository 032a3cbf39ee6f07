"""An engine that stands still is seen from outside, and so is what it has in hand."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.config import EngineConfig
from octavo.engine.intake import Intake
from octavo.engine.operations import perform
from octavo.engine.watchdog import Watchdog
from octavo.server import debug
from octavo.server.stall import StallWatch
from tests.scripted import Script
from tests.server.process import server_process
from tests.server.running import running

TEXT = "/v1/completions"
BODY = {"prompt": "Hello", "max_tokens": 4, "ignore_eos": True}


def test_c163_health_is_503_while_nothing_moves_and_200_again_when_it_does(intake: Intake) -> None:
    now = 0.0
    with running(intake, Script(max_num_seqs=1)) as server:
        watch = StallWatch(server.state, Watchdog(10.0, lambda: now))

        def look_after(seconds: float) -> list[int]:
            nonlocal now
            now += seconds
            server.call(watch.look)
            return [server.http.get(path).status_code for path in ("/health", "/readyz", "/livez", "/ping")]

        assert look_after(1000) == [200] * 4, "nobody asks for anything"
        server.gate.open.clear()
        answers = [server.submit(TEXT, BODY) for _ in range(2)]
        server.until(lambda: server.metrics.received == 2)
        assert look_after(1) == look_after(9) == look_after(1) == [200] * 4
        assert look_after(1) == [503] * 4
        health = server.http.get("/health")
        assert (health.json()["status"], health.json()["phase"]) == ("stalled", "ready")
        message = health.json()["message"]
        assert message.startswith("The engine has given no token for 11 s (--engine-stall-timeout 10) while 2 requests are")
        assert server.http.get("/debug/state").json()["reason"] == message
        more = server.submit(TEXT, BODY)  # it is taken: the engine may move again
        server.gate.open.set()
        assert [answer.result().status_code for answer in (*answers, more)] == [200] * 3
        assert look_after(1) == [200] * 4


def test_c163_the_whole_server_tells_of_a_stuck_step(tmp_path: Path, smollm2: Path) -> None:
    gate = str(tmp_path / "gate")
    os.mkfifo(gate)
    script = tmp_path / "script.json"
    script.write_bytes(msgspec.json.encode(Script(stuck_at_step=(2, gate))))
    with server_process("-m", "tests.server.launch", str(script), str(smollm2), "10", "1") as server:
        server.wait_for_log("  ready ")
        stream = server.stream(TEXT, {**BODY, "max_tokens": 5})
        wanted = ["No step has ended for", '"running": [{"request_id": "cmpl-', "/health is 503 until it moves"]
        while not all(any(text in line for line in server.log) for text in wanted):
            server.wait_for_log("")
        assert server.http.get("/health").json()["status"] == "stalled"
        assert server.http.get("/debug/state").json()["engine"] is None
        with Path(gate).open("wb"):
            pass
        stream.result()
        server.wait_for_log("The engine moves again")
        assert server.http.get("/health").status_code == 200


@pytest.fixture
def keyed(intake: Intake) -> Any:
    """A server with a key, which computes one sequence at a time."""
    with running(intake, Script(max_num_seqs=1), EngineConfig(api_key=("secret",))) as server:
        server.http.headers["authorization"] = "Bearer secret"
        yield server


def test_the_state_shows_requests_blocks_and_queues(keyed: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = keyed.http.get("/debug/state").json()
    assert (idle["status"], idle["reason"]) == ("ready", "")
    assert idle["server"] == {"http_requests": 0, "sequences": 0, "prompt_tokens": 0}
    assert (idle["engine"]["running"], idle["engine"]["waiting"]) == ([], [])
    assert idle["engine"]["blocks"] == {"free": 64, "cached": 0, "held": 0, "total": 64}
    keyed.gate.open.clear()
    answers = []
    for n, received in ((1, 1), (2, 3)):
        answers.append(keyed.submit(TEXT, {**BODY, "prompt": [5] * 20, "n": n}))
        keyed.until(lambda received=received: keyed.metrics.received == received)
    keyed.gate.after(2)  # in which the second request joins the queue
    keyed.gate.open.set()
    keyed.until(lambda: keyed.metrics.generation_tokens == 3)
    monkeypatch.setattr(debug, "ANSWER_SECONDS", 0.05)
    busy = keyed.http.get("/debug/state").json()
    assert (busy["engine"], busy["reason"]) == (None, "The engine has been in one step for more than 0.05 s.")
    assert busy["server"] == {"http_requests": 2, "sequences": 3, "prompt_tokens": 20}
    asked, keyed.state.engine_state = keyed.state.engine_state, None
    engine = keyed.client._engine  # held inside of a step: its state stands still
    monkeypatch.setattr(keyed.client, "call", lambda method: perform(engine, method, ()))
    state = keyed.http.get("/debug/state").json()["engine"]
    keyed.gate.open.set()
    keyed.run(asyncio.wait_for(asked, 10))
    (first,) = state["running"]
    assert first["request_id"].startswith("cmpl-")
    assert (first["prompt_tokens"], first["blocks"], first["priority"]) == (20, 2, 0)
    assert [each["index"] for each in state["waiting"]] == [0, 1]
    assert (state["num_running"], state["num_waiting"], state["stats"]["num_received"]) == (1, 2, 3)
    assert [answer.result().status_code for answer in answers] == [200, 200]


def test_the_state_is_for_those_with_a_key(keyed: Any) -> None:
    assert keyed.http.get("/debug/state", headers={"authorization": "Bearer wrong"}).status_code == 401
    assert keyed.http.get("/debug/state").status_code == 200


def test_the_state_of_a_server_that_is_still_loading(intake: Intake) -> None:
    with running(intake) as server:
        client, server.state.client = server.state.client, None
        state = server.http.get("/debug/state").json()
        server.state.client = client
    assert (state["status"], state["engine"], state["reason"]) == ("loading", None, "The engine is not ready (starting).")
