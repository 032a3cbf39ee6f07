"""30 JSON schemas as clients send them, and a validator that checks formats too."""

from __future__ import annotations

import datetime
import ipaddress
import re
import uuid
from collections.abc import Callable
from typing import Any

import jsonschema

TEXT = {"type": "string", "maxLength": 12}
POINT = {
    "type": "object",
    "properties": {
        "x": {"type": "integer", "minimum": -9, "maximum": 9},
        "y": {"type": "integer", "minimum": -9, "maximum": 9},
    },
    "required": ["x", "y"],
    "additionalProperties": False,
}


def record(**properties: Any) -> dict[str, Any]:
    """An object with exactly these members."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


SCHEMAS: dict[str, Any] = {
    "boolean": {"type": "boolean"},
    "null or text": {"type": ["string", "null"], "maxLength": 8},
    "integer range": {"type": "integer", "minimum": 1, "maximum": 10},
    "exclusive range": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "multiple": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 700},
    "enum": {"enum": ["red", "green", "blue"]},
    "mixed enum": {"enum": [1, None, True, {"a": 1}, "text"]},
    "const": {"const": {"kind": "fixed", "list": [1, 2]}},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "pattern and length": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
    "lengths": {"type": "string", "minLength": 3, "maxLength": 6},
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "ipv4": {"type": "string", "format": "ipv4"},
    "email": record(address={"type": "string", "format": "email", "maxLength": 30}),
    "record": record(name=TEXT, age={"type": "integer", "minimum": 0, "maximum": 120}),
    "nested": record(person=record(name=TEXT, home=record(city=TEXT)), ok={"type": "boolean"}),
    "optional members": {
        "type": "object",
        "properties": {"z": {"type": "boolean"}, "a": {"type": "null"}, "m": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "list": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 1, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [TEXT, {"type": "boolean"}], "items": False, "minItems": 2},
    "list of records": {"type": "array", "items": POINT, "maxItems": 3},
    "reference": {
        "type": "object",
        "properties": {"c": {"$ref": "#/$defs/C"}},
        "required": ["c"],
        "$defs": {"C": {"enum": ["red", "blue"]}},
        "additionalProperties": False,
    },
    "recursive": {
        "$defs": {"node": record(v={"enum": [0, 1]}, next={"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]})},
        "$ref": "#/$defs/node",
    },
    "tree": {
        "type": "object",
        "properties": {"n": {"enum": [1]}, "children": {"type": "array", "items": {"$ref": "#"}, "maxItems": 2}},
        "required": ["n", "children"],
        "additionalProperties": False,
    },
    "any of": {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"enum": ["none"]}, record(id={"enum": [7]})]},
    "one of": {"oneOf": [record(kind={"const": "a"}, n={"enum": [1]}), record(kind={"const": "b"}, t={"enum": ["x"]})]},
    "all of": {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]},
            {"properties": {"b": {"enum": [1, 2]}}, "required": ["b"]},
        ],
        "maxProperties": 2,
    },
    "map of integers": {"type": "object", "additionalProperties": {"enum": [1, 2]}, "maxProperties": 2},
    "named by pattern": {
        "type": "object",
        "patternProperties": {"^x_[a-z]{1,3}$": {"enum": [True]}},
        "additionalProperties": False,
        "maxProperties": 2,
    },
}

FORMATS = jsonschema.FormatChecker(formats=())


def _checks(name: str, parse: Callable[[str], object]) -> None:
    @FORMATS.checks(name, raises=ValueError)
    def check(value: object) -> bool:
        if isinstance(value, str):
            parse(value)
        return True


def _date_time(text: str) -> None:
    """RFC 3339, whose leap seconds and precision Python's class does not know."""
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:)(\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)", text, re.ASCII)
    if match is None:
        raise ValueError(text)
    offset = "+00:00" if match[5] in "Zz" else match[5]
    datetime.datetime.fromisoformat(f"{match[1]}T{match[2]}{min(59, int(match[3])):02}{offset}")


def _email(text: str) -> None:
    if not re.fullmatch(r"[^@]+@[^@]+", text):
        raise ValueError(text)


for _name, _parse in {
    "date": datetime.date.fromisoformat,
    "date-time": _date_time,
    "uuid": uuid.UUID,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "email": _email,
}.items():
    _checks(_name, _parse)


def validate(instance: Any, schema: Any) -> None:
    """jsonschema.ValidationError unless the instance satisfies the schema, formats included."""
    jsonschema.Draft202012Validator(schema, format_checker=FORMATS).validate(instance)
