"""Grammar texts in llguidance's dialect of Lark, and its envelope of several grammars."""

from __future__ import annotations

import json
from typing import Any

WHITESPACE = r"[ \t]{1,20}|\n[ \t]{0,20}"
"""Between two parts of JSON: room for the usual indentations, and an end to it."""


def literal(text: str) -> str:
    """A text as a literal."""
    return json.dumps(text, ensure_ascii=False)


def json_options(whitespace_pattern: str | None = None, *, no_whitespace: bool = False) -> dict[str, Any]:
    """How JSON is written, for the member "x-guidance" of a schema."""
    if no_whitespace:
        return {"whitespace_flexible": False}
    return {"whitespace_pattern": whitespace_pattern or WHITESPACE}


def with_options(schema: Any, options: dict[str, Any]) -> dict[str, Any]:
    """An enforceable schema and how its JSON is written."""
    body = schema if isinstance(schema, dict) else ({} if schema else {"enum": []})
    return {**body, "x-guidance": options}


def envelope(*grammars: tuple[str, dict[str, Any]]) -> str:
    """The text that llguidance takes: named grammars, each {"lark_grammar": ...} or {"json_schema": ...}; the first is
    where the text starts, and refers to the others as @name."""
    return json.dumps({"grammars": [{"name": name, **grammar} for name, grammar in grammars]}, ensure_ascii=False)
