"""Whatever is sent, the answer is a 4xx in the envelope, and the next good request is answered as before."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from hypothesis import given, settings

from octavo.server import endpoint
from octavo.server.body import parse_body
from tests.server.hostile import CHAT, DETOKENIZE, GOOD, TEXT, TOKENIZE, assert_refused, hostile_bodies, json_values, paths
from tests.server.running import RunningServer

GOLDEN = {"prompt": "The golden request", "max_tokens": 8, "temperature": 0, "return_token_ids": True}
JSON = {"content-type": "application/json"}


def golden_ids(server: RunningServer) -> list[int]:
    ids: list[int] = server.post(TEXT, GOLDEN).json()["choices"][0]["token_ids"]
    return ids


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.nightly)])
def test_hostile_bodies_are_refused_and_change_nothing(server: RunningServer, count: int) -> None:
    before = golden_ids(server)
    assert len(before) == 8
    received = server.metrics.received

    @settings(max_examples=count)
    @given(hostile_bodies)
    def refuse(hostile: tuple[str, bytes]) -> None:
        path, body = hostile
        assert_refused(server.http.post(path, content=body, headers=JSON), path, body)

    refuse()
    assert server.metrics.received == received
    assert golden_ids(server) == before


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.nightly)])
def test_no_body_is_a_fault(server: RunningServer, count: int) -> None:
    """Bodies of any content: an answer or a refusal, never a 500; and no stream breaks off."""

    @settings(max_examples=count)
    @given(paths, json_values, json_values)
    def send(path: str, first: Any, second: Any) -> None:
        members = {**(first if isinstance(first, dict) else {"user": first}), "stop": second}
        response = server.post(path, {**members, **GOOD[path]})
        assert response.status_code in (200, 400), response.text

    send()
    server.until(server.idle)


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": "a\u0000b"}]},
        {"messages": [{"role": "user", "content": "\ufeffhi"}]},
        {"messages": [{"role": "user", "content": "👩\u200d👩\u200d👧 " * 20}]},
        {"prompt": "a\u0000b"},
        {"prompt": "\u200d" * 100},
    ],
)
def test_strange_but_valid_text_is_text(server: RunningServer, body: Any) -> None:
    path = CHAT if "messages" in body else TEXT
    assert server.post(path, {**body, "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop", ["x"] * 500_000),
        ("stop", "x" * 1_000_000),
        ("logit_bias", {str(i): 1 for i in range(100_000)}),
        ("stop_token_ids", list(range(10_000))),
        ("bad_words", ["x"] * 50_000),
        ("tools", [{"type": "function", "function": {"name": f"f{i}"}} for i in range(10_000)]),
        ("chat_template_kwargs", {f"x{i}": 1 for i in range(1_000)}),
        ("prompt", ["x"] * 100_000),
        ("prompt", "x" * 5_000_000),
        ("messages", [{"role": "user", "content": "x" * 5_000_000}]),
    ],
)
def test_huge_values_are_refused_by_limits(server: RunningServer, path: str, field: str, value: Any) -> None:
    if (field in ("tools", "messages", "chat_template_kwargs")) != (path == CHAT):
        path = CHAT if path == TEXT else TEXT
    body = json.dumps({**GOOD[path], field: value}).encode()
    assert_refused(server.http.post(path, content=body, headers=JSON), path, body)


@pytest.mark.parametrize(
    ("path", "body"), [(TOKENIZE, {"prompt": "x" * 2_000_000}), (DETOKENIZE, {"tokens": [5] * 2_000_000})]
)
def test_only_so_much_is_tokenized(server: RunningServer, path: str, body: dict[str, Any]) -> None:
    assert_refused(server.post(path, body), path, b"")


def test_a_large_body_does_not_stop_the_others(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a large body is parsed, which takes as long as this test says, a probe is answered."""
    parsing, answered = threading.Event(), threading.Event()

    def parse(struct: Any, body: bytes) -> Any:
        parsing.set()
        assert answered.wait(10)
        return parse_body(struct, body)

    monkeypatch.setattr(endpoint, "parse_body", parse)
    large = server.submit(TEXT, {**GOOD[TEXT], "user": "x" * 100_000})
    assert parsing.wait(10)
    assert server.http.get("/health").status_code == 200
    answered.set()
    assert large.result().status_code == 200


def test_deep_values_in_fields_of_any_type(server: RunningServer) -> None:
    deep: Any = "x"
    for _ in range(900):
        deep = [deep]
    for path, field in (
        (CHAT, "chat_template_kwargs"),
        (CHAT, "documents"),
        (CHAT, "messages"),
        (TEXT, "prompt"),
        (TOKENIZE, "messages"),
    ):
        value = {"a": deep} if field == "chat_template_kwargs" else deep
        response = server.post(path, {**GOOD[path], field: value})
        assert response.status_code in (200, 400), response.text
    assert server.post(DETOKENIZE, {"tokens": deep}).status_code == 400
