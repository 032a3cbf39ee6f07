"""langchain-openai: chat and stream, a tool loop, and structured output, by chat completions and by responses."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict

from tests.clients.conftest import QUESTION, WARM, tell_temperature
from tests.e2e.conftest import MODEL

pytestmark = pytest.mark.clients


@tool
def temperature(city: Literal["Paris", "Oslo"]) -> str:
    """The temperature in a city, in degrees Celsius"""
    return tell_temperature(city)


class Capital(BaseModel):
    """A capital and where it lies."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Oslo"]
    continent: Literal["Europe", "Asia"]


@pytest.fixture(scope="module", params=[False, True], ids=["chat", "responses"])
def chat(request: pytest.FixtureRequest, openai_options: dict[str, Any], chat_options: dict[str, Any]) -> ChatOpenAI:
    return ChatOpenAI(**openai_options, **chat_options, stream_usage=True, use_responses_api=request.param)


def test_it_chats_and_streams(chat: ChatOpenAI) -> None:
    whole = chat.invoke(QUESTION)
    assert "Paris" in whole.text
    pieces = list(chat.stream(QUESTION))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert len(pieces) > 3
    total = pieces[0]
    for piece in pieces[1:]:
        total += piece
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"] > 0
    more = chat.invoke([HumanMessage(QUESTION), whole, HumanMessage("And of Italy?")])
    assert "Rome" in more.text


def test_it_goes_through_a_tool_loop(chat: ChatOpenAI) -> None:
    bound = chat.bind_tools([temperature], tool_choice="required", strict=True, parallel_tool_calls=False)
    call: AIMessage = bound.invoke([HumanMessage(WARM)])
    (made,) = call.tool_calls
    assert (made["name"], call.invalid_tool_calls) == ("temperature", [])
    result = temperature.invoke(made)
    assert result.content == tell_temperature(made["args"]["city"])
    answer = chat.bind_tools([temperature], tool_choice="none").invoke([HumanMessage(WARM), call, result])
    assert answer.text
    assert answer.tool_calls == []
    pieces: list[AIMessageChunk] = list(bound.stream([HumanMessage(WARM)]))
    total = pieces[0]
    for piece in pieces[1:]:
        total += piece
    assert [(each["name"], each["args"]) for each in total.tool_calls] == [("temperature", made["args"])]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_it_gives_structured_output(chat: ChatOpenAI, method: Any) -> None:
    capital = chat.with_structured_output(Capital, method=method, strict=True).invoke(QUESTION)
    assert isinstance(capital, Capital)


def test_it_completes(openai_options: dict[str, Any]) -> None:
    model = OpenAI(**openai_options, model=MODEL, temperature=0, max_tokens=5)
    assert "Paris" in model.invoke("The capital of France is")
    assert "".join(model.stream("The capital of France is")) == model.invoke("The capital of France is")
    assert len(model.batch(["One, two,", "The capital of Italy is"])) == 2
