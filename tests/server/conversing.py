"""A server whose template knows tools and thinking, and answers read both ways: whole, and put together from a stream."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.intake import Intake
from octavo.text.chat_template import ChatTemplate
from tests.scripted import Script
from tests.server.running import RunningServer, running

CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "How is the weather?"}]
EOS = 2
TEMPLATE = """{#- calls are <tool_call>{"name": ..., "arguments": ...}</tool_call> -#}
{%- if tools %}<tools>{{ tools | tojson }}</tools>{% endif -%}
{%- for message in messages -%}
<{{ message.role }}>{% if message.reasoning_content %}({{ message.reasoning_content }}){% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}[{{ call.function.name }} {{ call.function.arguments | tojson }}]{% endfor -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
<assistant>{% if enable_thinking is defined %}<think>{{ '\\n' if enable_thinking else '\\n\\n</think>\\n\\n' }}{% endif %}
{%- endif -%}"""
_numbers = itertools.count()


def tool(name: str, **properties: Any) -> dict[str, Any]:
    """A function with parameters of these schemas."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": properties}}}


TOOLS = [tool("weather", city={"type": "string"}, note={"type": "string"}), tool("now"), tool("save", x={"type": "integer"})]


@contextmanager
def conversing(intake: Intake, template: str = TEMPLATE, **options: Any) -> Iterator[RunningServer]:
    """A server with this template and a context of 2,048 tokens."""
    intake = dataclasses.replace(intake, chat_template=ChatTemplate(template), max_model_len=2048)
    script = Script(num_blocks=512, max_model_len=2048)
    with running(intake, script, EngineConfig(enable_auto_tool_choice=True, **options)) as server:
        yield server


def script(server: RunningServer, text: str, *, ends: bool = True) -> str:
    """An X-Request-Id whose request is answered with this text, and then the end."""
    id = f"scripted{next(_numbers)}"
    tokenizer = server.state.model.intake.tokenizer
    server.outputs[id] = [*tokenizer.encode(text, add_special_tokens=False), *([EOS] if ends else [])]
    return id


@dataclass
class Answer:
    """One choice. `calls` are (name, arguments)."""

    content: str | None
    reasoning: str | None
    calls: list[tuple[str, str]]
    finish_reason: str
    stop_reason: int | str | None
    usage: dict[str, Any] = field(default_factory=dict)


def answer(server: RunningServer, text: str, *, ends: bool = True, **body: Any) -> Answer:
    """What a request gets whose model says this text, the same whole and streamed."""
    body = {"messages": ASK, "tools": TOOLS, **body}
    response = server.post(CHAT, body, x_request_id=script(server, text, ends=ends))
    assert response.status_code == 200, response.text
    whole = _whole(response.json())
    events = server.events(
        CHAT, {**body, "stream_options": {"include_usage": True}}, x_request_id=script(server, text, ends=ends)
    )
    streamed = assembled(events)
    assert {**streamed.usage, "prompt_tokens_details": 0} == {**whole.usage, "prompt_tokens_details": 0}
    assert dataclasses.replace(streamed, content=streamed.content or None, usage={}) == dataclasses.replace(
        whole, content=whole.content or None, usage={}
    )
    return whole


def _whole(body: Any) -> Answer:
    (choice,) = body["choices"]
    message = choice["message"]
    assert message["role"] == "assistant"
    assert message.get("reasoning_content") == message["reasoning"]
    assert message.get("tool_calls") != [], "no calls are no list"
    calls = message.get("tool_calls", [])
    assert all(call["type"] == "function" and call["id"] for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    named = [(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    usage = {name: value for name, value in body["usage"].items() if value is not None}
    return Answer(message["content"], message["reasoning"], named, choice["finish_reason"], choice["stop_reason"], usage)


def assembled(events: list[Any]) -> Answer:
    """A stream of one choice put together, each delta checked (C34)."""
    *chunks, last = events
    assert last["choices"] == []
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    names: list[str] = []
    arguments: list[str] = []
    for delta in deltas[1:]:
        assert len(delta) - ("reasoning_content" in delta) <= 1, "a delta is of one kind"
        assert delta.get("reasoning") == delta.get("reasoning_content")
        for call in delta.get("tool_calls", []):
            _add_call(call, names, arguments)
    finish = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["finish_reason"] is not None]
    assert finish == [chunks[-1]["choices"][0]], "the last one, and no other, says how it ended"
    if names:
        assert deltas[-1] == {}
    reasoning = "".join(delta.get("reasoning", "") for delta in deltas) or None
    content = "".join(delta.get("content", "") for delta in deltas)
    calls = list(zip(names, arguments, strict=True))
    return Answer(content, reasoning, calls, finish[0]["finish_reason"], finish[0]["stop_reason"], last["usage"])


def _add_call(call: dict[str, Any], names: list[str], arguments: list[str]) -> None:
    function = call["function"]
    if call["index"] == len(names):
        assert (call["type"], function["arguments"]) == ("function", "")
        assert call["id"]
        assert function["name"]
        names.append(function["name"])
        arguments.append("")
    else:
        assert call["index"] == len(names) - 1, "calls come one after the other"
        assert {*call} == {"index", "function"}
        assert {*function} == {"arguments"}
        arguments[-1] += function["arguments"]


def call_text(name: str, arguments: Any) -> str:
    """A call as a model of the hermes format writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'
