"""Tool calls and reasoning over HTTP, streamed and not. Case numbers are those of the bug reports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.engine.intake import Intake
from tests.server.conversing import ASK, CHAT, TOOLS, answer, call_text, conversing, script, tool
from tests.server.running import RunningServer


@pytest.fixture(scope="module")
def tool_server(intake: Intake) -> Iterator[RunningServer]:
    with conversing(intake, reasoning_parser="auto") as server:
        yield server


def test_c01_a_call_without_arguments(tool_server: RunningServer) -> None:
    got = answer(tool_server, call_text("now", {}))
    assert (got.content, got.reasoning) == (None, None)
    assert got.calls == [("now", "{}")]
    assert (got.finish_reason, got.stop_reason) == ("tool_calls", None)


@pytest.mark.parametrize("value", ["mkdir -p a/{b,c", "}", "]", '"', "\\", 'a\\"', "</tool_call>"])
def test_c02_unbalanced_characters_in_strings(tool_server: RunningServer, value: str) -> None:
    ((name, arguments),) = answer(tool_server, call_text("weather", {"city": value})).calls
    assert (name, json.loads(arguments)) == ("weather", {"city": value})


def test_c04_a_stray_marker_in_prose(tool_server: RunningServer) -> None:
    got = answer(tool_server, "I could use <tool_call> for this. " + call_text("save", {"x": 1}))
    assert got.content == "I could use <tool_call> for this. "
    assert got.calls == [("save", '{"x": 1}')]


def test_c05_text_before_a_call(tool_server: RunningServer) -> None:
    got = answer(tool_server, "Let me check." + call_text("now", {}))
    assert (got.content, got.calls) == ("Let me check.", [("now", "{}")])


def test_c07_three_calls(tool_server: RunningServer) -> None:
    got = answer(
        tool_server, "\n".join([call_text("now", {}), call_text("save", {"x": 1}), call_text("weather", {"city": "Oslo"})])
    )
    assert got.calls == [("now", "{}"), ("save", '{"x": 1}'), ("weather", '{"city": "Oslo"}')]
    assert got.content is None


def test_c08_arguments_keep_their_characters(tool_server: RunningServer) -> None:
    got = answer(tool_server, call_text("weather", {"city": "Zürich", "note": "東京 🙂"}))
    assert got.calls == [("weather", '{"city": "Zürich", "note": "東京 🙂"}')]


def test_c10_a_stop_string_inside_a_call(tool_server: RunningServer) -> None:
    got = answer(tool_server, '<tool_call>\n{"name": "weather", "arguments": {"city": "x STOP y"}}', stop=["STOP"])
    assert got.calls == [("weather", '{"city": "x ')]
    assert (got.finish_reason, got.stop_reason) == ("stop", "STOP")
    got = answer(tool_server, '<tool_call>\n{"name": STOP', stop=["STOP"])
    assert (got.content, got.calls, got.finish_reason) == ('<tool_call>\n{"name": ', [], "stop")


@pytest.mark.parametrize("text", ["{}", '{"k": 2} is what I keep', '{"name":"Rex","age":4}', '```json\n{"name":"Rex"}\n```'])
@pytest.mark.parametrize("format", ["hermes", "llama3_json"])
def test_c14_json_that_is_no_call(intake: Intake, text: str, format: str) -> None:
    with conversing(intake, tool_call_parser=format) as server:
        got = answer(server, text)
        assert (got.content, got.calls, got.finish_reason) == (text, [], "stop")


def test_c37_long_arguments_are_streamed(tool_server: RunningServer) -> None:
    text = "word " * 400
    body = {"messages": ASK, "tools": TOOLS}
    events = tool_server.events(CHAT, body, x_request_id=script(tool_server, call_text("weather", {"note": text})))
    deltas = [event["choices"][0]["delta"] for event in events]
    calls = [delta["tool_calls"][0]["function"] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["name"] == "weather"
    assert len(calls) > 300
    assert max(len(call["arguments"]) for call in calls) < 64
    assert json.loads("".join(call["arguments"] for call in calls)) == {"note": text}


def test_c40_a_cut_answer_has_no_finished_call(tool_server: RunningServer) -> None:
    got = answer(tool_server, call_text("weather", {"city": "Oslo"}), max_tokens=4)
    assert (got.calls, got.finish_reason) == ([], "length")
    got = answer(tool_server, call_text("weather", {"city": "Llanfairpwllgwyngyll"}), max_tokens=24)
    assert (got.calls[0][0], got.finish_reason) == ("weather", "length")


@pytest.mark.parametrize(
    "more",
    [
        {"tools": []},
        {"tools": None},
        {"tools": [], "tool_choice": None},
        {"tools": None, "tool_choice": "none"},
        {"tools": [], "tool_choice": "auto"},
    ],
)
def test_c41_no_tools_are_as_if_absent(tool_server: RunningServer, more: Any) -> None:
    text = call_text("now", {})
    got = answer(tool_server, text, **more)
    assert (got.content, got.calls, got.finish_reason) == (text, [], "stop")


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "now"}}])
@pytest.mark.parametrize("stream", [False, True])
def test_c41_a_forced_choice_needs_tools(tool_server: RunningServer, choice: Any, stream: bool) -> None:
    response = tool_server.post(CHAT, {"messages": ASK, "tools": [], "tool_choice": choice, "stream": stream})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")
    assert "When using `tool_choice`, `tools` must be set." in response.json()["error"]["message"]


def rendered(server: RunningServer, messages: list[Any], **body: Any) -> str:
    """The prompt that a conversation becomes."""
    request = {"messages": messages, "max_tokens": 1, "return_prompt_text": True, **body}
    response = server.post(CHAT, request)
    assert response.status_code == 200, response.text
    prompt: str = response.json()["prompt_text"]
    return prompt


@pytest.mark.parametrize(
    ("calls", "printed"),
    [
        ([{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}], '[f {"a": 1}]'),
        ([{"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a":'}}], '[f "{\\"a\\":"]'),
        ([{"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}], "[f {}]"),
        ([], ""),
    ],
)
def test_c43_c145_histories_with_calls(tool_server: RunningServer, calls: Any, printed: str) -> None:
    history = [
        *ASK,
        {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "3 degrees"},
        {"role": "tool", "content": [{"type": "text", "text": "rain"}]},
    ]
    prompt = rendered(tool_server, history)
    assert prompt == f"<user>How is the weather?<assistant>(hm){printed}<tool>3 degrees<tool>rain<assistant>"


def test_tools_are_shown_to_the_model(tool_server: RunningServer, intake: Intake) -> None:
    prompt = rendered(tool_server, ASK, tools=[tool("now")])
    assert '"name": "now"' in prompt.partition("</tools>")[0]
    assert "<tools>" in rendered(tool_server, ASK, tools=TOOLS, tool_choice="none")
    with conversing(intake, exclude_tools_when_tool_choice_none=True) as server:
        assert "<tools>" not in rendered(server, ASK, tools=TOOLS, tool_choice="none")
        assert "<tools>" in rendered(server, ASK, tools=TOOLS)


def test_the_template_knows_the_effort(intake: Intake) -> None:
    with conversing(intake, template="{{ reasoning_effort | default('none given') }}: {{ messages[0].content }}") as server:
        assert rendered(server, ASK) == "none given: How is the weather?"
        assert rendered(server, ASK, reasoning_effort="low") == "low: How is the weather?"
        kwargs = {"reasoning_effort": "high"}
        assert rendered(server, ASK, reasoning_effort="low", chat_template_kwargs=kwargs) == "high: How is the weather?"


def test_the_choice_none_leaves_the_text_alone(tool_server: RunningServer) -> None:
    text = call_text("now", {})
    got = answer(tool_server, text, tool_choice="none")
    assert (got.content, got.calls, got.finish_reason) == (text, [], "stop")


def test_one_call_at_a_time(tool_server: RunningServer) -> None:
    """Without parallel_tool_calls the answer ends where a second call begins."""
    text = "Ok. " + call_text("now", {}) + "\n" + call_text("save", {"x": 1}) + " and more"
    got = answer(tool_server, text, parallel_tool_calls=False)
    assert (got.content, got.calls, got.finish_reason) == ("Ok. ", [("now", "{}")], "tool_calls")
    full = answer(tool_server, text)
    assert [name for name, _ in full.calls] == ["now", "save"]
    assert got.usage["completion_tokens"] < full.usage["completion_tokens"]
    tool_server.until(tool_server.idle)


THOUGHT = "I should look."


def test_reasoning_and_content(tool_server: RunningServer) -> None:
    got = answer(tool_server, f"<think>{THOUGHT}</think>It rains.")
    assert (got.reasoning, got.content, got.finish_reason) == (THOUGHT, "It rains.", "stop")
    counted = tool_server.state.model.intake.tokenizer.encode(THOUGHT, add_special_tokens=False)
    assert abs(got.usage["completion_tokens_details"]["reasoning_tokens"] - len(counted)) <= 4  # marks are text here
    assert answer(tool_server, "It rains.").usage["completion_tokens_details"] == {"reasoning_tokens": 0}


def test_c46_a_prompt_that_ends_behind_the_block(tool_server: RunningServer) -> None:
    got = answer(tool_server, "Answer", chat_template_kwargs={"enable_thinking": False})
    assert (got.content, got.reasoning) == ("Answer", None)


def test_c47_a_block_that_is_never_closed(tool_server: RunningServer) -> None:
    got = answer(tool_server, "I think and think " * 20, max_tokens=20, chat_template_kwargs={"enable_thinking": True})
    assert (got.content, got.finish_reason) == (None, "length")
    assert got.reasoning.startswith("I think and think I think")
    assert got.usage["completion_tokens_details"] == {"reasoning_tokens": 20}


def test_c49_a_call_behind_reasoning(tool_server: RunningServer) -> None:
    got = answer(tool_server, f"<think>{THOUGHT}</think>\n\n{call_text('now', {})}")
    assert (got.reasoning, got.content, got.calls) == (THOUGHT, None, [("now", "{}")])
    assert got.finish_reason == "tool_calls"


def test_c49_a_call_inside_of_reasoning_is_reasoning(tool_server: RunningServer) -> None:
    inside = THOUGHT + call_text("now", {})
    got = answer(tool_server, f"<think>{inside}</think>Done.")
    assert (got.reasoning, got.content, got.calls, got.finish_reason) == (inside, "Done.", [], "stop")


def test_c50_a_stop_string_counts_inside_of_reasoning(tool_server: RunningServer) -> None:
    got = answer(tool_server, "<think>a\nObservation b</think>c", stop=["\nObservation"])
    assert (got.reasoning, got.content, got.stop_reason) == ("a", None, "\nObservation")
    got = answer(tool_server, "<think>Observation a</think>b\nObservation c", stop=["\nObservation"])
    assert (got.reasoning, got.content) == ("Observation a", "b")


def test_c71_stop_strings_do_not_hide_the_marks(intake: Intake) -> None:
    with conversing(intake, reasoning_parser="deepseek_r1") as server:
        endless = answer(server, "I think " * 20, max_tokens=12)
        assert endless.usage["completion_tokens_details"] == {"reasoning_tokens": 12}
        for stop in (None, ["zz"], ["</thin"], ["k>x"]):
            got = answer(server, "abc</think>xyz", stop=stop)
            expected = {"</thin": ("abc", None), "k>x": ("abc</thin", None)}.get((stop or [""])[0], ("abc", "xyz"))
            assert (got.reasoning, got.content) == expected


def test_a_budget_of_thinking(tool_server: RunningServer, server: RunningServer) -> None:
    """This vocabulary has no token for the marks, so that a budget is kept only where there is nothing to keep."""
    for kwargs, status in [({"enable_thinking": False}, 200), ({"enable_thinking": True}, 400), ({}, 400)]:
        body = {"messages": ASK, "thinking_token_budget": 4, "chat_template_kwargs": kwargs, "max_tokens": 2}
        response = tool_server.post(CHAT, body)
        assert response.status_code == status
        assert status == 200 or "think>' is no token of its own" in response.json()["error"]["message"]
    for path, more in [(CHAT, {"messages": ASK}), ("/v1/completions", {"prompt": "x"})]:
        error = server.post(path, {**more, "thinking_token_budget": 4}).json()["error"]
        assert (error["code"], error["param"]) == (400, "thinking_token_budget")


def test_a_forced_call_goes_with_no_beams(tool_server: RunningServer) -> None:
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "use_beam_search": True, "n": 2}
    assert tool_server.post(CHAT, body).json()["error"]["param"] == "tool_choice"


def test_reasoning_may_be_left_out(tool_server: RunningServer) -> None:
    body = {"messages": ASK, "include_reasoning": False}
    text = f"<think>{THOUGHT}</think>It rains."
    message = tool_server.post(CHAT, body, x_request_id=script(tool_server, text)).json()["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == ("It rains.", None)
    events = tool_server.events(CHAT, body, x_request_id=script(tool_server, text))
    assert "reasoning" not in str(events)


def test_an_answer_that_goes_on_within_its_block(tool_server: RunningServer) -> None:
    begun = [*ASK, {"role": "assistant", "content": f"<think>{THOUGHT}"}]
    more = {"messages": begun, "add_generation_prompt": False, "continue_final_message": True}
    got = answer(tool_server, " It pours.</think>Rain.", **more)
    assert (got.reasoning, got.content) == (" It pours.", "Rain.")


def test_each_of_n_has_its_own_calls(tool_server: RunningServer) -> None:
    id = script(tool_server, "unused")
    texts = [call_text("now", {}), "Nothing.", call_text("save", {"x": 1}) + call_text("now", {})]
    for index, text in enumerate(texts):
        tool_server.outputs[f"{id}/{index}"] = tool_server.outputs.pop(script(tool_server, text))
    body = {"messages": ASK, "tools": TOOLS, "n": 3}
    choices = tool_server.post(CHAT, body, x_request_id=id).json()["choices"]
    assert [choice["finish_reason"] for choice in choices] == ["tool_calls", "stop", "tool_calls"]
    assert [len(choice["message"].get("tool_calls", [])) for choice in choices] == [1, 0, 2]
    events = tool_server.events(CHAT, body, x_request_id=id)
    calls = [
        call for event in events for c in event["choices"] if c["index"] == 2 for call in c["delta"].get("tool_calls", [])
    ]
    assert {call["index"] for call in calls} == {0, 1}


def test_c85_logprobs_come_with_the_tokens_of_calls(tool_server: RunningServer) -> None:
    text = f"<think>{THOUGHT}</think>{call_text('now', {})}"
    body = {"messages": ASK, "tools": TOOLS, "logprobs": True, "return_token_ids": True}
    whole = tool_server.post(CHAT, body, x_request_id=script(tool_server, text)).json()["choices"][0]
    events = tool_server.events(CHAT, body, x_request_id=script(tool_server, text))
    choices = [event["choices"][0] for event in events]
    assert [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]] == whole["logprobs"]["content"]
    assert [id for c in choices for id in c.get("token_ids") or []] == whole["token_ids"]


@pytest.mark.parametrize(
    ("more", "param", "message"),
    [
        ({"tools": {"a": 1}}, "body.tools", "valid list"),
        ({"tools": ["f"]}, "tools[0]", "must be an object"),
        ({"tools": [{"type": "retrieval", "function": {"name": "f"}}]}, "tools[0].type", "must be 'function'"),
        ({"tools": [TOOLS[0], {"type": "function"}]}, "tools[1].function", "must be an object with a name"),
        ({"tools": [{"type": "function", "function": {"name": 5}}]}, "tools[0].function.name", "must be a name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
            "must be a JSON schema",
        ),
        ({"tools": [tool(f"f{i}") for i in range(1025)]}, "tools", "at most 1024 entries, got 1025"),
        ({"tools": TOOLS, "tool_choice": "banana"}, "tool_choice", "Invalid value for `tool_choice`: banana!"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice", "Only named tools"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}},
            "tool_choice",
            "does not match any of the specified `tools`",
        ),
    ],
)
def test_c127_what_is_wrong_with_tools_is_said(tool_server: RunningServer, more: Any, param: str, message: str) -> None:
    response = tool_server.post(CHAT, {"messages": ASK, **more})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert message in response.json()["error"]["message"]


def test_strict_functions_need_a_format_for_grammars(intake: Intake) -> None:
    strict = [{"type": "function", "function": {"name": "f", "strict": True}}]
    with conversing(intake, tool_call_parser="gemma4") as server:
        response = server.post(CHAT, {"messages": ASK, "tools": strict})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
        assert "`strict` of a function cannot be enforced" in response.json()["error"]["message"]
        wrong = [{"type": "function", "function": {"name": "f", "strict": "yes"}}]
        assert server.post(CHAT, {"messages": ASK, "tools": wrong}).json()["error"]["param"] == "tools[0].function.strict"


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "bad"}}])
def test_the_function_whose_schema_cannot_be_enforced_is_named(tool_server: RunningServer, choice: Any) -> None:
    bad = tool("bad", a={"not": {}})
    bad["function"]["strict"] = True
    response = tool_server.post(CHAT, {"messages": ASK, "tools": [tool("now"), bad], "tool_choice": choice})
    error = response.json()["error"]
    place = "tools[1].function.parameters"
    assert (response.status_code, error["param"]) == (400, place)
    text = "The JSON schema cannot be enforced: $.properties.a.not: this keyword is not supported"
    assert error["message"] == f"{text} (parameter={place})"


def test_a_forced_call_goes_with_no_other_form(tool_server: RunningServer) -> None:
    body = {"messages": ASK, "tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}
    response = tool_server.post(CHAT, body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")


def test_without_the_option_calls_are_not_looked_for(server: RunningServer) -> None:
    response = server.post(CHAT, {"messages": ASK, "tools": TOOLS})
    text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
    assert response.json() == {"error": {"message": text, "type": "BadRequestError", "param": None, "code": 400}}
    assert server.post(CHAT, {"messages": ASK, "tools": TOOLS, "tool_choice": "none", "max_tokens": 1}).status_code == 200


def test_the_bytes_of_a_stream_with_a_call(tool_server: RunningServer) -> None:
    body = {"messages": ASK, "tools": TOOLS, "stream": True}
    response = tool_server.post(CHAT, body, x_request_id=script(tool_server, "Hi" + call_text("now", {})))
    sent = re.sub(r"chatcmpl-tool-[0-9a-f]{16}", "CALL", response.text)
    found = re.findall(r'"choices":\[(\{.*\})\](?:,"(?:prompt|system)[^\n]*)?\}\n', sent)
    middle = '"logprobs":null,"finish_reason":null,"token_ids":null}'
    assert found == [
        '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}',
        '{"index":0,"delta":{"content":"Hi"},' + middle,
        '{"index":0,"delta":{"tool_calls":[{"index":0,"id":"CALL","type":"function","function":{"name":"now","arguments":""}}]},'
        + middle,
        '{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]},' + middle,
        '{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls","stop_reason":null,"token_ids":null}',
    ]


def test_the_bytes_of_a_message_with_reasoning_and_a_call(tool_server: RunningServer) -> None:
    text = f"<think>hm</think>{call_text('now', {})}"
    response = tool_server.post(CHAT, {"messages": ASK, "tools": TOOLS}, x_request_id=script(tool_server, text))
    sent = re.sub(r"chatcmpl-tool-[0-9a-f]{16}", "CALL", response.text)
    assert sent.partition('"message":')[2].startswith(
        '{"role":"assistant","content":null,"refusal":null,"annotations":null,"audio":null,"function_call":null,"tool_calls":[{"id":'
        '"CALL","type":"function","function":{"name":"now","arguments":"{}"}}],"reasoning":"hm","reasoning_content":"hm"},'
        '"logprobs":null,"finish_reason":"tool_calls","stop_reason":null,'
    )
