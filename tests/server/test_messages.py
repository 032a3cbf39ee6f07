"""Anthropic's Messages API, asked by their own SDK and as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from octavo.engine.intake import Intake
from tests.server.conversing import call_text, conversing, script
from tests.server.running import RunningServer

ASK = [{"role": "user", "content": "How is the weather?"}]
TOOLS = [
    {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"name": "now", "description": "The time.", "input_schema": {"type": "object"}},
]


@pytest.fixture(scope="module")
def server(intake: Intake) -> Iterator[RunningServer]:
    with conversing(intake, reasoning_parser="deepseek_r1", api_key=("first",)) as server:
        server.http.headers["x-api-key"] = "first"
        yield server


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.address, api_key="first", max_retries=0) as client:
        yield client


def ask(server: RunningServer, client: anthropic.Anthropic, text: str, **more: Any) -> anthropic.types.Message:
    """The message of a model that says this text, the same whole and put together from a stream by the SDK."""
    body: dict[str, Any] = {"model": "m", "max_tokens": 200, "messages": ASK, **more}
    ends = body["max_tokens"] == 200
    whole = client.messages.create(**body, extra_headers={"x-request-id": script(server, text, ends=ends)})
    with client.messages.stream(**body, extra_headers={"x-request-id": script(server, text, ends=ends)}) as stream:
        streamed = stream.get_final_message()
    first, second = ([{**block.to_dict(), "id": ""} for block in message.content] for message in (whole, streamed))
    assert first == second
    assert (streamed.stop_reason, streamed.stop_sequence) == (whole.stop_reason, whole.stop_sequence)
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert whole.id.startswith("msg_")
    assert whole.id != streamed.id
    return whole


def texts(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_text(server: RunningServer, client: anthropic.Anthropic) -> None:
    message = ask(server, client, "</think>Fine, 🙂.")
    assert [block.type for block in message.content] == ["text"]
    assert texts(message) == "Fine, 🙂."
    assert (message.role, message.model, message.stop_reason) == ("assistant", "m", "end_turn")
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens > 0


def test_thoughts_text_and_calls(server: RunningServer, client: anthropic.Anthropic) -> None:
    calls = call_text("weather", {"city": "Zürich"}) + call_text("now", {})
    message = ask(server, client, "Let me see.</think>I look. " + calls, tools=TOOLS)
    thought, text, weather, now = message.content
    assert (thought.type, thought.thinking) == ("thinking", "Let me see.")
    assert text.text == "I look. "
    assert [(call.name, call.input) for call in (weather, now)] == [("weather", {"city": "Zürich"}), ("now", {})]
    assert weather.id != now.id
    assert message.stop_reason == "tool_use"


def test_ends(server: RunningServer, client: anthropic.Anthropic) -> None:
    assert ask(server, client, "</think>One two three four", max_tokens=6).stop_reason == "max_tokens"
    stopped = ask(server, client, "</think>One two END three", stop_sequences=["END"])
    assert (texts(stopped), stopped.stop_reason, stopped.stop_sequence) == ("One two ", "stop_sequence", "END")
    assert texts(ask(server, client, "</think>")) == ""


def test_a_tool_loop_is_rendered(server: RunningServer, client: anthropic.Anthropic) -> None:
    conversation = [
        *ASK,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Which city?", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "a", "name": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "cold"}]},
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    system = [{"type": "text", "text": "Be brief."}]
    counted = client.messages.count_tokens(model="m", messages=conversation, system=system, tools=TOOLS)
    rendered = server.post("/tokenize", {"messages": OPENAI_CONVERSATION, "tools": OPENAI_TOOLS}).json()
    assert counted.input_tokens == rendered["count"]
    message = ask(server, client, "</think>Cold.", messages=conversation, system=system, tools=TOOLS)
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == rendered["count"]
    assert texts(message) == "Cold."


OPENAI_CONVERSATION = [
    {"role": "system", "content": "Be brief."},
    *ASK,
    {
        "role": "assistant",
        "content": "I look.",
        "reasoning_content": "Which city?",
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}],
    },
    {"role": "tool", "tool_call_id": "a", "content": "cold"},
    {"role": "user", "content": "And?"},
]
OPENAI_TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}, "description": "The time."}},
]


def test_the_events_of_a_stream(server: RunningServer) -> None:
    body = {"model": "m", "max_tokens": 50, "messages": ASK, "stream": True}
    response = server.post("/v1/messages", body, x_request_id=script(server, "Hm.</think>Yes."))
    lines = [event.split("\n") for event in response.text.removesuffix("\n\n").split("\n\n")]
    data = [json.loads(line.removeprefix("data: ")) for _, line in lines]
    assert [line.removeprefix("event: ") for line, _ in lines] == [event["type"] for event in data]
    shape: list[str] = []
    for event in data:
        if not shape or shape[-1] != event["type"]:
            shape.append(event["type"])
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert shape == ["message_start", *block, *block, "message_delta", "message_stop"]
    assert data[0]["message"]["content"] == []
    assert data[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "claude"}, anthropic.NotFoundError, "does not exist"),
        ({"extra_body": {"temperature": -1}}, anthropic.BadRequestError, "temperature must be non-negative"),
        ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens must be at least 1"),
        ({"tools": [{"type": "bash_20250124", "name": "bash", "input_schema": {}}]}, anthropic.BadRequestError, "custom"),
        ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, anthropic.BadRequestError, "does not match"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            anthropic.BadRequestError,
            r"messages\[0\].content\[0\] is of type 'image'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            anthropic.BadRequestError,
            r"tool_use_id must be text",
        ),
    ],
)
def test_refusals_in_anthropics_envelope(
    client: anthropic.Anthropic, change: dict[str, Any], error: type[anthropic.APIStatusError], message: str
) -> None:
    body: dict[str, Any] = {"model": "m", "max_tokens": 5, "messages": ASK}
    with pytest.raises(error, match=message) as refused:
        client.messages.create(**{**body, **change})
    assert refused.value.body["type"] == "error"
    assert refused.value.body["error"].keys() == {"type", "message"}


def test_a_wrong_key(server: RunningServer) -> None:
    with (
        anthropic.Anthropic(base_url=server.address, api_key="wrong", max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError),
    ):
        other.messages.create(model="m", max_tokens=5, messages=ASK)


def test_a_schema_of_the_output_is_enforced(server: RunningServer, client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="uniqueItems"):
        client.messages.create(
            model="m",
            max_tokens=20,
            messages=ASK,
            output_config={"format": {"type": "json_schema", "schema": {"type": "array", "uniqueItems": True}}},
        )
    forced = {"output_config": {"format": {"type": "json_schema", "schema": {"const": 7}}}}
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        client.messages.create(model="m", max_tokens=20, messages=ASK, tools=TOOLS, tool_choice={"type": "any"}, **forced)


def test_kept_conversations_are_refused_so_that_the_sdk_goes_on_without(server: RunningServer) -> None:
    body = {"model": "m", "max_tokens": 5, "messages": ASK, "thread": {"type": "create"}}
    answer = server.post("/v1/messages", body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    assert error["type"] == "invalid_request_error"
