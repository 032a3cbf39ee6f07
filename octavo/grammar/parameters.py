"""Arguments that are written one by one, each between marks of its own, as in `<parameter=KEY>...</parameter>`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from octavo.grammar.json_schema import escaped_name, part_of, unenforceable
from octavo.grammar.lark import literal

_KEY = r"/[^<>\s\"']([^<>\n\"']*[^<>\s\"'])?/"
_IN_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties", "$defs", "definitions"})
_IN_TEXTS = frozenset({"type", "enum", "const"})


class Form(NamedTuple):
    """The marks round an argument, KEY in the first standing for its name, and what no text between them holds."""

    begin: str
    end: str
    excludes: Sequence[str]


class Builder(Protocol):
    """What is needed of the structural tag around: each returns what stands for its part in a rule."""

    def literal(self, text: str) -> str: ...

    def rule(self, body: str) -> str: ...

    def schema(self, schema: Any) -> str: ...

    def until(self, text: str, path: str, excludes: Sequence[str] = ()) -> str: ...


def parameters(builder: Builder, form: Form, schema: Any, texts: Collection[str], path: str) -> str:
    """The arguments by the schema of their object, which is enforceable, in its order; the required ones are there. Those
    named in `texts` are written as they are, the others as JSON. An object without `properties` has any arguments, all
    texts."""
    properties = _properties(schema)
    if not properties and schema.get("additionalProperties", True) is not False:
        before, _, behind = form.begin.partition("KEY")
        value = builder.until(form.end, path, form.excludes)
        return f"({builder.literal(before)} {_KEY} {builder.literal(behind)} {value})*"
    parts = []
    for name in properties:
        value = _text(builder, form, schema, name, path) if name in texts else _json(builder, form, schema, name)
        part = builder.rule(f"{builder.literal(form.begin.replace('KEY', name))} {value}")
        parts.append(part if name in schema.get("required", ()) else f"({part})?")
    return " ".join(parts) or literal("")


def _properties(schema: Any) -> Mapping[str, Any]:
    for keyword in schema:
        if keyword not in _IN_OBJECTS:
            raise unenforceable("$", keyword, "it cannot be enforced in this format of calls")
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in properties:
            raise unenforceable("$", "required", f"{name!r:.60} is not among the properties")
    for name in properties:
        if not re.fullmatch(_KEY[1:-1], name):
            raise unenforceable("$", "properties", f"{name!r:.60} cannot be written in this format of calls")
    return properties


def _json(builder: Builder, form: Form, schema: Any, name: str) -> str:
    value = builder.schema(part_of(schema, f"#/properties/{escaped_name(name)}"))
    return f"{value} {builder.literal(form.end)}"


def _text(builder: Builder, form: Form, schema: Any, name: str, path: str) -> str:
    own = schema["properties"][name]
    for keyword in own:
        if keyword not in _IN_TEXTS:
            reason = "of a text it cannot be enforced in this format of calls"
            raise unenforceable(f"$.properties.{name}", keyword, reason)
    if "enum" not in own and "const" not in own:
        return builder.until(form.end, path, form.excludes)
    values = [value for value in own.get("enum", [own.get("const")]) if value == own.get("const", value)]
    choices = [builder.literal(value) for value in values if isinstance(value, str)]
    if not choices:
        raise unenforceable(f"$.properties.{name}", "enum", "no text is among its values")
    return f"({' | '.join(choices)}) {builder.literal(form.end)}"
