"""Answers that a grammar forces into calls: what the grammar has to say, and the parser of one forced call."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from octavo.parsing.json_text import pass_value
from octavo.parsing.scanner import Markers, Reading
from octavo.parsing.tools.base import CallForm, ToolParser, Tools

GENERIC_FORM = CallForm('{"name": NAME, "arguments": ', "}", trigger="", separator=", ")
_NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


class NamedCallParser(ToolParser):
    """The answer is the arguments of one function. Behind them there is only content."""

    def __init__(self, tools: Tools, name: str) -> None:
        self._name = name
        super().__init__(tools)

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        self.scanner.mark()
        yield from self.scanner.space()
        if (yield from self.scanner.peek()) == "{":
            self.scanner.settle()
            self.begin(self._name)
            if (yield from pass_value(self.scanner, self.arguments)):
                self.end()
        else:
            self.scanner.reset()
        yield from self.scanner.until(Markers([]), self.content)


def arguments_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a function's arguments, which are an object whatever its parameters say of that; none without any."""
    return {"type": "object", **parameters} if parameters else _NO_PARAMETERS


def calls_tag(functions: Tools, form: CallForm | None, *, only_one: bool) -> dict[str, Any]:
    """The structural format of an answer that is one or more calls and nothing else, in the model's own form or, where
    that is None, as a JSON list."""
    used = form or GENERIC_FORM
    calls = {
        "type": "tags_with_separator",
        "tags": _tags(functions, used, functions),
        "separator": used.separator,
        "at_least_one": True,
        "stop_after_first": only_one,
    }
    if form is not None:
        return calls
    brackets = [{"type": "const_string", "value": bracket} for bracket in "[]"]
    return {"type": "sequence", "elements": [brackets[0], calls, brackets[1]]}


def strict_tag(functions: Tools, form: CallForm, strict: Iterable[str], *, only_one: bool) -> dict[str, Any]:
    """The structural format of free text with calls in the model's form, those of `strict` functions by their schemas."""
    tags = _tags(functions, form, strict)
    return {"type": "triggered_tags", "triggers": [form.trigger], "tags": tags, "stop_after_first": only_one}


def _tags(functions: Tools, form: CallForm, strict: Iterable[str]) -> list[dict[str, Any]]:
    bound = set(strict)
    return [
        {
            "begin": form.begin.replace("NAME", json.dumps(name, ensure_ascii=False)),
            "content": {
                "type": "json_schema",
                "json_schema": arguments_schema(parameters) if name in bound else {"type": "object"},
            },
            "end": form.end,
        }
        for name, parameters in functions.items()
    ]
