"""The prefix cache over HTTP: what answers and metrics say of it, whose it is, and how it is emptied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.engine.intake import Intake
from tests.server.running import RunningServer, running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen"
BODIES = [
    (CHAT, {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 3}),
    (TEXT, {"prompt": WORDS, "max_tokens": 3}),
]


@pytest.fixture
def fresh(intake: Intake) -> Iterator[RunningServer]:
    with running(intake) as server:
        yield server


def found(server: RunningServer, path: str, body: Any, stream: bool = False) -> int:
    """Cached tokens of an answer; the rest of its usage adds up."""
    if stream:
        usage = server.events(path, {**body, "stream_options": {"include_usage": True}})[-1]["usage"]
    else:
        usage = server.post(path, body).json()["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
    tokens: int = usage["prompt_tokens_details"]["cached_tokens"]
    return tokens


@pytest.mark.parametrize(("path", "body"), BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_answers_say_how_much_was_cached(fresh: RunningServer, path: str, body: Any, stream: bool) -> None:
    assert [found(fresh, path, body, stream) for _ in range(2)] == [0, 32 if path == CHAT else 16]
    assert found(fresh, path, {**body, "n": 3, "temperature": 1}, stream) == (32 if path == CHAT else 16)


def test_the_numbers_of_several_prompts_are_added(fresh: RunningServer) -> None:
    body = {"prompt": [WORDS, WORDS, "Hello"], "max_tokens": 2}
    assert [found(fresh, TEXT, body) for _ in range(2)] == [16, 32]


def test_metrics_count_tokens_looked_up_and_found(fresh: RunningServer) -> None:
    body = BODIES[1][1]
    length = fresh.post(TEXT, body).json()["usage"]["prompt_tokens"]
    fresh.post(TEXT, body)
    fresh.until(fresh.idle)
    text = fresh.http.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = '{engine="0",model_name="m"}'
    assert float(values[f"vllm:prefix_cache_queries_total{labels}"]) == 2 * length
    assert float(values[f"vllm:prefix_cache_hits_total{labels}"]) == 16
    assert float(values[f"vllm:prompt_tokens_cached_total{labels}"]) == 16
    assert float(values[f"vllm:kv_cache_usage_perc{labels}"]) == 0, "what is only cached is not in use"


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_salts_share_nothing(fresh: RunningServer, path: str, body: Any) -> None:
    salted = [{**body, "cache_salt": salt} for salt in (None, "a", "b")]
    assert [found(fresh, path, each) for each in salted] == [0, 0, 0]
    assert all(found(fresh, path, each) for each in salted)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_an_empty_salt_is_refused(server: RunningServer, path: str, body: Any) -> None:
    response = server.post(path, {**body, "cache_salt": ""})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith("Parameter 'cache_salt' must be a non-empty string if provided.")
    assert response.json()["error"]["param"] == "cache_salt"


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/reset_prefix_cache?reset_running_requests=true"])
def test_it_can_be_emptied(fresh: RunningServer, path: str) -> None:
    assert [found(fresh, *BODIES[1]) for _ in range(2)] == [0, 16]
    assert fresh.http.post(path).status_code == 200
    assert fresh.integrity()["cached"] == 0
    assert found(fresh, *BODIES[1]) == 0


def test_running_requests_go_on_when_it_is_emptied(fresh: RunningServer) -> None:
    body = {**BODIES[1][1], "max_tokens": 200, "ignore_eos": True, "return_token_ids": True}
    alone = fresh.post(TEXT, body).json()["choices"][0]["token_ids"]
    for query in ("", "?reset_running_requests=true"):
        computed = fresh.runner.num_computed_tokens
        fresh.gate.open.clear()
        answer = fresh.submit(TEXT, body)
        fresh.until(lambda: fresh.metrics.num_unfinished == 1)
        reset = fresh.submit("/reset_prefix_cache" + query, None)
        fresh.gate.open.set()
        assert reset.result(10).status_code == 200
        assert answer.result(10).json()["choices"][0]["token_ids"] == alone
        assert fresh.runner.num_computed_tokens > computed


def test_emptying_needs_a_key_and_a_post(intake: Intake) -> None:
    with running(intake, config=EngineConfig(api_key=("secret",))) as server:
        assert server.http.post("/reset_prefix_cache").status_code == 401
        headers = {"authorization": "Bearer secret"}
        assert server.http.get("/reset_prefix_cache", headers=headers).status_code == 405
        assert server.http.post("/reset_prefix_cache", headers=headers).status_code == 200
