"""Tool loops and reasoning through OpenAI's own clients, with their stream helpers."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from octavo.engine.intake import Intake
from tests.server.conversing import ASK, TOOLS, call_text, conversing, script
from tests.server.running import RunningServer

NODE = Path(__file__).parent.parent / "e2e" / "node"
TWO_CALLS = f"<think>Two things.</think>I look. {call_text('weather', {'city': 'Zürich'})}\n{call_text('now', {})}"
RESULTS = {"weather": "3 degrees", "now": "12:00"}


@pytest.fixture(scope="module")
def tool_server(intake: Intake) -> Iterator[RunningServer]:
    with conversing(intake, reasoning_parser="auto") as server:
        yield server


@pytest.fixture(scope="module")
def client(tool_server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{tool_server.address}/v1", api_key="none", max_retries=0)


def ask(server: RunningServer, text: str, **more: Any) -> dict[str, Any]:
    """Arguments of a request that is answered with this text."""
    return {"model": "m", "messages": ASK, "tools": TOOLS, "extra_headers": {"X-Request-Id": script(server, text)}, **more}


def without_ids(message: Any) -> Any:
    """A message as plain data, but for what differs from answer to answer."""
    data = message.model_dump(exclude_none=True)
    for call in data.get("tool_calls", []):
        assert call.pop("id")
        call.pop("index", None)
        call["function"].pop("parsed_arguments", None)
    return data


def test_c35_the_stream_helper_puts_calls_together(client: openai.OpenAI, tool_server: RunningServer) -> None:
    whole = client.chat.completions.create(**ask(tool_server, TWO_CALLS))
    assert whole.choices[0].finish_reason == "tool_calls"
    usage = {"stream_options": {"include_usage": True}}
    for more in ({}, usage):
        with client.chat.completions.stream(**ask(tool_server, TWO_CALLS, **more)) as stream:
            final = stream.get_final_completion()
        assert without_ids(final.choices[0].message) == without_ids(whole.choices[0].message)
        assert final.choices[0].finish_reason == "tool_calls"
    assert final.usage.completion_tokens_details == whole.usage.completion_tokens_details


def test_c34_c35_every_delta_has_an_index(client: openai.OpenAI, tool_server: RunningServer) -> None:
    ids, text = set(), ""
    for chunk in client.chat.completions.create(**ask(tool_server, TWO_CALLS), stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            assert isinstance(call.index, int)
            ids.add((call.index, call.id)) if call.id else None
            text += call.function.arguments or ""
    assert sorted(index for index, _ in ids) == [0, 1]
    assert text == '{"city": "Zürich"}{}'
    assert chunk.choices[0].finish_reason == "tool_calls"
    assert chunk.choices[0].delta.model_dump(exclude_unset=True) == {}


def test_a_tool_loop(client: openai.OpenAI, tool_server: RunningServer) -> None:
    messages: list[Any] = list(ASK)
    answer = client.chat.completions.create(**ask(tool_server, TWO_CALLS, messages=messages)).choices[0].message
    assert answer.reasoning == answer.reasoning_content == "Two things."
    messages.append(answer.model_dump(exclude_none=True))
    for call in answer.tool_calls:
        json.loads(call.function.arguments)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": RESULTS[call.function.name]})
    last = client.chat.completions.create(
        **ask(tool_server, "It is 3 degrees.", messages=messages, extra_body={"return_prompt_text": True})
    )
    assert last.choices[0].message.content == "It is 3 degrees."
    assert last.prompt_text.endswith(
        '<assistant>(Two things.)I look. [weather {"city": "Zürich"}][now {}]<tool>3 degrees<tool>12:00<assistant>'
    )


def test_node_runs_the_loop(tool_server: RunningServer) -> None:
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules" / "openai").is_dir():
        pytest.fail("the OpenAI SDK for Node is missing: npm install in tests/e2e/node (make test does it)", pytrace=False)
    ids = [script(tool_server, TWO_CALLS), script(tool_server, TWO_CALLS), script(tool_server, "It is 3 degrees.")]
    command = [node, "tools.mjs", f"{tool_server.address}/v1", json.dumps([*ids]), json.dumps(TOOLS), json.dumps(RESULTS)]
    run = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    got = json.loads(run.stdout)
    reasoning = got["whole"].pop("reasoning"), got["streamed"].pop("reasoning")
    assert reasoning == ("Two things.", ".")  # of fields that are not OpenAI's, its helper keeps the last delta alone
    assert got["whole"] == got["streamed"]
    assert [call["name"] for call in got["whole"]["calls"]] == ["weather", "now"]
    assert got["whole"]["finishReason"] == "tool_calls"
    assert got["answer"] == "It is 3 degrees."
