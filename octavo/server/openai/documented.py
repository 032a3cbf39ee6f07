"""Types of bodies with what the OpenAPI document says of them beyond the type. The server checks these itself, in its own
words: what is here only describes."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from octavo.text.messages import ROLES

MAX_TOOLS = 1024
_TEXT = {"type": "string"}
_NAME = {"type": "string", "minLength": 1}
_OBJECT = {"type": "object"}


def _tagged(tag: str, **members: dict[str, Any]) -> dict[str, Any]:
    """An object whose type is `tag`, with these members and perhaps others."""
    properties = {"type": {"const": tag}, **members}
    return {"type": "object", "properties": properties, "required": list(properties)}


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_PARTS = [
    *(_tagged(kind, text=_TEXT) for kind in ("text", "input_text", "output_text")),
    _tagged("refusal", refusal=_TEXT),
]
_PART = {"anyOf": [_TEXT, *_PARTS]}
_CALL = {
    "type": "object",
    "properties": {
        "id": _TEXT,
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {"name": _TEXT, "arguments": _nullable({"anyOf": [_TEXT, _OBJECT]})},
            "required": ["name"],
        },
    },
    "required": ["function"],
}
_CONTENT = {"anyOf": [_TEXT, {"type": "array", "items": _PART}]}
_MESSAGE = {
    "type": "object",
    "properties": {
        "role": {"enum": list(ROLES)},
        "content": _nullable(_CONTENT),
        "name": _nullable(_TEXT),
        "tool_calls": _nullable({"type": "array", "items": _CALL}),
        "tool_call_id": _nullable(_TEXT),
    },
    "required": ["role"],
    "anyOf": [
        {"properties": {"role": {"const": "assistant"}}},
        {"properties": {"content": _CONTENT}, "required": ["content"]},
    ],
}
_TOOL = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "properties": {
                "name": _NAME,
                "description": _nullable(_TEXT),
                "parameters": _nullable(_OBJECT),
                "strict": _nullable({"type": "boolean"}),
            },
            "required": ["name"],
        },
    },
    "required": ["function"],
}
_NAMED_TOOL = {
    "type": "object",
    "properties": {
        "type": {"const": "function"},
        "function": {"type": "object", "properties": {"name": _NAME}, "required": ["name"]},
    },
    "required": ["type", "function"],
}
_TEXTS = {"anyOf": [_TEXT, {"type": "array", "items": _tagged("text", text=_TEXT)}]}
_BLOCK = {
    "anyOf": [
        _tagged("text", text=_TEXT),
        _tagged("thinking", thinking=_TEXT),
        _tagged("tool_use", id=_TEXT, name=_TEXT, input=_OBJECT),
        _tagged("tool_result", tool_use_id=_TEXT, content=_TEXTS),
    ]
}
_TURN = {
    "type": "object",
    "properties": {
        "type": {"const": "message"},
        "role": {"enum": ["user", "assistant", "system", "developer"]},
        "content": {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": _PARTS}}]},
    },
    "required": ["role", "content"],
}
_ITEM = {
    "anyOf": [
        _TURN,
        _tagged("function_call", call_id=_TEXT, name=_TEXT, arguments=_TEXT),
        _tagged("function_call_output", call_id=_TEXT, output=_TEXT),
        _tagged("reasoning", content={"type": "array", "items": _tagged("reasoning_text", text=_TEXT)}),
    ]
}

_TOKEN = {"type": "integer", "minimum": 0}
_PROMPTS = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
        {"type": "array", "items": _TOKEN, "minItems": 1},
        {"type": "array", "items": {"type": "array", "items": _TOKEN, "minItems": 1}, "minItems": 1},
    ]
}

Prompts = Annotated[Any, Meta(extra_json_schema=_PROMPTS)]
Blocks = Annotated[list[dict[str, Any]], Meta(extra_json_schema={"items": _BLOCK, "minItems": 1})]
Items = Annotated[list[dict[str, Any]], Meta(extra_json_schema={"items": _ITEM, "minItems": 1})]
Messages = Annotated[list[Any], Meta(extra_json_schema={"items": _MESSAGE, "minItems": 1})]
Tools = Annotated[list[Any], Meta(extra_json_schema={"items": _TOOL, "maxItems": MAX_TOOLS})]
Choice = Annotated[
    Any,
    Meta(extra_json_schema={"anyOf": [{"enum": ["none", "auto", "required"]}, _NAMED_TOOL, {"type": "null"}]}),
]
Temperature = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 2})]
Share = Annotated[float, Meta(extra_json_schema={"minimum": 0, "maximum": 1})]
Nucleus = Annotated[float, Meta(extra_json_schema={"exclusiveMinimum": 0, "maximum": 1})]
Penalty = Annotated[float, Meta(extra_json_schema={"minimum": -2, "maximum": 2})]
Factor = Annotated[float, Meta(extra_json_schema={"exclusiveMinimum": 0})]
Seconds = Annotated[float, Meta(extra_json_schema={"exclusiveMinimum": 0})]
Positive = Annotated[int, Meta(extra_json_schema={"minimum": 1})]
Natural = Annotated[int, Meta(extra_json_schema={"minimum": 0})]
Off = Annotated[bool, Meta(extra_json_schema={"const": False})]  # these five are known, and refused at other values
One = Annotated[int, Meta(extra_json_schema={"const": 1})]
Zero = Annotated[int, Meta(extra_json_schema={"const": 0})]
Nothing = Annotated[Any, Meta(extra_json_schema={"type": "null"})]
NoItems = Annotated[list[Any], Meta(extra_json_schema={"maxItems": 0})]
OrAll = Annotated[int, Meta(extra_json_schema={"minimum": -1})]  # -1 stands for all, or for no limit
