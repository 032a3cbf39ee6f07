"""Who waits and for how long: priorities, full queues, deadlines."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from octavo.config import EngineConfig
from octavo.engine.intake import Intake
from octavo.engine.plan import StepPlan
from tests.scripted import Script
from tests.server.running import RunningServer, decode_events, running
from tests.server.test_disconnects import connect
from tests.server.test_metrics import Scrape

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]


def test_the_lower_priority_is_answered_first(intake: Intake) -> None:
    config = EngineConfig(scheduling_policy="priority")
    with running(replace(intake, scheduling_policy="priority"), Script(max_num_seqs=1), config) as server:
        server.gate.open.clear()
        admitted: list[int] = []

        def note(plan: StepPlan) -> None:
            admitted.extend(new.request.priority for new in plan.new_rows)
            server.gate(plan)

        server.runner.on_step = note
        bodies = [{"prompt": "a", "priority": 5}, {"messages": HI, "priority": -1}, {"prompt": ["b"]}]
        answers = []
        for number, body in enumerate(bodies):
            answers.append(server.submit(CHAT if "messages" in body else TEXT, {**body, "max_tokens": 2}))
            server.until(lambda number=number: server.metrics.received == number + 1)
        server.gate.open.set()
        assert [answer.result().status_code for answer in answers] == [200] * 3
        assert admitted == [5, -1, 0, 5]


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_priority_without_the_policy_is_refused(server: RunningServer, path: str) -> None:
    response = server.post(path, {"prompt": "a", "messages": HI, "priority": 3})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "priority"
    assert "--scheduling-policy priority" in response.json()["error"]["message"]
    assert server.post(path, {"prompt": "a", "messages": HI, "priority": 0, "max_tokens": 1}).status_code == 200


FULL = {"prompt": "Hello", "messages": HI, "max_tokens": 3, "ignore_eos": True}


@pytest.fixture
def full(intake: Intake) -> Iterator[RunningServer]:
    """A server for four sequences and 40 prompt tokens at a time, whose gate is closed."""
    with running(intake, Script(), EngineConfig(max_num_queued_reqs=4, max_num_queued_tokens=40)) as server:
        server.gate.open.clear()
        yield server


def assert_full(response: httpx.Response, option: str, text: str) -> None:
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("ServiceUnavailableError", 503)
    assert text in error["message"]
    assert f"--{option.replace('_', '-')}" in error["message"]


def nothing_is_counted(server: RunningServer) -> bool:
    return server.state.admission.counts() == {"sequences": 0, "prompt_tokens": 0}


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_server_takes_no_more_sequences(full: RunningServer, path: str, stream: bool) -> None:
    answers = [full.submit(TEXT, {**FULL, "n": 2}), full.submit(TEXT, {**FULL, "prompt": ["a"], "stream": True})]
    full.until(lambda: full.metrics.received == 3)
    assert full.http.get("/health").status_code == 200
    for more in ({"n": 2}, {"n": 3}, {"prompt": ["a", "b"]} if path == TEXT else {"n": 2}):
        refused = full.post(path, {**FULL, **more, "stream": stream})
        assert_full(refused, "max_num_queued_reqs", "3 requests are running or waiting")
    answers.append(full.submit(path, {**FULL, "stream": stream}))  # the fourth still fits
    full.until(lambda: full.metrics.received == 4)
    full.gate.open.set()
    assert [answer.result().status_code for answer in answers] == [200] * 3
    full.until(full.idle)
    assert full.post(path, {**FULL, "n": 4}).status_code == 200
    full.until(lambda: nothing_is_counted(full))
    assert full.metrics.rejections == {"max_num_queued_reqs": 3, "max_num_queued_tokens": 0}


def test_prompts_that_are_to_be_computed_are_bounded_by_their_tokens(full: RunningServer) -> None:
    long = {**FULL, "prompt": [5] * 30}
    answer = full.submit(TEXT, {**long, "max_tokens": 400})
    full.until(lambda: full.metrics.received == 1)
    assert_full(full.post(TEXT, long), "max_num_queued_tokens", "30 prompt tokens are to be computed first")
    assert_full(full.post(TEXT, {**long, "stream": True}), "max_num_queued_tokens", "30 prompt tokens")
    full.gate.open.set()
    full.until(lambda: full.metrics.generation_tokens > 0)  # its prompt is computed: what it goes on with is no queue
    assert full.post(TEXT, long).status_code == 200
    assert full.metrics.rejections["max_num_queued_tokens"] == 2
    answer.result()
    full.until(lambda: nothing_is_counted(full))


def test_who_finds_nothing_is_let_in_however_large(full: RunningServer) -> None:
    full.gate.open.set()
    assert full.post(TEXT, {**FULL, "prompt": [5] * 100, "n": 9}).status_code == 200


def test_nothing_stays_counted_whatever_the_end(full: RunningServer) -> None:
    """A client that leaves, one whose time is over, parameters that are wrong, a prompt that does not fit."""
    leaver = connect(full, TEXT, {**FULL, "stream": True})
    full.until(lambda: full.metrics.received == 1)
    leaver.close()
    full.until(lambda: full.metrics.success["abort"] == 1)
    for status, more in ((504, {"timeout": 0.01}), (400, {"prompt": [5] * 600}), (400, {"n": -1}), (400, {"timeout": 0})):
        assert full.post(TEXT, {**FULL, **more}).status_code == status
    full.until(lambda: nothing_is_counted(full))


def test_a_response_in_the_background_is_counted_until_it_ends(full: RunningServer) -> None:
    body = {"input": "Hello", "max_output_tokens": 2, "background": True}
    refused = full.post("/v1/responses", {**body, "input": "Hello " * 600})
    assert (refused.status_code, full.state.admission.counts()["sequences"]) == (400, 0)
    assert full.post("/v1/responses", body).status_code == 200
    assert full.state.admission.counts()["sequences"] == 1
    full.gate.open.set()
    full.until(lambda: nothing_is_counted(full))


def test_refusals_are_a_metric(full: RunningServer) -> None:
    answer = full.submit(TEXT, {**FULL, "n": 4})
    full.until(lambda: full.metrics.received == 4)
    assert full.post(TEXT, FULL).status_code == 503
    scrape = Scrape(full)
    for reason, count in (("max_num_queued_reqs", 1), ("max_num_queued_tokens", 0)):
        assert scrape("admission_rejections_total", model_name="m", reason=reason) == count
    full.gate.open.set()
    answer.result()


def test_many_refusals_are_few_lines(full: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    answer = full.submit(TEXT, {**FULL, "n": 4})
    full.until(lambda: full.metrics.received == 4)
    with caplog.at_level(logging.INFO, "octavo.server.observe"):
        for _ in range(25):
            assert full.post(TEXT, FULL).status_code == 503
        full.state.stopping = True
        assert full.post(CHAT, FULL).status_code == 503
        full.state.stopping = False
        full.until(lambda: full.metrics.http_requests.get((CHAT, "POST", "5xx")) == 1)  # counted when it is logged
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        f"POST {TEXT} 503 (full); refused so: 1",
        f"POST {TEXT} 503 (full); refused so: 10",
        f"POST {CHAT} 503 (stopping); refused so: 1",
    ]
    full.gate.open.set()
    answer.result()


@pytest.fixture
def slow(intake: Intake) -> Iterator[RunningServer]:
    """A server that computes one sequence at a time."""
    with running(intake, Script(max_num_seqs=1)) as server:
        yield server


@pytest.fixture
def deadlines(slow: RunningServer, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What is to happen when the time of a request is over that has a million seconds: called by the test."""
    due: list[Callable[[], None]] = []
    call_later = slow._loop.call_later

    def note(delay: float, callback: Callable[..., None], *arguments: Any, **more: Any) -> asyncio.TimerHandle:
        if delay > 900_000:
            due.append(callback)
        return call_later(delay, callback, *arguments, **more)

    monkeypatch.setattr(slow._loop, "call_later", note)
    return due


def assert_too_late(error: dict[str, Any], seconds: str = "1e+06") -> None:
    assert (error["type"], error["code"], error["param"]) == ("TimeoutError", 504, "timeout")
    assert error["message"] == f"The request's time is over: its answer did not end within {seconds} s."


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["waiting", "prefill"])
def test_an_answer_that_has_not_begun_in_time_is_an_error(
    slow: RunningServer, deadlines: list[Callable[[], None]], path: str, stream: bool, phase: str
) -> None:
    slow.gate.open.clear()
    first = slow.submit(TEXT, {**FULL, "max_tokens": 400}) if phase == "waiting" else None
    slow.until(lambda: slow.metrics.received == (1 if first else 0))
    late = slow.submit(path, {**FULL, "stream": stream, "timeout": 1e6})
    slow.until(lambda: slow.metrics.received == (2 if first else 1))
    slow.call(deadlines[0])
    assert late.result().status_code == 504
    assert_too_late(late.result().json()["error"])
    assert slow.metrics.success["abort"] == 1
    steps = slow.runner.num_steps
    slow.gate.open.set()
    if first is not None:
        assert first.result().status_code == 200
    slow.until(slow.idle)
    assert first or slow.runner.num_steps <= steps + 1, "it ends within one step"
    assert slow.integrity()["held"] == 0


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_stream_whose_time_is_over_ends_with_the_error(
    slow: RunningServer, deadlines: list[Callable[[], None]], path: str
) -> None:
    slow.gate.after(5)
    stream = slow.submit(path, {**FULL, "max_tokens": 400, "timeout": 1e6, "stream": True, "return_token_ids": True})
    slow.until(lambda: slow.metrics.generation_tokens == 5)
    slow.call(deadlines[0])
    events = decode_events(stream.result().text)
    assert sum(len(event["choices"][0].get("token_ids") or []) for event in events[:-1]) == 5
    assert_too_late(events[-1]["error"])
    slow.gate.open.set()
    slow.until(slow.idle)


def test_the_header_and_the_field_the_shorter_counts(slow: RunningServer) -> None:
    slow.gate.open.clear()
    for header, field in (("0.03", None), ("0.03", 60), ("60", 0.03)):
        response = slow.post(TEXT, {**FULL, "timeout": field}, x_request_timeout=header)
        assert_too_late(response.json()["error"], "0.03")
    slow.gate.open.set()
    assert slow.post(TEXT, {**FULL, "timeout": 1e300}, x_request_timeout="1e9").status_code == 200


@pytest.mark.parametrize("wrong", ["0", "-1", "soon", "nan", "inf", ""])
def test_times_that_are_none(server: RunningServer, wrong: str) -> None:
    response = server.post(TEXT, FULL, x_request_timeout=wrong)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "X-Request-Timeout")
    response = server.post(TEXT, {**FULL, "timeout": wrong})
    assert response.status_code == 400
    assert "timeout" in response.json()["error"]["param"]


def test_an_answer_in_time_is_whole(server: RunningServer) -> None:
    timely = [server.post(path, {**FULL, "timeout": 60}) for path in (CHAT, TEXT)]
    assert [response.status_code for response in timely] == [200, 200]
    assert [event for event in server.events(TEXT, {**FULL, "timeout": 60}) if "error" in event] == []
