"""Answers that a grammar forces into calls: what the grammar has to say, and the parser of one forced call."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.parsing.arguments import is_text
from octavo.parsing.json_text import pass_value
from octavo.parsing.scanner import Markers, Reading
from octavo.parsing.tools.base import CallForm, MessageForm, ToolParser, Tools

GENERIC_FORM = CallForm('{"name": "NAME", "arguments": ', "}", opening="[", separator=", ", closing="]")
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


def json_forms(forms: Sequence[CallForm]) -> tuple[CallForm, ...]:
    """The forms in which a call may be forced: those of the model whose arguments are JSON, which a grammar can hold to any
    schema, or else a JSON list."""
    found = tuple(form for form in forms if form.parameters is None)
    return found or (GENERIC_FORM,)


def calls_tag(
    functions: Tools, forms: Sequence[CallForm], strict: Iterable[str] | None = None, *, only_one: bool
) -> dict[str, Any]:
    """The structural format of one or more calls and nothing else, in any of the forms; those of `strict` functions (None:
    of all) by their schemas."""
    bound = frozenset(functions if strict is None else strict)
    return _either([_group(functions, form, bound, only_one=only_one) for form in forms])


def message_tag(functions: Tools, forms: Sequence[CallForm], messages: MessageForm, strict: Iterable[str]) -> dict[str, Any]:
    """The structural format of an answer of messages that ends with one call, or with free text."""

    def message(begin: str, end: str) -> dict[str, Any]:
        content = {"type": "any_text", "excludes": [*messages.excludes]}
        return {"type": "tag", "begin": begin, "content": content, "end": end}

    tags = [{"begin": "", "content": message(begin, messages.note_end), "end": messages.next} for begin in messages.notes]
    notes = {"type": "tags_with_separator", "tags": tags, "separator": ""}
    answer = message(messages.answer, "")
    return _row(notes, _either([calls_tag(functions, forms, strict, only_one=True), answer]))


def strict_tag(functions: Tools, forms: Sequence[CallForm], strict: Iterable[str], *, only_one: bool) -> dict[str, Any]:
    """The structural format of free text with calls in the model's forms, those of `strict` functions by their schemas."""
    bound = frozenset(strict)
    marked = [form for form in forms if form.trigger]
    bare = [form for form in forms if not form.trigger]
    rest = _free_text(functions, marked, bound, only_one=only_one)
    if not bare:
        return rest
    calls = calls_tag(functions, forms, bound, only_one=only_one)
    starts = "".join({*"".join(form.starts for form in bare), *(form.trigger[0] for form in marked)})
    first = {"type": "regex", "pattern": rf"\s*[^\s{re.escape(starts)}]"}
    behind_calls = {"type": "const_string", "value": ""} if only_one else rest
    return _either([_row(calls, behind_calls), _row(first, rest), {"type": "const_string", "value": ""}])


def _free_text(functions: Tools, forms: Sequence[CallForm], strict: frozenset[str], *, only_one: bool) -> dict[str, Any]:
    tags = []
    for form in forms:
        calls = _tags(functions, form, strict)
        if form.opening:
            content = _separated(calls, form, only_one=only_one)
            calls = [{"begin": form.opening, "content": content, "end": form.closing}]
        tags += calls
    if not tags:
        return {"type": "any_text"}
    triggers = list(dict.fromkeys(form.trigger for form in forms))
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags, "stop_after_first": only_one}


def _group(functions: Tools, form: CallForm, strict: frozenset[str], *, only_one: bool) -> dict[str, Any]:
    calls = _separated(_tags(functions, form, strict), form, only_one=only_one)
    brackets = [{"type": "const_string", "value": text} for text in (form.opening, form.closing)]
    return _row(brackets[0], calls, brackets[1]) if form.opening else calls


def _separated(calls: list[dict[str, Any]], form: CallForm, *, only_one: bool) -> dict[str, Any]:
    return {
        "type": "tags_with_separator",
        "tags": calls,
        "separator": form.separator,
        "at_least_one": True,
        "stop_after_first": only_one,
    }


def _row(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "sequence", "elements": [*parts]}


def _either(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "or", "elements": parts} if len(parts) > 1 else parts[0]


def _tags(functions: Tools, form: CallForm, strict: frozenset[str]) -> list[dict[str, Any]]:
    return [
        {
            "begin": _begin(form, name),
            "content": _arguments(form, arguments_schema(parameters) if name in strict else {"type": "object"}),
            "end": form.end,
        }
        for name, parameters in functions.items()
    ]


def _begin(form: CallForm, name: str) -> str:
    quoted = json.dumps(name, ensure_ascii=False)
    return form.begin.replace('"NAME"', quoted) if '"NAME"' in form.begin else form.begin.replace("NAME", name)


def _arguments(form: CallForm, schema: dict[str, Any]) -> dict[str, Any]:
    own = form.parameters
    if own is None:
        return {"type": "json_schema", "json_schema": schema}
    properties = schema.get("properties")
    texts = [name for name, one in properties.items() if is_text(one)] if isinstance(properties, dict) else []
    marks = {"begin": own.begin, "end": own.end, "excludes": [*own.excludes]}
    return {"type": "parameters", "json_schema": schema, "texts": texts, **marks}
