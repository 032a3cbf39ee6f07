"""litellm: the server as an OpenAI-compatible one, as vLLM, and as Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.conftest import QUESTION, TEMPERATURE, WARM, tell_temperature
from tests.e2e.conftest import KEY, MODEL
from tests.server.process import ServerProcess

pytestmark = pytest.mark.clients
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOLS = [{"type": "function", "function": {**TEMPERATURE, "strict": True}}]


@pytest.fixture(scope="module")
def litellm() -> Iterator[Any]:
    """The module, with the table of prices that it has in itself: it would fetch another one otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        import litellm

        litellm.suppress_debug_info = True
        yield litellm


@pytest.fixture(scope="module", params=["openai", "hosted_vllm", "anthropic"])
def options(request: pytest.FixtureRequest, server: ServerProcess) -> dict[str, Any]:
    base = server.address + ("" if request.param == "anthropic" else "/v1")
    return {"model": f"{request.param}/{MODEL}", "api_base": base, "api_key": KEY, "temperature": 0, "max_tokens": 60}


def test_it_chats_and_streams(litellm: Any, options: dict[str, Any]) -> None:
    whole = litellm.completion(messages=MESSAGES, **options)
    assert "Paris" in whole.choices[0].message.content
    assert whole.choices[0].finish_reason == "stop"
    pieces = list(litellm.completion(messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **options))
    assembled = litellm.stream_chunk_builder(pieces, messages=MESSAGES)
    assert assembled.choices[0].message.content == whole.choices[0].message.content
    assert assembled.usage.completion_tokens == whole.usage.completion_tokens


def test_it_goes_through_a_tool_loop(litellm: Any, options: dict[str, Any]) -> None:
    asked = [{"role": "user", "content": WARM}]
    forced = {**options, "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    choice = litellm.completion(messages=asked, **forced).choices[0]
    (call,) = choice.message.tool_calls
    assert (call.function.name, choice.finish_reason) == ("temperature", "tool_calls")
    # As a client of vLLM it takes `additionalProperties` and `strict` out of what it sends.
    result = tell_temperature(json.loads(call.function.arguments)["city"])
    history = [*asked, choice.message, {"role": "tool", "tool_call_id": call.id, "content": result}]
    last = litellm.completion(messages=history, **{**options, "tools": TOOLS, "tool_choice": "none"})
    assert last.choices[0].message.content
    assert not last.choices[0].message.tool_calls
    pieces = list(litellm.completion(messages=asked, stream=True, **forced))
    (streamed,) = litellm.stream_chunk_builder(pieces, messages=asked).choices[0].message.tool_calls
    assert json.loads(streamed.function.arguments) == json.loads(call.function.arguments)


def test_it_asks_for_a_response_and_a_completion(litellm: Any, server: ServerProcess) -> None:
    options = {"api_base": f"{server.address}/v1", "api_key": KEY, "temperature": 0}
    response = litellm.responses(model=f"openai/{MODEL}", input=QUESTION, max_output_tokens=20, **options)
    assert "Paris" in response.output[0].content[0].text
    completion = litellm.text_completion(
        model=f"text-completion-openai/{MODEL}", prompt="The capital of France is", max_tokens=5, **options
    )
    assert "Paris" in completion.choices[0].text


def test_a_refusal_is_the_same_error_as_openais(litellm: Any, options: dict[str, Any]) -> None:
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=[{"role": "user", "content": "word " * 3000}], **options)
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(messages=MESSAGES, **{**options, "api_key": "wrong"})
