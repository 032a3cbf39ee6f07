"""Every refusal, with its status and exact text, before the first byte of a stream."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest

from octavo.config import EngineConfig
from octavo.engine.intake import Intake
from octavo.server.body import MAX_BODY_BYTES, MAX_STRUCTURE
from octavo.server.http import MAX_HEAD_BYTES
from tests.server.running import RunningServer, running

HI = [{"role": "user", "content": "Say hi"}]
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TOO_LONG = (
    "This model's maximum context length is 512 tokens. However, your prompt contains at least 513 input tokens, which "
    "exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
    "(parameter=input_tokens, value=513)"
)
WORDS = "word " * 600

REFUSED: list[tuple[str, dict[str, Any], str, str | None]] = [
    (CHAT, {"messages": [{"role": "user", "content": WORDS}]}, TOO_LONG, "input_tokens"),
    (TEXT, {"prompt": WORDS}, TOO_LONG, "input_tokens"),
    (TEXT, {"prompt": [1] * 512}, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", "max_tokens"),
    (
        CHAT,
        {"messages": HI, "max_tokens": 1000},
        "max_tokens=1000 cannot be greater than max_model_len=512. Please request fewer output tokens. "
        "(parameter=max_tokens, value=1000)",
        "max_tokens",
    ),
    (
        CHAT,
        {"messages": HI, "max_completion_tokens": 1000},
        "max_completion_tokens=1000 cannot be greater than max_model_len=512. Please request fewer output tokens. "
        "(parameter=max_completion_tokens, value=1000)",
        "max_completion_tokens",
    ),
    (CHAT, {"messages": []}, "Cannot apply chat template to an empty conversation. Provide at least one message.", None),
    (TEXT, {"prompt": ""}, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt"),
    (TEXT, {"prompt": []}, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt"),
    (TEXT, {}, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt"),
    (TEXT, {"prompt": [1], "suffix": "x"}, "suffix is not currently supported (parameter=suffix)", "suffix"),
    (
        CHAT,
        {"messages": HI, "top_logprobs": 2},
        "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)",
        "top_logprobs",
    ),
    (
        CHAT,
        {"messages": HI, "logprobs": True, "top_logprobs": 50},
        "Requested sample logprobs of 50, which is greater than max allowed: 20 (parameter=logprobs, value=50)",
        "logprobs",
    ),
    (
        CHAT,
        {"messages": HI, "tool_choice": "required"},
        "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)",
        "tool_choice",
    ),
    (
        CHAT,
        {"messages": HI, "response_format": {"type": "json_schema"}},
        "When response_format type is 'json_schema', the 'json_schema' field must be provided. (parameter=response_format)",
        "response_format",
    ),
]
RANGES: list[tuple[str, Any, str, str | None]] = [
    ("temperature", -1, "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)", "temperature"),
    ("temperature", 2.5, "temperature must be in [0, 2], got 2.5. (parameter=temperature, value=2.5)", "temperature"),
    ("top_p", 2, "top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)", "top_p"),
    ("top_p", -0.1, "top_p must be in (0, 1], got -0.1. (parameter=top_p, value=-0.1)", "top_p"),
    ("top_k", -5, "top_k must be 0 (disable), or at least 1, got -5.", None),
    ("min_p", 1.5, "min_p must be in [0, 1], got 1.5.", None),
    ("presence_penalty", 3, "presence_penalty must be in [-2, 2], got 3.0.", None),
    ("frequency_penalty", -3, "frequency_penalty must be in [-2, 2], got -3.0.", None),
    ("repetition_penalty", 0, "repetition_penalty must be greater than zero, got 0.0.", None),
    ("n", 0, "n must be at least 1, got 0.", None),
    ("max_tokens", 0, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", "max_tokens"),
]


def assert_refused(response: httpx.Response, text: str, parameter: str | None) -> None:
    assert response.status_code == 400
    expected = {"message": text, "type": "BadRequestError", "param": parameter, "code": 400}
    assert response.text == json.dumps({"error": expected}, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "text", "parameter"), REFUSED)
def test_refusals(server: RunningServer, path: str, body: Any, text: str, parameter: str | None, stream: bool) -> None:
    assert_refused(server.post(path, {**body, "stream": stream}), text, parameter)


@pytest.mark.parametrize(("field", "value", "text", "parameter"), RANGES)
@pytest.mark.parametrize(("path", "prompt"), [(CHAT, {"messages": HI}), (TEXT, {"prompt": [5]})])
def test_ranges(
    server: RunningServer, path: str, prompt: Any, field: str, value: Any, text: str, parameter: str | None
) -> None:
    assert_refused(server.post(path, {**prompt, field: value}), text, parameter)


def test_two_greedy_answers_would_be_the_same(server: RunningServer) -> None:
    response = server.post(CHAT, {"messages": HI, "n": 2, "temperature": 0})
    assert_refused(response, "n must be 1 when using greedy sampling, got 2.", None)


def test_c133_stream_options_want_a_stream(server: RunningServer) -> None:
    response = server.post(CHAT, {"messages": HI, "stream_options": {"include_usage": True}})
    text = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
    assert_refused(response, text, "stream_options")


def test_a_stream_has_no_prompt_logprobs(server: RunningServer) -> None:
    response = server.post(TEXT, {"prompt": "a", "prompt_logprobs": 1, "stream": True})
    text = "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)"
    assert_refused(response, text, "prompt_logprobs")


@pytest.mark.parametrize("path", [CHAT, TEXT, "/tokenize", "/detokenize"])
def test_another_model_is_not_found(server: RunningServer, path: str) -> None:
    body = {"model": "nope", "messages": HI, "prompt": "a", "tokens": [5]}
    response = server.post(path, body)
    assert response.status_code == 404
    message = "The model `nope` does not exist. Valid aliases: m, alias."
    assert response.json() == {"error": {"message": message, "type": "NotFoundError", "param": "model", "code": 404}}


@pytest.mark.parametrize(
    ("prompt", "where"),
    [
        ([200000], "200000"),
        ([5, 6, 49152], "49152"),
        ([-1], "-1"),
        ([1.5], "prompt[0]"),
        ([1, 1.5], "prompt[1]"),
        ([True], "prompt[0]"),
        (["a", 1], "prompt[1]"),
        (["a", ""], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([[1], []], "prompt[1]"),
        ([[[1]]], "prompt[0]"),
        ([None], "prompt[0]"),
        ({}, "prompt"),
        (5, "prompt"),
        ([[1], [2, 10**30]], "1000000000000000000000000000000"),
    ],
)
def test_c124_prompts_that_are_none_are_refused_with_their_place(server: RunningServer, prompt: Any, where: str) -> None:
    response = server.post(TEXT, {"prompt": prompt})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    assert where in response.json()["error"]["message"]


def test_token_ids_outside_the_vocabulary_have_no_text(server: RunningServer) -> None:
    response = server.post("/detokenize", {"tokens": [5, 49152]})
    assert response.status_code == 400
    assert "tokens[1] is 49152" in response.json()["error"]["message"]
    assert server.post("/detokenize", {"tokens": [-1]}).json()["error"]["param"] == "body.tokens.0"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("best_of", 2),
        ("guided_json", {}),
        ("thinking_token_budget", 5),
        ("logprob_token_ids", [5]),
        ("stream_interval", 4),
        ("chat_template", "{{ messages }}"),
        ("chat_template_kwargs", {"messages": []}),
        ("chat_template_kwargs", {"self": 1}),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(server: RunningServer, field: str, value: Any) -> None:
    response = server.post(CHAT, {"messages": HI, field: value})
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["type"], error["param"]) == ("BadRequestError", field)
    assert field in error["message"]


@pytest.mark.parametrize(
    "more",
    [
        {"tools": []},
        {"tools": None},
        {"tools": [], "tool_choice": None},
        {"tool_choice": "none"},
        {"tool_choice": "auto"},
        {"response_format": {"type": "text"}},
        {"foo": 1, "store": True, "metadata": {}, "service_tier": "auto", "prediction": {}, "user": "u"},
        {"parallel_tool_calls": False, "reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}},
        {"max_tokens": "2", "temperature": "0", "n": True, "seed": 5.0, "stream": 0},
        {"model": "alias"},
        {"model": None},
        {"cache_salt": "a", "top_k": -1, "min_tokens": 1, "bad_words": []},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_asks_for_nothing_is_accepted(server: RunningServer, more: Any, stream: bool) -> None:
    body = {"messages": HI, "max_tokens": 2, "stream": stream, **more}
    assert server.post(CHAT, body).status_code == 200


def test_c128_unknown_fields_are_logged_once(intake: Intake, caplog: pytest.LogCaptureFixture) -> None:
    with running(intake) as server:
        for _ in range(2):
            server.post(TEXT, {"prompt": "a", "max_tokens": 1, "temprature_of_this_test": 1})
    assert caplog.text.count("temprature_of_this_test") == 1


def test_bodies_must_be_json_by_name(server: RunningServer) -> None:
    body = json.dumps({"prompt": "a", "max_tokens": 1})
    for content_type in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonx"):
        response = server.http.post(TEXT, content=body, headers={"content-type": content_type})
        assert response.status_code == 400
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        assert response.json() == {"error": {"message": message, "type": "Bad Request", "param": None, "code": 400}}
    for content_type in ("application/json; charset=utf-8", "Application/JSON"):
        assert server.http.post(TEXT, content=body, headers={"content-type": content_type}).status_code == 200


def test_bodies_have_a_size(server: RunningServer) -> None:
    headers = {"content-type": "application/json"}
    told = server.http.post(TEXT, content=b" " * (MAX_BODY_BYTES + 1), headers=headers)
    chunks = (b" " * (1 << 20) for _ in range(33))
    found = server.http.post(TEXT, content=chunks, headers=headers)
    nested = server.http.post(TEXT, content=b'{"prompt": "a", "x": [' + b"[]," * MAX_STRUCTURE + b"1]}", headers=headers)
    for response in (told, found, nested):
        assert response.status_code == 413
        assert response.json()["error"]["code"] == 413


@pytest.mark.parametrize("start", [b"GET /", b"GET / HTTP/1.1\r\nx: ", b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 1000 + b"x: "])
def test_a_head_that_does_not_end_is_refused(server: RunningServer, start: bytes) -> None:
    with socket.create_connection(server.listener.getsockname()[:2], timeout=10) as connection:
        connection.sendall(start + b"x" * (MAX_HEAD_BYTES + 1 - len(start)))
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_trailers_that_do_not_end_are_refused(server: RunningServer) -> None:
    head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    body = b'{"prompt": "a"}'
    with socket.create_connection(server.listener.getsockname()[:2], timeout=10) as connection:
        connection.sendall(head.encode() + b"%x\r\n%s\r\n0\r\n" % (len(body), body))
        connection.sendall(b"x: y\r\n" * (MAX_HEAD_BYTES // 6) + b"x: " + b"x" * 300_000)
        assert connection.recv(100).startswith(b"HTTP/1.1 400")


def test_the_size_of_a_head_is_counted_for_each_request(server: RunningServer) -> None:
    for _ in range(1 + MAX_HEAD_BYTES // 100_000):
        assert server.http.get("/health", headers={"x-large": "x" * 100_000}).status_code == 200


def test_json_decode_errors_have_the_place(server: RunningServer) -> None:
    response = server.http.post(CHAT, content=b"{bad json", headers={"content-type": "application/json"})
    message = (
        "1 validation error:\n  {'type': 'json_invalid', 'loc': 'body.1', 'msg': 'JSON decode error', "
        "'input': '<dict of 0 items>', 'ctx': {'error': 'Expecting property name enclosed in double quotes'}}"
    )
    assert response.status_code == 400
    assert response.json() == {"error": {"message": message, "type": "Bad Request", "param": "body.1", "code": 400}}


def test_a_fault_of_ours_is_a_500_without_its_inside(intake: Intake, caplog: pytest.LogCaptureFixture) -> None:
    with running(intake) as server:
        server.state.engine_id = lambda response_id: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        response = server.post(TEXT, {"prompt": "a"})
    assert response.status_code == 500
    expected = {"message": "Internal server error", "type": "InternalServerError", "param": None, "code": 500}
    assert response.json() == {"error": expected}
    assert "ZeroDivisionError" in caplog.text


def test_keys(intake: Intake) -> None:
    with running(intake, config=EngineConfig(api_key=("first", "second"))) as server:
        for path in ("/health", "/ping", "/version", "/metrics"):
            assert server.http.get(path).status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "first"}, {"authorization": "Basic first"}):
            for path in ("/v1/models", "/tokenize", "/openapi.json", "/nope", TEXT):
                response = server.http.get(path, headers=headers)
                assert (response.status_code, response.text) == (401, '{"error":"Unauthorized"}')
        for key in ("first", "second"):
            headers = {"authorization": f"Bearer {key}"}
            assert server.http.get("/v1/models", headers=headers).status_code == 200
