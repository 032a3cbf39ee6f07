"""openai-agents: conversations, a tool loop, typed answers and a handover, by chat completions and by responses."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Literal

import agents
import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import QUESTION, WARM, tell_temperature
from tests.e2e.conftest import MODEL

pytestmark = pytest.mark.clients
SETTINGS = agents.ModelSettings(temperature=0, max_tokens=60, parallel_tool_calls=False)
FORCED = agents.ModelSettings(temperature=0, max_tokens=60, parallel_tool_calls=False, tool_choice="required")
calls: list[str] = []


@agents.function_tool
def temperature(city: Literal["Paris", "Oslo"]) -> str:
    """The temperature in a city, in degrees Celsius"""
    calls.append(city)
    return tell_temperature(city)


class Capital(BaseModel):
    """A typed answer."""

    city: Literal["Paris", "Oslo"]


@pytest.fixture(params=[agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel], ids=["chat", "responses"])
def kind(request: pytest.FixtureRequest) -> type[agents.Model]:
    agents.set_tracing_disabled(True)
    calls.clear()
    return request.param


def run(kind: Any, options: dict[str, Any], talk: Any) -> None:
    """Run `talk(model)` in an event loop of its own, with a client that ends in it."""

    async def main() -> None:
        async with openai.AsyncOpenAI(**options) as client:
            work: Coroutine[Any, Any, None] = talk(kind(MODEL, client))
            await work

    asyncio.run(main())


async def streamed(agent: agents.Agent, text: str) -> agents.RunResultStreaming:
    result = agents.Runner.run_streamed(agent, text, max_turns=4)
    async for _ in result.stream_events():
        pass
    return result


def test_it_chats_and_streams(kind: Any, openai_options: dict[str, Any]) -> None:
    async def talk(model: agents.Model) -> None:
        agent = agents.Agent(name="a", instructions="You are helpful.", model=model, model_settings=SETTINGS)
        first = await agents.Runner.run(agent, QUESTION)
        assert "Paris" in first.final_output
        assert (await streamed(agent, QUESTION)).final_output == first.final_output
        history = [*first.to_input_list(), {"role": "user", "content": "And of Italy?"}]
        assert "Rome" in (await agents.Runner.run(agent, history)).final_output

    run(kind, openai_options, talk)


def test_it_goes_through_a_tool_loop(kind: Any, openai_options: dict[str, Any]) -> None:
    async def talk(model: agents.Model) -> None:
        agent = agents.Agent(name="a", model=model, model_settings=FORCED, tools=[temperature])
        whole = await agents.Runner.run(agent, WARM, max_turns=4)
        assert whole.final_output
        assert len(calls) == 1
        assert (await streamed(agent, WARM)).final_output == whole.final_output
        assert calls == calls[:1] * 2
        (output,) = [item for item in whole.new_items if item.type == "tool_call_output_item"]
        assert output.output == tell_temperature(calls[0])

    run(kind, openai_options, talk)


def test_it_gives_typed_answers(kind: Any, openai_options: dict[str, Any]) -> None:
    async def talk(model: agents.Model) -> None:
        agent = agents.Agent(name="a", model=model, model_settings=SETTINGS, output_type=Capital)
        assert isinstance((await agents.Runner.run(agent, QUESTION)).final_output, Capital)
        assert isinstance((await streamed(agent, QUESTION)).final_output, Capital)

    run(kind, openai_options, talk)


def test_it_hands_over(kind: Any, openai_options: dict[str, Any]) -> None:
    async def talk(model: agents.Model) -> None:
        expert = agents.Agent(name="Geographer", model=model, model_settings=SETTINGS)
        first = agents.Agent(name="a", model=model, model_settings=FORCED, handoffs=[expert])
        result = await agents.Runner.run(first, QUESTION, max_turns=4)
        assert result.last_agent is expert
        assert result.final_output

    run(kind, openai_options, talk)
