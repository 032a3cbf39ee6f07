"""The SDKs of OpenAI and Anthropic beyond tests/e2e/test_sdk.py: tool loops, parsed answers, and all helpers of streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel, ConfigDict

from tests.clients.conftest import QUESTION, TEMPERATURE, WARM, tell_temperature
from tests.e2e.conftest import KEY, MODEL
from tests.server.process import ServerProcess

pytestmark = pytest.mark.clients
MESSAGES = [{"role": "user", "content": QUESTION}]
ASKED = [{"role": "user", "content": WARM}]
TOOLS = [{"type": "function", "function": {**TEMPERATURE, "strict": True}}]
ANTHROPIC_TOOLS: list[Any] = [
    {"name": "temperature", "description": TEMPERATURE["description"], "input_schema": TEMPERATURE["parameters"]}
]


class Capital(BaseModel):
    """A parsed answer."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Oslo"]


@pytest.fixture(scope="module")
def client(openai_options: dict[str, Any]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(**openai_options) as client:
        yield client


@pytest.fixture(scope="module")
def claude(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.address, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("strict_auto", [False, True])
def test_openai_goes_through_a_tool_loop(client: openai.OpenAI, chat_options: dict[str, Any], strict_auto: bool) -> None:
    forced = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    whole = client.chat.completions.create(**chat_options, messages=ASKED, **forced).choices[0].message
    (call,) = whole.tool_calls
    with client.chat.completions.stream(**chat_options, messages=ASKED, **forced) as stream:
        kinds = {event.type for event in stream}
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    assert streamed.function.parsed_arguments == json.loads(call.function.arguments)
    result = tell_temperature(**json.loads(call.function.arguments))
    history = [*ASKED, whole, {"role": "tool", "tool_call_id": call.id, "content": result}]
    choice = "auto" if strict_auto else "none"
    last = client.chat.completions.create(**chat_options, messages=history, tools=TOOLS, tool_choice=choice)
    for made in last.choices[0].message.tool_calls or ():
        assert set(json.loads(made.function.arguments)) == {"city"}
    assert last.choices[0].message.content or last.choices[0].message.tool_calls


def test_openai_parses_answers(client: openai.OpenAI, chat_options: dict[str, Any]) -> None:
    parsed = client.chat.completions.parse(**chat_options, messages=MESSAGES, response_format=Capital)
    assert isinstance(parsed.choices[0].message.parsed, Capital)
    more = {"model": MODEL, "temperature": 0, "max_output_tokens": 60, "input": QUESTION}
    assert isinstance(client.responses.parse(**more, text_format=Capital).output_parsed, Capital)
    with client.responses.stream(**more, text_format=Capital) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Capital)


def test_openai_goes_through_a_tool_loop_of_responses(client: openai.OpenAI) -> None:
    more = {"model": MODEL, "temperature": 0, "max_output_tokens": 60, "tools": [{"type": "function", **TEMPERATURE}]}
    first = client.responses.create(input=WARM, tool_choice="required", parallel_tool_calls=False, **more)
    (call,) = [item for item in first.output if item.type == "function_call"]
    result = tell_temperature(**json.loads(call.arguments))
    output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": result}]
    last = client.responses.create(input=output, previous_response_id=first.id, tool_choice="none", **more)
    assert last.output_text


def test_anthropic_goes_through_a_tool_loop(claude: anthropic.Anthropic) -> None:
    more: dict[str, Any] = {"model": MODEL, "max_tokens": 60, "extra_body": {"temperature": 0}, "tools": ANTHROPIC_TOOLS}
    forced = {"type": "any", "disable_parallel_tool_use": True}
    first = claude.messages.create(messages=ASKED, tool_choice=forced, **more)
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert first.stop_reason == "tool_use"
    with claude.messages.stream(messages=ASKED, tool_choice=forced, **more) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        (streamed,) = [block for block in stream.get_final_message().content if block.type == "tool_use"]
    assert streamed.input == call.input == json.loads("".join(pieces))
    result = {"type": "tool_result", "tool_use_id": call.id, "content": tell_temperature(**call.input)}
    history: Any = [*ASKED, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    last = claude.messages.create(messages=history, tool_choice={"type": "none"}, **more)
    assert "".join(block.text for block in last.content if block.type == "text")
    count = claude.messages.count_tokens(model=MODEL, messages=history, tools=ANTHROPIC_TOOLS)
    assert count.input_tokens == last.usage.input_tokens + (last.usage.cache_read_input_tokens or 0)


def test_anthropic_runs_tools_by_itself(claude: anthropic.Anthropic) -> None:
    calls: list[str] = []

    @anthropic.beta_tool
    def temperature(city: Literal["Paris", "Oslo"]) -> str:
        """The temperature in a city."""
        calls.append(city)
        return tell_temperature(city)

    runner = claude.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=60,
        tools=[temperature],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        messages=ASKED,
        extra_body={"temperature": 0},
        max_iterations=2,
    )
    messages = list(runner)
    assert [message.stop_reason for message in messages] == ["tool_use"] * 2
    assert calls


def test_anthropic_parses_answers(claude: anthropic.Anthropic) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 60, "messages": MESSAGES, "output_format": Capital}
    assert isinstance(claude.messages.parse(**asked).parsed_output, Capital)
    with claude.messages.stream(**asked) as stream:
        assert isinstance(stream.get_final_message().parsed_output, Capital)


def test_anthropic_raises_by_status(claude: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        claude.messages.create(model="none", max_tokens=5, messages=MESSAGES)
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError, match="max_tokens must be at least 1"):
        claude.messages.create(model=MODEL, max_tokens=0, messages=MESSAGES)
    with pytest.raises(anthropic.AuthenticationError):
        claude.with_options(api_key="wrong").messages.create(model=MODEL, max_tokens=5, messages=MESSAGES)
