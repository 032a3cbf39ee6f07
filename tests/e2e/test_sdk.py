"""The SDKs that people use, against the real server with the real model."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.conftest import KEY, MODEL
from tests.server.process import ServerProcess

QUESTION = "What is the capital of France?"
MESSAGES = [{"role": "user", "content": QUESTION}]
NODE = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def client(octavo: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{octavo.address}/v1", api_key=KEY, max_retries=0)


def test_python_chats_and_streams(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=20)
    text = whole.choices[0].message.content
    assert "Paris" in text
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=0, max_tokens=20, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert chunks[0].choices[0].delta.role == "assistant"
    counts = {"prompt_tokens", "completion_tokens", "total_tokens"}  # how much of it was cached differs the second time
    assert chunks[-1].usage.model_dump(include=counts) == whole.usage.model_dump(include=counts)
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, temperature=0, max_tokens=20) as stream:
        assert stream.get_final_completion().choices[0].message.content == text


def test_python_completes_with_logprobs(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt=["The capital of France is", "One, two,"], max_tokens=3, temperature=0, logprobs=2, echo=True
    )
    assert [
        choice.text.startswith(prompt) for choice, prompt in zip(answer.choices, ["The capital", "One, two,"], strict=True)
    ]
    assert "Paris" in answer.choices[0].text
    for choice in answer.choices:
        assert "".join(choice.logprobs.tokens) == choice.text
        assert all(value is None or value <= 0 for value in choice.logprobs.token_logprobs)
        assert choice.logprobs.token_logprobs[0] is None
    chat = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, temperature=0, max_tokens=4, logprobs=True, top_logprobs=3
    )
    for entry in chat.choices[0].logprobs.content:
        assert bytes(entry.bytes).decode() == entry.token
        assert entry.token == entry.top_logprobs[0].token
        assert len(entry.top_logprobs) == 3


def test_python_lists_models_and_raises_by_status(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "octavo"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="none", messages=MESSAGES)
    assert missing.value.body["param"] == "model"
    with pytest.raises(openai.BadRequestError, match="temperature must be non-negative"):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=-1)
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


def test_python_asks_for_a_response(client: openai.OpenAI) -> None:
    more = {"model": MODEL, "temperature": 0, "max_output_tokens": 20}
    first = client.responses.create(input=QUESTION, **more)
    assert "Paris" in first.output_text
    with client.responses.stream(input="And of Italy?", previous_response_id=first.id, **more) as stream:
        assert stream.get_final_response().output_text
    city = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
    form = {"type": "json_schema", "name": "city", "schema": {**city, "additionalProperties": False}}
    answer = client.responses.create(input=QUESTION, text={"format": form}, **more)
    assert json.loads(answer.output_text)["city"] in ("Paris", "Rome")


def test_anthropics_sdk_chats_and_streams(octavo: ServerProcess) -> None:
    with anthropic.Anthropic(base_url=octavo.address, api_key=KEY, max_retries=0) as client:
        more: dict[str, Any] = {"model": MODEL, "max_tokens": 20, "messages": MESSAGES, "extra_body": {"temperature": 0}}
        message = client.messages.create(**more)
        assert "Paris" in message.content[0].text
        with client.messages.stream(**more) as stream:
            assert stream.get_final_text() == message.content[0].text


def test_node_chats_and_streams(octavo: ServerProcess) -> None:
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules" / "openai").is_dir():
        pytest.fail("the OpenAI SDK for Node is missing: npm install in tests/e2e/node (make test does it)", pytrace=False)
    command = [node, "chat.mjs", f"{octavo.address}/v1", KEY, MODEL, QUESTION]
    run = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    got = json.loads(run.stdout)
    assert "Paris" in got["whole"]
    assert got["whole"] == got["streamed"] == got["assembled"]
    assert got["finishReason"] == "stop"
    assert got["usage"]["completion_tokens"] == got["wholeUsage"]["completion_tokens"] > 0
    assert got["models"] == [MODEL]
    assert got["refusal"]["kind"] == "BadRequestError"
    assert got["refusal"]["param"] == "temperature"
    assert "temperature must be non-negative, got -1.0." in got["refusal"]["message"]
    assert got["text"]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind, "maxLength": 12}},
                "required": [key],
                "additionalProperties": False,
            },
        },
    }
    for name, key, kind in [("look_up", "city", "string"), ("remember", "fact", "string")]
]


def test_a_forced_call_is_made(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "temperature": 0, "max_tokens": 120}
    whole = client.chat.completions.create(**asked, tool_choice="required", parallel_tool_calls=False).choices[0]
    (call,) = whole.message.tool_calls
    assert call.function.name in ("look_up", "remember")
    assert len(json.loads(call.function.arguments)) > 0
    assert (whole.message.content, whole.finish_reason) == (None, "tool_calls")
    with client.chat.completions.stream(**asked, tool_choice="required", parallel_tool_calls=False) as stream:
        (streamed,) = stream.get_final_completion().choices[0].message.tool_calls
    assert streamed.function.arguments == call.function.arguments


def test_a_named_call_is_made(client: openai.OpenAI) -> None:
    choice = {"type": "function", "function": {"name": "remember"}}
    asked = {"model": MODEL, "messages": MESSAGES, "tools": TOOLS, "temperature": 0, "max_tokens": 120}
    answer = client.chat.completions.create(**asked, tool_choice=choice).choices[0]
    (call,) = answer.message.tool_calls
    assert call.function.name == "remember"
    assert "fact" in json.loads(call.function.arguments)
    assert answer.finish_reason == "stop"
    cut = client.chat.completions.create(**{**asked, "max_tokens": 1}, tool_choice=choice).choices[0]  # C40
    assert cut.finish_reason == "length"
