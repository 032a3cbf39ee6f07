"""Argument values that a model wrote as plain text, as the JSON that their schema asks for.

A text that does not fit its schema is passed on as a string: a call is never lost over a value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from octavo.parsing.json_text import escaped
from octavo.parsing.literals import literal_to_json

_KINDS: Mapping[type, str] = {
    bool: "boolean",
    dict: "object",
    float: "number",
    int: "integer",
    list: "array",
    str: "string",
    type(None): "null",
}
_BRANCHES = ("anyOf", "oneOf", "allOf")
_MAX_DEPTH = 8


def property_schema(parameters: Mapping[str, Any], name: str) -> Any:
    """The schema of one argument, None if there is none."""
    properties = parameters.get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None


def allowed_types(schema: Any, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows, as far as it says so at its surface; none if it does not say."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return frozenset()
    types = schema.get("type")
    if isinstance(types, str):
        return frozenset([types])
    if isinstance(types, list):
        return frozenset(each for each in types if isinstance(each, str))
    values = schema["enum"] if isinstance(schema.get("enum"), list) else [schema["const"]] if "const" in schema else []
    kinds = {_KINDS.get(type(value), "") for value in values}
    for branch in (each for name in _BRANCHES if isinstance(schema.get(name), list) for each in schema[name]):
        kinds |= allowed_types(branch, depth + 1)
    return frozenset(kinds)


def is_text(schema: Any) -> bool:
    """Whether every text is a value as it is."""
    return allowed_types(schema) == {"string"}


def value_json(text: str, schema: Any) -> str:
    """The text as JSON of the first of these that fits: JSON of an allowed type (of any, if the schema allows all),
    a Python literal of one, a string."""
    types = allowed_types(schema)
    stripped = text.strip()
    for candidate in (stripped, literal_to_json(stripped)):
        if candidate is not None and types != {"string"}:
            kind = _kind(candidate)
            if kind is not None and (not types or kind in types or (kind == "integer" and "number" in types)):
                return candidate
    return f'"{escaped(text)}"'


def _kind(text: str) -> str | None:
    """The type of a JSON text; None for what is none, or holds a number beyond all that clients could read."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return _KINDS[type(value)]


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value
