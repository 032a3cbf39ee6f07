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


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


_PART = {
    "anyOf": [
        _TEXT,
        {
            "type": "object",
            "properties": {"type": {"enum": ["text", "input_text", "output_text"]}, "text": _TEXT},
            "required": ["type", "text"],
        },
        {
            "type": "object",
            "properties": {"type": {"const": "refusal"}, "refusal": _TEXT},
            "required": ["type", "refusal"],
        },
    ]
}
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

Messages = Annotated[list[Any], Meta(extra_json_schema={"items": _MESSAGE})]
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
OrAll = Annotated[int, Meta(extra_json_schema={"minimum": -1})]  # -1 stands for all, or for no limit
