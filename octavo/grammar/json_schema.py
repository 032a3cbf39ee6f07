"""JSON schemas (draft 2020-12, and what older drafts wrote otherwise): what can be enforced, and what is refused.

A keyword that constrains the text is either enforced to the letter or refused with its JSON path; only annotations are
dropped. Nothing is approximated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from octavo.errors import ValidationError

MAX_DEPTH = 64
"""Of schemas inside schemas."""

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = frozenset({"date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"})

_RANGES: Mapping[str, tuple[int, int]] = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}
_FORMATS_OF_ANYTHING = frozenset({"float", "double", "password", "path"})  # they say nothing about the text
_ANNOTATIONS = {
    *("$schema", "$comment", "$anchor", "title", "description", "default", "example", "examples", "deprecated", "readOnly"),
    *("writeOnly", "nullable", "contentEncoding", "contentMediaType", "contentSchema", "discriminator", "externalDocs"),
    *("xml", "propertyOrdering"),
}
_PLAIN = frozenset(["const", "minLength", "maxLength", "minItems", "maxItems", "maxProperties"])
_NUMBERS = frozenset(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"])
_LISTS_OF_SCHEMAS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_MAPS_OF_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions"})


def unenforceable(path: str, keyword: str, reason: str) -> ValidationError:
    """The refusal of one keyword."""
    return ValidationError(f"The JSON schema cannot be enforced: {path}.{keyword}: {reason}", parameter="structured_outputs")


def enforceable(schema: Any, *, closed: bool = False) -> Any:
    """The schema without its annotations, every other keyword known to be enforced. ValidationError names path and keyword
    of the first that is not. With `closed`, objects have no members but those of their `properties`."""
    return _Reader(closed).schema(schema, "$", 0)


def subschemas(schema: Any, path: str = "$", pointer: str = "#") -> list[tuple[str, str]]:
    """Path and JSON pointer of every schema inside an enforceable one, the innermost first."""
    found: list[tuple[str, str]] = []
    if isinstance(schema, dict):
        for keyword, value in schema.items():
            found += _inner(keyword, value, f"{path}.{keyword}", f"{pointer}/{keyword}")
    return [*found, (path, pointer)]


def _inner(keyword: str, value: Any, path: str, pointer: str) -> list[tuple[str, str]]:
    if keyword in _LISTS_OF_SCHEMAS:
        return [found for i, one in enumerate(value) for found in subschemas(one, f"{path}[{i}]", f"{pointer}/{i}")]
    if keyword in _MAPS_OF_SCHEMAS:
        return [
            found
            for name, one in value.items()
            for found in subschemas(one, f"{path}.{name}", f"{pointer}/{escaped_name(name)}")
        ]
    return subschemas(value, path, pointer) if keyword in ("items", "additionalProperties") else []


def escaped_name(name: str) -> str:
    """As a part of a JSON pointer (RFC 6901) in a URI fragment."""
    return quote(name.replace("~", "~0").replace("/", "~1"), safe="~")


def part_of(schema: Any, pointer: str) -> dict[str, Any]:
    """The schema at a pointer inside an enforceable one, as a schema of its own in which references lead where they led."""
    return {"$defs": {"root": _with_moved_references(schema)}, "$ref": f"#/$defs/root{pointer[1:]}"}


def _with_moved_references(schema: Any) -> Any:
    """For a schema that becomes `#/$defs/root`. Values of const and enum stay as they are."""
    if isinstance(schema, list):
        return [_with_moved_references(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: "#/$defs/root" + value[1:]
        if key == "$ref" and isinstance(value, str)
        else (value if key in ("const", "enum") else _with_moved_references(value))
        for key, value in schema.items()
    }


class _Reader:
    """Walks a schema once; the readers of single keywords return what stands in the result."""

    def __init__(self, closed: bool) -> None:
        self._closed = closed

    def schema(self, schema: Any, path: str, depth: int) -> Any:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            text = f"A JSON schema must be an object or a boolean, but {path} is {type(schema).__name__}."
            raise ValidationError(text, parameter="structured_outputs")
        if depth > MAX_DEPTH:
            raise ValidationError(
                f"The JSON schema is nested more than {MAX_DEPTH} deep at {path}.", parameter="structured_outputs"
            )
        result: dict[str, Any] = {}
        for keyword, value in schema.items():
            self._keyword(result, schema, keyword, value, path, depth)
        if self._closed and ("properties" in schema or schema.get("type") == "object"):
            result["additionalProperties"] = False
        return result

    def _keyword(
        self, result: dict[str, Any], schema: dict[str, Any], keyword: str, value: Any, path: str, depth: int
    ) -> None:
        if keyword in _ANNOTATIONS or (keyword.startswith("x-") and keyword != "x-guidance"):
            return
        if keyword in _LISTS_OF_SCHEMAS:
            result[keyword] = [*result.get(keyword, ()), *self._list(value, path, keyword, depth)]
        elif keyword in _MAPS_OF_SCHEMAS:
            result[keyword] = self._map(value, path, keyword, depth)
        elif keyword in _NUMBERS:
            result[keyword] = _number(value, path, keyword)
        elif keyword in _PLAIN:
            result[keyword] = value if keyword == "const" else _count(value, path, keyword)
        elif keyword in _KEYWORDS:
            _KEYWORDS[keyword](self, result, schema, value, path, depth)
        else:
            raise unenforceable(path, keyword, "this keyword is not supported")

    def _list(self, value: Any, path: str, keyword: str, depth: int) -> list[Any]:
        if not isinstance(value, list) or not value:
            raise unenforceable(path, keyword, "it must be a list of one or more schemas")
        return [self.schema(one, f"{path}.{keyword}[{i}]", depth + 1) for i, one in enumerate(value)]

    def _map(self, value: Any, path: str, keyword: str, depth: int) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise unenforceable(path, keyword, "it must map names to schemas")
        return {name: self.schema(one, f"{path}.{keyword}.{name}", depth + 1) for name, one in value.items()}

    def type(self, result: dict[str, Any], schema: dict[str, Any], value: Any, path: str, depth: int) -> None:
        names = value if isinstance(value, list) else [value]
        if not names or any(not isinstance(name, str) or name not in TYPES for name in names):
            raise unenforceable(path, "type", f"it must be one of {', '.join(TYPES)}, or a list of these, got {value!r:.60}")
        result["type"] = value

    def enum(self, result: dict[str, Any], schema: dict[str, Any], value: Any, path: str, depth: int) -> None:
        if not isinstance(value, list) or not value:
            raise unenforceable(path, "enum", "it must be a list of one or more values")
        result["enum"] = value

    def reference(self, result: dict[str, Any], schema: dict[str, Any], value: Any, path: str, depth: int) -> None:
        if not isinstance(value, str) or not (value == "#" or value.startswith("#/")):
            reason = f"only references inside the schema ('#', '#/$defs/name') can be followed, got {value!r:.60}"
            raise unenforceable(path, "$ref", reason)
        result["$ref"] = "#" + quote(value[1:], safe="/~%!$&'()*+,;=:@?")  # names are often written as they are

    def identifier(self, result: dict[str, Any], schema: dict[str, Any], value: Any, path: str, depth: int) -> None:
        if path != "$":
            raise unenforceable(path, "$id", "a schema inside another one cannot have an id of its own")

    def required(self, result: dict[str, Any], schema: dict[str, Any], value: Any, path: str, depth: int) -> None:
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise unenforceable(path, "required", "it must be a list of names")
        result["required"] = list(dict.fromkeys(value))

    def items(self, result: dict[str, Any], schema: dict[str, Any], value: Any, path: str, depth: int) -> None:
        """A list of schemas is what prefixItems was called up to draft 2019-09."""
        if isinstance(value, list):
            result["prefixItems"] = self._list(value, path, "items", depth)
            if "additionalItems" in schema:
                result["items"] = self.schema(schema["additionalItems"], f"{path}.additionalItems", depth + 1)
        else:
            result["items"] = self.schema(value, f"{path}.items", depth + 1)

    def additional_items(self, result: dict[str, Any], schema: dict[str, Any], value: Any, path: str, depth: int) -> None:
        """Read with `items`; without a list there it means nothing."""

    def additional_properties(
        self, result: dict[str, Any], schema: dict[str, Any], value: Any, path: str, depth: int
    ) -> None:
        result["additionalProperties"] = self.schema(value, f"{path}.additionalProperties", depth + 1)

    def pattern(self, result: dict[str, Any], schema: dict[str, Any], value: Any, path: str, depth: int) -> None:
        if not isinstance(value, str):
            raise unenforceable(path, "pattern", "it must be a regular expression")
        result["pattern"] = value

    def format(self, result: dict[str, Any], schema: dict[str, Any], value: Any, path: str, depth: int) -> None:
        if value in _RANGES:
            least, most = _RANGES[value]
            result["allOf"] = [*result.get("allOf", ()), {"type": "integer", "minimum": least, "maximum": most}]
        elif value in FORMATS:
            result["format"] = value
            if value in ("date", "date-time"):  # RFC 3339 has a year 0000, which many a calendar does not
                result["allOf"] = [*result.get("allOf", ()), {"pattern": "^(?:[1-9]|0[1-9]|00[1-9]|000[1-9])"}]
        elif value not in _FORMATS_OF_ANYTHING:
            known = ", ".join(sorted(FORMATS | set(_RANGES)))
            raise unenforceable(path, "format", f"{value!r:.60} is not one of those that can be enforced ({known})")

    def min_properties(self, result: dict[str, Any], schema: dict[str, Any], value: Any, path: str, depth: int) -> None:
        """Enforced only by the required members: members may be written twice, which counts once."""
        required = schema.get("required")
        if _count(value, path, "minProperties") > (len(set(required)) if isinstance(required, list) else 0):
            raise unenforceable(path, "minProperties", "it can only be enforced up to the number of required members")

    def unique_items(self, result: dict[str, Any], schema: dict[str, Any], value: Any, path: str, depth: int) -> None:
        most = schema.get("maxItems")
        if value is not False and not (isinstance(most, int) and most <= 1):
            raise unenforceable(path, "uniqueItems", "it can only be enforced where maxItems is at most 1")


_KEYWORDS: Mapping[str, Callable[[_Reader, dict[str, Any], dict[str, Any], Any, str, int], None]] = {
    "type": _Reader.type,
    "enum": _Reader.enum,
    "$ref": _Reader.reference,
    "$id": _Reader.identifier,
    "required": _Reader.required,
    "items": _Reader.items,
    "additionalItems": _Reader.additional_items,
    "additionalProperties": _Reader.additional_properties,
    "pattern": _Reader.pattern,
    "format": _Reader.format,
    "minProperties": _Reader.min_properties,
    "uniqueItems": _Reader.unique_items,
}


def _number(value: Any, path: str, keyword: str) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise unenforceable(path, keyword, f"it must be a number, got {value!r:.60}")
    return value


def _count(value: Any, path: str, keyword: str) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise unenforceable(path, keyword, f"it must be a whole number of 0 or more, got {value!r:.60}")
    return value
