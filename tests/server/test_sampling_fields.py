"""Fields of generating requests beside the prompt; the numbers are those of cases that went wrong elsewhere."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.engine.intake import Intake
from tests.server.running import RunningServer, running

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "Say hi"}]
PROMPTS: dict[str, dict[str, Any]] = {CHAT: {"messages": HI}, TEXT: {"prompt": "Say hi"}}


def refused(server: RunningServer, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The error, which is the same with and without a stream."""
    answers = [server.post(path, {**body, "stream": stream}) for stream in (False, True)]
    assert [answer.status_code for answer in answers] == [400, 400]
    errors: list[dict[str, Any]] = [answer.json()["error"] for answer in answers]
    assert errors[0] == errors[1]
    return errors[0]


def test_c100_an_answer_that_does_not_fit_behind_its_prompt(server: RunningServer) -> None:
    body = {"prompt": [5] * 8, "max_tokens": 510}
    assert refused(server, TEXT, body) == {
        "message": "This model's maximum context length is 512 tokens. However, you requested 518 tokens: 8 in the prompt "
        "and max_tokens=510 for the answer. Request at most 504 output tokens, or shorten the prompt. "
        "(parameter=max_tokens, value=510)",
        "type": "BadRequestError",
        "param": "max_tokens",
        "code": "context_length_exceeded",
    }
    fits = server.post(TEXT, {**body, "max_tokens": 504, "ignore_eos": True})
    assert fits.json()["usage"]["completion_tokens"] == 504
    for name in ("max_tokens", "max_completion_tokens"):
        assert f"32 in the prompt and {name}=490" in refused(server, CHAT, {"messages": HI, name: 490})["message"]


def test_c100_what_nobody_asked_for_is_cut_to_what_fits(server: RunningServer) -> None:
    for body in ({"prompt": [5] * 505}, {"prompt": [5] * 505, "max_tokens": None}):
        answer = server.post(TEXT, {**body, "ignore_eos": True}).json()
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (7, "length")


@pytest.mark.parametrize(
    ("more", "expected", "num_dropped"),
    [
        ({"truncate_prompt_tokens": 5}, range(15, 20), "15"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "left"}, range(15, 20), "15"),
        ({"truncate_prompt_tokens": 5, "truncation_side": "right"}, range(5), "15"),
        ({"truncate_prompt_tokens": 20}, range(20), None),
        ({"truncate_prompt_tokens": 500}, range(20), None),
        ({"truncate_prompt_tokens": -1}, range(20), None),
        ({"truncate_prompt_tokens": None, "truncation_side": None}, range(20), None),
    ],
)
def test_c106_a_prompt_is_cut_where_it_says(
    server: RunningServer, more: dict[str, Any], expected: range, num_dropped: str | None
) -> None:
    ids = list(range(1000, 1020))
    response = server.post(TEXT, {"prompt": ids, "max_tokens": 1, "return_token_ids": True, **more})
    answer = response.json()
    assert answer["choices"][0]["prompt_token_ids"] == [ids[i] for i in expected]
    assert answer["usage"]["prompt_tokens"] == len(expected)
    assert response.headers.get("x-prompt-tokens-dropped") == num_dropped


def test_c106_a_prompt_of_any_length_is_cut_to_what_leaves_room(server: RunningServer) -> None:
    long = "word " * 100_000
    text = server.post(TEXT, {"prompt": long, "max_tokens": 12, "truncate_prompt_tokens": -1, "echo": True}).json()
    assert text["usage"]["prompt_tokens"] == 500
    assert text["choices"][0]["text"].startswith(" word word")
    chat = {"messages": [{"role": "user", "content": long}], "max_tokens": 12, "truncate_prompt_tokens": -1}
    answer = server.post(CHAT, {**chat, "return_token_ids": True})
    assert answer.json()["usage"]["prompt_tokens"] == 500
    assert int(answer.headers["x-prompt-tokens-dropped"]) > 90_000
    tokenizer = server.state.model.intake.tokenizer
    assert tokenizer.decode(answer.json()["prompt_token_ids"], False).endswith("<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be -1, or at least 1, got 0."),
        ({"truncate_prompt_tokens": -2}, "Input should be greater than or equal to -1"),
        ({"truncate_prompt_tokens": 513}, "truncate_prompt_tokens value (513) is greater than max_model_len (512)."),
        ({"truncation_side": "left"}, "truncation_side says where truncate_prompt_tokens cuts; give both."),
        ({"truncate_prompt_tokens": 4, "truncation_side": "middle"}, "Input should be 'left' or 'right'"),
    ],
)
def test_c106_lengths_that_are_none(server: RunningServer, path: str, more: dict[str, Any], text: str) -> None:
    assert text in refused(server, path, {**PROMPTS[path], **more})["message"]


def test_c104_one_that_outgrows_the_context_ends_alone(server: RunningServer) -> None:
    bodies = [{"prompt": [5 + i] * 8, "max_tokens": 20, "ignore_eos": True, "return_token_ids": True} for i in range(3)]
    alone = [server.post(TEXT, body).json()["choices"] for body in bodies]
    growing = server.submit(TEXT, {"prompt": [9] * 450, "max_tokens": None, "ignore_eos": True})
    together = [server.submit(TEXT, body) for body in bodies]
    assert [each.result(30).json()["choices"] for each in together] == alone
    answer = growing.result(30).json()
    assert (answer["usage"]["total_tokens"], answer["choices"][0]["finish_reason"]) == (512, "length")


def test_c131_a_character_that_lies_across_the_1000th_byte(server: RunningServer) -> None:
    for path, body in (
        (TEXT, {"prompt": "a" * 998 + "東京" * 20}),
        (CHAT, {"messages": [{"role": "user", "content": "é" * 900}]}),
    ):
        answers = [
            server.post(path, {**body, "max_tokens": 1, "truncate_prompt_tokens": -1, "stream": stream})
            for stream in (False, True)
        ]
        assert [answer.status_code for answer in answers] == [200, 200]


def test_c103_nothing_is_cut_unasked(server: RunningServer) -> None:
    messages = [{"role": "user", "content": "The code is 7319. " + "word " * 600}, *HI]
    message = refused(server, CHAT, {"messages": messages})["message"]
    assert "maximum context length is 512 tokens" in message


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "more",
    [
        {"stop": ["a"] * 500_000},
        {"stop": ["a" * 1_000_000]},
        {"bad_words": ["a"] * 50_000},
        {"bad_words": ["a" * 1_000_000]},
        {"logit_bias": {str(i): 1.0 for i in range(100_000)}},
        {"stop_token_ids": [1] * 100_000},
        {"allowed_token_ids": []},
        {"allowed_token_ids": [10**9]},
        {"structured_outputs": {"choice": ["a"] * 20_000}},
        {"structured_outputs": {"regex": "a" * 300_000}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["a" * 300_000]}}}},
        {"n": 10**6},
    ],
    ids=lambda more: next(iter(more)),
)
def test_c127_lists_beyond_their_limits(server: RunningServer, path: str, more: dict[str, Any]) -> None:
    refused(server, path, {**PROMPTS[path], **more})
    assert server.post(path, {**PROMPTS[path], "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_16_stop_texts(server: RunningServer, path: str) -> None:
    assert server.post(path, {**PROMPTS[path], "max_tokens": 1, "stop": [str(i) for i in range(16)]}).status_code == 200
    assert "at most 16 items" in refused(server, path, {**PROMPTS[path], "stop": ["a"] * 17})["message"]


def test_c128_new_fields_of_others_are_taken_and_told_once(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    known = {
        "store": True,
        "metadata": {},
        "service_tier": "auto",
        "parallel_tool_calls": False,
        "user": "u",
        "prediction": {},
    }
    with caplog.at_level(logging.WARNING, "octavo.server.body"):
        for _ in range(2):
            body = {"messages": HI, "max_tokens": 1, **known, "reasoning_effort": "low", "temprature_c128": 1}
            assert server.post(CHAT, body).status_code == 200
    told = [record.getMessage() for record in caplog.records]
    assert sum("temprature_c128" in message for message in told) == 1


def test_c80_logprobs_of_chat(server: RunningServer) -> None:
    body = {"messages": HI, "max_tokens": 2}
    for more in ({"logprobs": True}, {"logprobs": True, "top_logprobs": 0}):
        content = server.post(CHAT, {**body, **more}).json()["choices"][0]["logprobs"]["content"]
        assert [set(entry) for entry in content] == [{"token", "logprob", "bytes", "top_logprobs"}] * 2
        assert [entry["top_logprobs"] for entry in content] == [[], []]
    assert "`logprobs` must be set to true" in refused(server, CHAT, {**body, "top_logprobs": 3})["message"]
    assert "max allowed: 20" in refused(server, CHAT, {**body, "logprobs": True, "top_logprobs": 21})["message"]


@pytest.mark.parametrize("is_default", [False, True])
def test_tokens_as_their_ids(intake: Intake, is_default: bool) -> None:
    """A request's word counts for more than the option's."""
    with running(intake, config=EngineConfig(return_tokens_as_token_ids=is_default)) as server:
        for asked in (None, False, True):
            body = {"max_tokens": 1, "return_tokens_as_token_ids": asked, "return_token_ids": True}
            text = server.post(TEXT, {"prompt": "a", "logprobs": 1, **body}).json()["choices"][0]
            chat = server.post(CHAT, {"messages": HI, "logprobs": True, **body}).json()["choices"][0]
            shown = [(text["logprobs"]["tokens"], text["token_ids"])]
            shown.append(([entry["token"] for entry in chat["logprobs"]["content"]], chat["token_ids"]))
            for names, ids in shown:
                assert (names == [f"token_id:{id}" for id in ids]) is (is_default if asked is None else asked)


def test_c82_bytes_of_tokens_join_to_the_text(server: RunningServer) -> None:
    text = "是 👩‍👩‍👧 é"
    server.outputs["c82"] = server.state.model.intake.tokenizer.encode(text)
    body = {"messages": HI, "max_tokens": len(server.outputs["c82"]), "logprobs": True, "top_logprobs": 1}
    choice = server.post(CHAT, body, x_request_id="c82").json()["choices"][0]
    content = choice["logprobs"]["content"]
    assert choice["message"]["content"] == text
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == text
    assert any("\ufffd" in entry["token"] for entry in content)
    assert " é" in [entry["token"] for entry in content]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "more",
    [
        {"temperature": 1e-4},
        {"temperature": 1e-10},
        {"temperature": 5e-324},
        {"top_p": 0},
        {"top_p": 1e-9},
        {"min_p": 1.0},
        {"top_k": -1},
        {"top_k": 0},
    ],
    ids=str,
)
def test_c88_extreme_values_are_taken(server: RunningServer, path: str, more: dict[str, Any]) -> None:
    answer = server.post(path, {**PROMPTS[path], "max_tokens": 2, **more})
    assert (answer.status_code, answer.json()["usage"]["completion_tokens"]) == (200, 2)


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999", "-1", "100"])
def test_c88_values_that_are_none(server: RunningServer, path: str, value: str) -> None:
    body = json.dumps({**PROMPTS[path], "temperature": 12345.0}).replace("12345.0", value)
    answer = server.http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400


@pytest.mark.parametrize("stream", [False, True])
def test_c130_strange_texts(server: RunningServer, stream: bool) -> None:
    """They are taken as text or refused before a stream begins, and the next answer is as before."""
    golden = server.post(CHAT, {"messages": HI, "max_tokens": 4}).json()["choices"]
    body = {"max_tokens": 1, "truncate_prompt_tokens": -1, "stream": stream}
    for text in ("a\0b", "\ufeffa", "\u200d" * 20_000, "\u202e"):
        messages = [{"role": "user", "content": text}]
        assert server.post(CHAT, {**body, "messages": messages}).status_code == 200
        assert server.post(TEXT, {**body, "prompt": text}).status_code == 200
    for wrong in (b'{"prompt": "\\ud800"}', '{"prompt": "\xe9"}'.encode("latin-1"), b'{"prompt": "a', b"\xef\xbb\xbf{}"):
        for path in (CHAT, TEXT):
            answer = server.http.post(path, content=wrong, headers={"content-type": "application/json"})
            assert answer.status_code == 400
            assert answer.headers["content-type"] == "application/json"
    if not stream:
        assert server.post(TEXT, {**body, "prompt": "\u200d" * 1_000_000}).status_code == 200
    assert server.post(CHAT, {"messages": HI, "max_tokens": 4}).json()["choices"] == golden


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "banana"])
def test_c134_parts_that_are_no_text(server: RunningServer, kind: str) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": kind, kind: {"url": "https://example.org/a.png"}}]
    error = refused(server, CHAT, {"messages": [{"role": "user", "content": parts}]})
    assert error["param"] == "messages[0].content[1].type"


def test_c146_templates_of_requests(server: RunningServer) -> None:
    """Neither a template nor what takes the place of the request's own fields, wherever a conversation is rendered."""
    for more in (
        {"chat_template": "{{ messages }}"},
        {"chat_template_kwargs": {"chat_template": "x"}},
        {"chat_template_kwargs": {"tokenize": False}},
        {"chat_template_kwargs": {"messages": []}},
        {"chat_template_kwargs": {"tools": []}},
    ):
        refused(server, CHAT, {"messages": HI, **more})
        answer = server.post("/tokenize", {"messages": HI, **more})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, next(iter(more)))
    for kwargs in ({"enable_thinking": False}, {"unknown": 1}):
        assert server.post(CHAT, {"messages": HI, "max_tokens": 1, "chat_template_kwargs": kwargs}).status_code == 200
        assert server.post("/tokenize", {"messages": HI, "chat_template_kwargs": kwargs}).json()["count"] == 32


def test_c133_usage_of_streams(server: RunningServer) -> None:
    for path, n in ((CHAT, 1), (CHAT, 2), (TEXT, 1), (TEXT, 2)):
        body = {**PROMPTS[path], "max_tokens": 4, "n": n, "seed": 1, "ignore_eos": True}
        whole = server.post(path, body).json()["usage"]
        events = server.events(path, {**body, "stream_options": {"include_usage": True}})
        assert events[-1]["choices"] == []
        for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert events[-1]["usage"][name] == whole[name]
        assert whole["completion_tokens"] == 4 * n
        assert all(event.get("usage") is None for event in events[:-1])
        both = {"include_usage": True, "continuous_usage_stats": True}
        *events, last = server.events(path, {**body, "stream_options": both})
        assert all(event["usage"]["prompt_tokens"] == whole["prompt_tokens"] for event in events)
        counts = [event["usage"]["completion_tokens"] for event in events if event["choices"][0]["index"] == 0]
        assert counts == sorted(counts)
        assert counts[-1] == 4
        assert last["usage"]["completion_tokens"] == 4 * n


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(
    "more",
    [
        {"stop": ["a"]},
        {"structured_outputs": {"regex": "a"}},
        {"response_format": {"type": "json_object"}},
        {"logit_bias": {"5": 1.0}},
        {"min_tokens": 2},
        {"n": 65},
        {"length_penalty": 1000.0},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_a_beam_search_cannot_heed(server: RunningServer, path: str, more: dict[str, Any]) -> None:
    name = next(iter(more))
    error = refused(server, path, {**PROMPTS[path], "use_beam_search": True, "n": 2, "max_tokens": 4, **more})
    assert error["param"] == name


NOT = {"name": "n", "schema": {"properties": {"a": {"not": {}}}}}
STRUCTURED: list[tuple[dict[str, Any], str, str]] = [
    ({"structured_outputs": {"json_object": False}}, "structured_outputs must give one of", "structured_outputs"),
    ({"structured_outputs": {"json": ""}}, "structured_outputs.json is not JSON", "structured_outputs"),
    ({"structured_outputs": {"regex": "["}}, "structured_outputs.regex cannot be enforced: regex", "structured_outputs"),
    ({"structured_outputs": {"grammar": "start: a"}}, 'unknown name: "a"', "structured_outputs"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice must be a list", "structured_outputs"),
    ({"guided_regex": "a"}, 'Use `structured_outputs`: {"regex": ...}.', "guided_regex"),
    ({"response_format": {"type": "json_schema"}}, "the 'json_schema' field must be provided", "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}},
        "'json_schema.schema' must be provided",
        "response_format",
    ),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": {"properties": {"a": {"not": {}}}}},
            }
        },
        "The JSON schema cannot be enforced: $.properties.a.not: this keyword is not supported (parameter=response_format)",
        "response_format",
    ),
    ({"structured_outputs": {"json": NOT["schema"]}}, "enforced: $.properties.a.not: ", "structured_outputs"),
    ({"response_format": {"type": "structural_tag"}}, "must have 'format', or 'structures' and", "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": ["a" * 300_000]}}}},
        "response_format.json can have at most",
        "response_format",
    ),
    (
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
        "both say what the text must be; give one of them.",
        "response_format",
    ),
]


@pytest.mark.parametrize("path", [CHAT, TEXT])
@pytest.mark.parametrize(("more", "text", "parameter"), STRUCTURED)
def test_c62_what_cannot_be_enforced(
    server: RunningServer, path: str, more: dict[str, Any], text: str, parameter: str
) -> None:
    error = refused(server, path, {**PROMPTS[path], **more})
    assert text in error["message"]
    assert error["param"] == parameter
    assert error["code"] == 400


def test_a_text_format_asks_for_nothing(server: RunningServer) -> None:
    assert server.post(CHAT, {"messages": HI, "max_tokens": 1, "response_format": {"type": "text"}}).status_code == 200


def test_streams_go_on_while_grammars_are_compiled(intake: Intake) -> None:
    """The grammar process is held up; a request that waits for it keeps nobody else waiting."""
    with running(intake) as server:
        intake.grammars._working.acquire()
        try:
            waiting = server.submit(TEXT, {"prompt": "a", "structured_outputs": {"choice": ["only this test"]}})
            for _ in range(3):
                assert server.post(TEXT, {"prompt": "a", "max_tokens": 2}).status_code == 200
                assert server.http.get("/health").status_code == 200
            assert not waiting.done()
        finally:
            intake.grammars._working.release()
        assert json.loads(waiting.result(30).text)["error"]["message"] == "This engine follows no grammars."
