"""Grammar texts in llguidance's dialect of Lark, and its envelope of several grammars."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

WHITESPACE = r"[ \t]{1,20}|\n[ \t]{0,20}"
"""Between two parts of JSON: room for the usual indentations, and an end to it."""


def literal(text: str) -> str:
    """A text as a literal."""
    return json.dumps(text, ensure_ascii=False)


_TOKEN_NAME = re.compile(r"<[^<>\[\]\s][^<>\s]*>")


def special_name(text: str) -> str:
    """How grammars refer to the special token with this text: by the text where it has angle brackets round it."""
    return text if _TOKEN_NAME.fullmatch(text) else f"<|{quote(text, safe='[]/_')}|>"


class Marks:
    """Literals in which the texts of a model's special tokens stand for these tokens, as models write them."""

    def __init__(self, special_tokens: Iterable[str] = ()) -> None:
        texts = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._special = re.compile(f"({'|'.join(map(re.escape, texts))})") if texts else None

    def parts(self, text: str) -> list[tuple[str, bool]]:
        """The parts of a text in their order, each with whether it is a special token."""
        split = [text] if self._special is None else self._special.split(text)
        return [(part, i % 2 == 1) for i, part in enumerate(split) if part]

    def literal(self, text: str) -> str:
        """A text as what stands for it in a rule."""
        parts = [special_name(part) if is_special else literal(part) for part, is_special in self.parts(text)]
        return " ".join(parts) or literal("")


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
