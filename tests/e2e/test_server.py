"""The whole server with the real model: one answer whoever shares it, and how it takes what goes wrong."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.conftest import serve
from tests.server.hostile import assert_refused, hostile_bodies
from tests.server.process import ServerProcess
from tests.server.running import decode_events

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GOLDEN = {"prompt": "The golden request", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
LONG = {"prompt": "Once upon a time", "max_tokens": 450, "ignore_eos": True}
JSON = {"content-type": "application/json"}


def ids(server: ServerProcess, body: dict[str, Any]) -> list[int]:
    token_ids: list[int] = server.http.post(TEXT, json=body).json()["choices"][0]["token_ids"]
    return token_ids


def gauges(server: ServerProcess) -> dict[str, float]:
    """Metrics without further labels, by name without prefix."""
    text = server.http.get("/metrics").text
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {s.name.removeprefix("vllm:"): s.value for s in samples if set(s.labels) == {"model_name", "engine"}}


def test_the_answer_does_not_depend_on_who_shares_the_batch(octavo: ServerProcess) -> None:
    bodies = [
        {**GOLDEN, "prompt": f"{word} is", "max_tokens": 10 + i}
        for i, word in enumerate(("Water", "A cat", "Berlin", "Six"))
    ]
    alone = [ids(octavo, body) for body in bodies]
    together = octavo.threads.map(lambda body: ids(octavo, body), bodies * 3)
    assert list(together) == alone * 3


@pytest.mark.parametrize(
    "more",
    [
        {"logit_bias": {"28": -100, "253": -100}},
        {"allowed_token_ids": [28, 253, 905]},
        {"top_k": 1},
        {"temperature": 0},
    ],
    ids=lambda more: next(iter(more)),
)
def test_c83_logprobs_where_tokens_are_masked(octavo: ServerProcess, more: dict[str, Any]) -> None:
    """Finite numbers, in JSON as strict as it is."""
    text = {"prompt": "One, two,", "max_tokens": 3, "logprobs": 5, "temperature": 1.0, "seed": 1, **more}
    chat = {
        "messages": [{"role": "user", "content": "Count."}],
        **{**text, "logprobs": True, "top_logprobs": 5, "prompt": None},
    }
    for path, body in ((TEXT, text), (CHAT, chat)):
        answer = octavo.http.post(path, json=body)
        assert answer.status_code == 200
        values = json.loads(answer.text, parse_constant=lambda name: pytest.fail(name))["choices"][0]["logprobs"]
        shown = values.get("token_logprobs") or [entry["logprob"] for entry in values["content"]]
        assert all(-9999.0 <= value <= 0.0 for value in shown)


def test_c94_c95_seeds_make_draws_repeatable_and_n_different(octavo: ServerProcess) -> None:
    body = {**GOLDEN, "temperature": 1.0, "n": 3}
    runs = [octavo.http.post(TEXT, json={**body, "seed": seed}).json()["choices"] for seed in (7, 7, 8)]
    first, again, other = ([choice["token_ids"] for choice in run] for run in runs)
    assert first == again != other
    assert len({*map(tuple, first)}) == 3
    events = decode_events(octavo.http.post(TEXT, json={**body, "seed": 7, "stream": True}).text)
    parts = [choice for event in events for choice in event["choices"]]
    streamed = [[id for part in parts if part["index"] == i for id in part["token_ids"] or ()] for i in range(3)]
    assert streamed == first
    assert sorted(part["index"] for part in parts if part["finish_reason"] is not None) == [0, 1, 2]
    unseeded = [octavo.http.post(TEXT, json={**body, "n": 1}).json()["choices"][0]["token_ids"] for _ in range(2)]
    assert unseeded[0] != unseeded[1]


@pytest.mark.parametrize("count", [25, pytest.param(1000, marks=pytest.mark.nightly)])
def test_hostile_bodies_do_not_change_a_golden_answer(octavo: ServerProcess, count: int) -> None:
    golden = ids(octavo, GOLDEN)
    assert len(golden) == 12

    @settings(max_examples=count)
    @given(hostile_bodies)
    def refuse(hostile: tuple[str, bytes]) -> None:
        path, body = hostile
        if b'"model"' not in body:
            assert_refused(octavo.http.post(path, content=body, headers=JSON), path, body)

    refuse()
    assert ids(octavo, GOLDEN) == golden


def test_clients_that_leave_give_their_blocks_back(octavo: ServerProcess) -> None:
    with octavo.http.stream("POST", TEXT, json={**LONG, "n": 2, "stream": True}) as response:
        assert next(response.iter_bytes())
    with pytest.raises(httpx.ReadTimeout):
        octavo.http.post(TEXT, json={**LONG, "prompt": ["a", "b"]}, timeout=0.4)
    ids(octavo, GOLDEN)  # the engine takes an abort before any later request
    after = gauges(octavo)
    assert after["num_requests_running"] == after["num_requests_waiting"] == after["kv_cache_usage_perc"] == 0


def test_sigterm_lets_a_stream_end_and_leaves_no_process(smollm2: Path) -> None:
    with serve(smollm2) as server:
        server.wait_for_log("  ready ")
        running = server.stream(
            CHAT, {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 100, "ignore_eos": True}
        )
        engine = server.engine
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Stopping")
        assert server.http.post(TEXT, json=GOLDEN).status_code == 503
        events = decode_events("".join(f"{line}\n" for line in running.result()))
        assert events[-1]["choices"][0]["finish_reason"] == "length"
        assert server.end() == (0, [])
        assert not engine.is_running()


def test_a_killed_engine_is_told_within_seconds(smollm2: Path) -> None:
    with serve(smollm2) as server:
        server.wait_for_log("  ready ")
        running = server.stream(TEXT, LONG)
        server.engine.kill()
        killed = time.monotonic()
        events = decode_events("".join(f"{line}\n" for line in running.result()))
        assert events[-1]["error"]["code"] == 503
        assert server.http.get("/health").status_code == 503
        assert time.monotonic() - killed < 5
        assert server.end()[0] == 1
