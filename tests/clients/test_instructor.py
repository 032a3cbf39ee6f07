"""instructor: typed answers by tools and by schemas, whole, partial and as lists, from both SDKs."""

from __future__ import annotations

from typing import Any, Literal

import anthropic
import instructor
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.clients.conftest import QUESTION
from tests.e2e.conftest import KEY
from tests.server.process import ServerProcess

pytestmark = pytest.mark.clients
MESSAGES = [{"role": "user", "content": QUESTION}]


class Capital(BaseModel):
    """A capital and where it lies."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Paris", "Oslo"]
    continent: Literal["Europe", "Asia"]
    inhabitants: int = Field(ge=1, le=50_000_000)


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA])
def test_it_gets_typed_answers(openai_options: dict[str, Any], chat_options: dict[str, Any], mode: instructor.Mode) -> None:
    client = instructor.from_openai(openai.OpenAI(**openai_options), mode=mode)
    asked = {**chat_options, "messages": MESSAGES, "response_model": Capital, "max_retries": 0}
    capital, answer = client.chat.completions.create_with_completion(**asked)
    assert isinstance(capital, Capital)
    assert answer.usage.completion_tokens > 0
    *_, last = client.chat.completions.create_partial(**asked)
    assert last.model_dump() == capital.model_dump()


def test_it_gets_several_typed_answers(openai_options: dict[str, Any], chat_options: dict[str, Any]) -> None:
    client = instructor.from_openai(openai.OpenAI(**openai_options), mode=instructor.Mode.JSON_SCHEMA)
    capitals = client.chat.completions.create(
        **{**chat_options, "max_tokens": 200}, messages=MESSAGES, response_model=TwoCapitals, max_retries=0
    )
    assert len(capitals.capitals) == 2


class TwoCapitals(BaseModel):
    """Exactly two."""

    model_config = ConfigDict(extra="forbid")
    capitals: list[Capital] = Field(min_length=2, max_length=2)


def test_it_gets_typed_answers_by_anthropics_sdk(server: ServerProcess, chat_options: dict[str, Any]) -> None:
    with anthropic.Anthropic(base_url=server.address, api_key=KEY, max_retries=0) as sdk:
        client = instructor.from_anthropic(sdk, mode=instructor.Mode.TOOLS)
        extra = {"temperature": chat_options["temperature"]}
        capital = client.messages.create(
            model=chat_options["model"],
            max_tokens=120,
            messages=MESSAGES,
            response_model=Capital,
            max_retries=0,
            extra_body=extra,
        )
    assert isinstance(capital, Capital)
