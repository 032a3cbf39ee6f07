"""Forty conversations of all kinds: what a chat template may be given, as Transformers takes it."""

from __future__ import annotations

import json
from typing import Any

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "A city's name, <with> \"quotes\" & 'more'"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": ["integer", "null"], "minimum": 1},
        "where": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
}
NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def function(name: str, parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": f"About {name}.", "parameters": parameters, **more},
    }


WEATHER, NOW = function("get_weather", PARAMETERS), function("now", NO_PARAMETERS)
RETURNS = function("add", NO_PARAMETERS, **{"return": {"type": "number", "description": "The sum"}})


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def call(number: int, name: str = "get_weather", arguments: Any = None) -> dict[str, Any]:
    arguments = {"city": "Z\u00fcrich", "days": 3} if arguments is None else arguments
    return {"id": f"abcdefgh{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(number: int, content: Any = '{"sun": true}') -> dict[str, Any]:
    return said("tool", content, name="get_weather", tool_call_id=f"abcdefgh{number}")


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


USER, SYSTEM, ANSWER = said("user", "Hello <there> & \u201cyou\u201d"), said("system", "Be brief."), said("assistant", "Hi!")
DEVELOPER, ASK = said("developer", "Use short words."), said("user", "How is the weather in Z\u00fcrich?")
MORE = said("user", "And then?")
CALLS = said("assistant", "", tool_calls=[call(1)])
TWO_CALLS = said("assistant", "Let me see.", tool_calls=[call(1), call(2, "now", {})])


def thought(reasoning: str) -> dict[str, str]:
    """Under all the names that templates use, which Transformers copies it to and Octavo's `normalize_messages` too."""
    return {"reasoning_content": reasoning, "reasoning": reasoning, "thinking": reasoning}


THOUGHT = said("assistant", "Four.", **thought("Two and two.\nSo four."))
TAGGED = said("assistant", "<think>\nTwo and two.\n</think>\n\nFour.")
TOOLS = {"tools": [WEATHER, NOW]}

CONVERSATIONS: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    ([USER], {}),
    ([USER], {"add_generation_prompt": False}),
    ([SYSTEM, USER], {}),
    ([SYSTEM, USER, ANSWER, MORE], {}),
    ([USER, ANSWER, MORE, ANSWER, USER], {}),
    ([USER, ANSWER], {"add_generation_prompt": False}),
    ([USER, ANSWER], {"add_generation_prompt": False, "continue_final_message": True}),
    ([USER, said("assistant", "It is  ")], {"add_generation_prompt": False, "continue_final_message": True}),
    ([DEVELOPER, USER], {}),
    ([SYSTEM, DEVELOPER, USER], {}),
    ([DEVELOPER, USER], TOOLS),
    ([SYSTEM, SYSTEM, USER], {}),
    ([USER, SYSTEM, MORE], {}),
    ([SYSTEM], {}),
    ([USER, MORE], {}),
    ([ANSWER, USER], {}),
    ([said("user", "  spaces \n around\n\n ")], {}),
    ([said("user", "")], {}),
    ([said("system", ""), USER], {}),
    ([said("user", "\u6771\u4eac \U0001f642 e\u0301 {{ x }} {% y %} <|im_end|> [INST]")], {}),
    ([said("user", parts("One.", "Two."))], {}),
    ([said("system", parts("Be brief.")), said("user", parts("Hi")), said("assistant", parts("Yes?")), MORE], {}),
    ([said("user", [])], {}),
    ([USER], TOOLS),
    ([SYSTEM, USER], {"tools": [RETURNS]}),
    ([SYSTEM, ASK, CALLS], TOOLS | {"add_generation_prompt": False}),
    ([ASK, CALLS, result(1)], TOOLS),
    ([ASK, CALLS, result(1), said("assistant", "Sunny."), MORE], TOOLS),
    ([ASK, TWO_CALLS, result(1), result(2, "12:00")], TOOLS),
    ([ASK, said("assistant", None, tool_calls=[call(1)]), result(1)], TOOLS),
    ([ASK, said("assistant", "", tool_calls=[call(1, arguments=json.dumps({"city": "Z\u00fcrich"}))]), result(1)], TOOLS),
    (
        [ASK, said("assistant", "", tool_calls=[call(1, arguments={"where": {"x": 1.5}, "tags": ["a", 'b"']})]), result(1)],
        TOOLS,
    ),
    ([ASK, CALLS, result(1, parts("sun", "wind"))], TOOLS),
    ([ASK, CALLS, result(1)], {}),
    ([USER, THOUGHT, MORE], {}),
    ([USER, TAGGED, MORE], {}),
    ([ASK, said("assistant", "", tool_calls=[call(1)], **thought("I ask.")), result(1)], TOOLS),
    ([USER], {"enable_thinking": False}),
    ([SYSTEM, USER, TAGGED, MORE], {"enable_thinking": True, "thinking": True}),
    ([USER], {"documents": [{"title": "A", "text": "First."}, {"title": "B", "text": "Second."}]}),
]
