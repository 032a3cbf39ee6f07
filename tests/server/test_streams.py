"""Streams against whole answers, and how they end: exactly one [DONE] whatever happens (`events` asserts it)."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from octavo.engine.intake import Intake
from tests.scripted import Script
from tests.server.running import ByRequestId, RunningServer, decode_events, running

HI = [{"role": "user", "content": "Say hi"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def script(server: RunningServer, id: str, text: str) -> list[int]:
    tokenizer = server.state.model.intake.tokenizer
    server.outputs[id] = tokenizer.encode(text, add_special_tokens=False)
    return server.outputs[id]


def joined(events: list[Any], index: int = 0) -> str:
    parts = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    return "".join(part["text"] if "text" in part else part["delta"]["content"] for part in parts)


def last_choice(events: list[Any], index: int = 0) -> dict[str, Any]:
    """The choice's only part with a finish_reason, which must be its last."""
    parts = [choice for event in events for choice in event["choices"] if choice["index"] == index]
    assert [part["finish_reason"] is not None for part in parts] == [False] * (len(parts) - 1) + [True]
    return parts[-1]


@pytest.mark.parametrize(("path", "prompt"), [(CHAT, {"messages": HI}), (TEXT, {"prompt": "Hello"})])
@pytest.mark.parametrize(
    ("more", "reason", "stop_reason", "expected"),
    [
        ({"max_tokens": 4}, "length", None, "ABC QR"),
        ({"max_tokens": 40, "stop": ["QRSTUVW"]}, "stop", "QRSTUVW", "ABC "),
        ({"max_tokens": 40, "stop": "QRSTUVW", "include_stop_str_in_output": True}, "stop", "QRSTUVW", "ABC QRSTUVW"),
        ({"max_tokens": 40, "stop": ["T", "zz"]}, "stop", "T", "ABC QRS"),
        ({"max_tokens": 40}, "stop", None, "ABC QRSTUVW XYZ"),
        ({"max_tokens": 40, "stop_token_ids": [2], "ignore_eos": True}, "stop", 2, "ABC QRSTUVW XYZ"),
    ],
)
def test_c122_streams_and_whole_answers_are_the_same(
    server: RunningServer, path: str, prompt: Any, more: Any, reason: str, stop_reason: Any, expected: str
) -> None:
    tokenizer = server.state.model.intake.tokenizer
    ids = [id for part in ("ABC", " Q", "R", "S", "T", "UV", "W", " XYZ") for id in tokenizer.encode(part, False)]
    server.outputs["stop"] = [*ids, 2]
    body = {**prompt, **more, "return_token_ids": True, "logprobs": 1 if path == TEXT else True}
    server.until(server.idle)
    before = server.metrics.engine
    whole = server.post(path, body, x_request_id="stop").json()["choices"][0]
    events = server.events(path, {**body, "stream_options": {"include_usage": True}}, x_request_id="stop")
    text = whole["text"] if path == TEXT else whole["message"]["content"]
    if reason == "length":
        expected = tokenizer.decode(ids[:4])
    assert text == joined(events) == expected
    last = last_choice(events)
    assert (
        (whole["finish_reason"], whole["stop_reason"])
        == (last["finish_reason"], last["stop_reason"])
        == (reason, stop_reason)
    )
    parts = [choice for event in events for choice in event["choices"]]
    assert [id for part in parts for id in part.get("token_ids") or []] == whole["token_ids"]
    assert logprobs(parts) == logprobs([whole])
    assert all(event["choices"] or "usage" in event for event in events)
    server.until(server.idle)
    after = server.metrics.engine
    assert (after.num_finished - before.num_finished, after.num_aborted - before.num_aborted) == (2, 0)
    assert server.integrity()["held"] == 0


def logprobs(parts: list[Any]) -> list[float]:
    result: list[float] = []
    for part in parts:
        entries = part["logprobs"]
        if entries is not None:
            result += (
                entries["token_logprobs"] if "token_logprobs" in entries else [e["logprob"] for e in entries["content"]]
            )
    return result


@pytest.mark.parametrize(("path", "prompt"), [(CHAT, {"messages": HI}), (TEXT, {"prompt": ["Hello", "Bye"]})])
def test_c122_each_of_n_has_its_own_end(server: RunningServer, path: str, prompt: Any) -> None:
    n = 3
    for index in range(n):
        server.outputs[f"many/{index}"] = [*range(40 + index, 40 + 3 * (index + 1)), 2]
    body = {**prompt, "n": n, "max_tokens": 20, "temperature": 1, "return_token_ids": True}
    whole = server.post(path, body, x_request_id="many").json()
    events = server.events(path, {**body, "stream_options": {"include_usage": True}}, x_request_id="many")
    numbers = [choice["index"] for choice in whole["choices"]]
    assert numbers == list(range(n * (2 if path == TEXT else 1)))
    for choice in whole["choices"]:
        index = choice["index"]
        assert len(choice["token_ids"]) == 2 * (index % n) + 4
        assert joined(events, index) == (choice["text"] if path == TEXT else choice["message"]["content"])
        assert last_choice(events, index)["finish_reason"] == choice["finish_reason"] == "stop"
    assert events[-1]["choices"] == []
    usage = whole["usage"]
    names = ("prompt_tokens", "total_tokens", "completion_tokens")
    assert [events[-1]["usage"][name] for name in names] == [usage[name] for name in names]
    assert usage["completion_tokens"] == sum(len(choice["token_ids"]) for choice in whole["choices"])


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_c122_an_error_in_the_middle_is_an_event_before_done(intake: Intake, path: str) -> None:
    with running(intake, Script(row_errors=ByRequestId({"bad": 3}))) as server:
        events = server.events(path, {"messages": HI, "prompt": "a", "max_tokens": 9}, x_request_id="bad")
        assert events[-1]["error"]["type"] == "InternalServerError"
        assert events[-1]["error"]["code"] == 500
        assert "position 3" in events[-1]["error"]["message"]
        assert all("error" not in event for event in events[:-1])
        server.until(server.idle)
        assert server.metrics.success["error"] == 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_before_the_first_token_is_a_plain_error(intake: Intake, stream: bool) -> None:
    with running(intake, Script(row_errors=ByRequestId({"bad": 0}))) as server:
        response = server.post(TEXT, {"prompt": ["a", "b"], "n": 2, "stream": stream}, x_request_id="bad")
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "InternalServerError"
        server.until(server.idle)


def test_one_failing_request_leaves_the_others_alone(intake: Intake) -> None:
    body = {"prompt": "a", "max_tokens": 8}
    with running(intake, Script(row_errors=ByRequestId({"bad": 2}))) as server:
        expected = server.post(TEXT, body).json()["choices"][0]["text"]
        server.gate.open.clear()
        good = server.submit(TEXT, {**body, "stream": True})
        bad = server.submit(TEXT, body, x_request_id="bad")
        server.until(lambda: server.metrics.received == 3)
        server.gate.open.set()
        assert bad.result().status_code == 500
        assert joined(decode_events(good.result().text)) == expected


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_a_fault_in_the_middle_is_an_event_without_its_inside(intake: Intake, path: str, caplog: Any) -> None:
    with running(intake) as server:
        on_tokens, calls = server.metrics.on_tokens, []

        def break_later(*arguments: Any) -> None:
            calls.append(arguments)
            on_tokens(*arguments)
            if len(calls) > 2:
                raise ZeroDivisionError("secret")

        server.metrics.on_tokens = break_later  # type: ignore[method-assign]
        events = server.events(path, {"messages": HI, "prompt": "a", "max_tokens": 9})
        assert events[-1]["error"] == {
            "message": "Internal server error",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
        assert "secret" in caplog.text
        server.until(server.idle)


@pytest.mark.parametrize("prompts", [["Hello", "Hello"], [[19556], [19556]]])
def test_echo(server: RunningServer, prompts: Any) -> None:
    ids = script(server, "echo", " world")
    body = {"prompt": prompts, "max_tokens": len(ids), "echo": True, "logprobs": 1}
    whole = server.post(TEXT, body, x_request_id="echo").json()["choices"]
    events = server.events(TEXT, body, x_request_id="echo")
    for index in range(2):
        assert whole[index]["text"] == joined(events, index) == "Hello world"
        parts = [choice["logprobs"] for event in events for choice in event["choices"] if choice["index"] == index]
        streamed = {name: [value for part in parts for value in part[name]] for name in whole[index]["logprobs"]}
        assert streamed == whole[index]["logprobs"]
        assert streamed["text_offset"][1] == len("Hello")


def test_c101_echo_alone_scores_the_prompt(server: RunningServer) -> None:
    body = {"prompt": [19556, 905], "max_tokens": 0, "echo": True, "logprobs": 1}
    whole = server.post(TEXT, body).json()
    choice = whole["choices"][0]
    assert choice["text"] == "Hello world"
    assert choice["logprobs"]["token_logprobs"] == [None, -1.0]
    assert whole["usage"]["completion_tokens"] == 0
    events = server.events(TEXT, body)
    assert joined(events) == "Hello world"


def test_c101_the_context_is_used_to_its_last_token(server: RunningServer) -> None:
    full = {"prompt": [5] * 512, "max_tokens": 0, "echo": True, "logprobs": 1}
    scored = server.post(TEXT, full).json()["choices"][0]
    assert len(scored["logprobs"]["tokens"]) == 512
    assert scored["finish_reason"] == "length"
    almost = server.post(TEXT, {"prompt": [5] * 511, "return_token_ids": True}).json()["choices"][0]
    assert (len(almost["token_ids"]), almost["finish_reason"]) == (1, "length")


def test_continued_message_is_echoed(server: RunningServer) -> None:
    script(server, "go-on", " you?")
    messages = [*HI, {"role": "assistant", "content": "How are"}]
    body = {
        "messages": messages,
        "max_tokens": 2,
        "echo": True,
        "add_generation_prompt": False,
        "continue_final_message": True,
    }
    whole = server.post(CHAT, {**body, "return_prompt_text": True}, x_request_id="go-on").json()
    assert whole["choices"][0]["message"]["content"] == "How are you?"
    assert whole["prompt_text"].endswith("<|im_start|>assistant\nHow are")
    assert joined(server.events(CHAT, body, x_request_id="go-on")) == "How are you?"


def test_prompt_ids_come_once(server: RunningServer) -> None:
    events = server.events(CHAT, {"messages": HI, "max_tokens": 2, "return_token_ids": True, "return_prompt_text": True})
    assert len(events[0]["prompt_token_ids"]) == 32
    assert "Say hi" in events[0]["prompt_text"]
    assert all("prompt_token_ids" not in event for event in events[1:])
    events = server.events(TEXT, {"prompt": "Hello", "max_tokens": 2, "return_token_ids": True})
    assert [event["choices"][0]["prompt_token_ids"] for event in events] == [[19556], None]


def test_tokens_may_be_named_by_id(server: RunningServer) -> None:
    server.outputs["ids"] = [29, 1717]
    body = {"prompt": "a", "max_tokens": 2, "logprobs": 0, "return_tokens_as_token_ids": True}
    names = server.post(TEXT, body, x_request_id="ids").json()["choices"][0]["logprobs"]["tokens"]
    assert names == ["token_id:29", "token_id:1717"]


def test_every_event_is_one_line_of_strict_json(server: RunningServer) -> None:
    text = 'Line\nbreak \u2028 "quoted" 東京 🙂 é'
    ids = script(server, "lines", text)
    events = server.events(TEXT, {"prompt": "a", "max_tokens": len(ids)}, x_request_id="lines")
    assert joined(events) == text
    assert "\ufffd" not in json.dumps(events, ensure_ascii=False)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_of_http_1_0_gets_no_chunks(server: RunningServer, stream: bool) -> None:
    whole = {"prompt": "Hello", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
    expected = server.post(TEXT, whole).json()["choices"][0]["text"]
    body = json.dumps({**whole, "stream": stream}).encode()
    head = f"POST {TEXT} HTTP/1.0\r\nconnection: keep-alive\r\ncontent-type: application/json\r\n"
    with socket.create_connection(server.listener.getsockname()[:2], timeout=10) as connection:
        connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    fields, _, content = received.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in fields
    assert b"transfer-encoding" not in fields
    assert (b"\r\ncontent-length: %d" % len(content) in fields) != stream
    text = joined(decode_events(content.decode())) if stream else json.loads(content)["choices"][0]["text"]
    assert text == expected
