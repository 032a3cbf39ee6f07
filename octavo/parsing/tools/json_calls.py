"""Calls as JSON objects, `{"name": ..., "arguments": {...}}`: what the formats that use them share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from octavo.parsing.json_text import pass_value, read_string, string_value
from octavo.parsing.scanner import Reading
from octavo.parsing.tools.base import ToolParser

_ARGUMENTS = frozenset({"arguments", "parameters"})
_LABELS = frozenset({"id", "type", "index"})


@dataclass(slots=True)
class _Call:
    """What is known of a call object so far; `early` are arguments that stand before the name."""

    name: str | None = None
    early: str | None = None
    has_begun: bool = False


class JsonToolParser(ToolParser):
    """Reads call objects and lists of them.

    An object without a marker before it is a call only if it names a function that the request offers, has arguments (or
    parameters) and nothing else but labels (`only_known`). Behind a marker the name may be any, further members are
    dropped, and missing arguments are `{}`. Arguments may stand before the name, or be JSON inside a string.
    """

    def call_or_list(self, ends: Sequence[str] = (), *, only_known: bool = False) -> Reading[bool]:
        """At a call object or a list of them: read it. False, with nothing read, if it is neither.

        In a list, what follows the last good call is left unread. `ends` are what may cut arguments off.
        """
        self.scanner.mark()
        if not (yield from self.scanner.match("[")):
            self.scanner.settle()
            return (yield from self.call(ends, only_known=only_known))
        yield from self.scanner.space()
        if not (yield from self.call(ends, only_known=only_known)):
            self.scanner.reset()
            return False
        self.scanner.settle()
        while (yield from self._next_in_list(ends, only_known)):
            pass
        return True

    def _next_in_list(self, ends: Sequence[str], only_known: bool) -> Reading[bool]:
        """Behind a call in a list: read the next one, or the list's end."""
        self.scanner.mark()
        yield from self.scanner.space()
        if (yield from self.scanner.match("]")):
            self.scanner.settle()
            return False
        separated = yield from self.scanner.match(",", ";")
        yield from self.scanner.space()
        if not separated or not (yield from self.call(ends, only_known=only_known)):
            self.scanner.reset()
            return False
        self.scanner.settle()
        return True

    def bare_calls(self) -> Reading[None]:
        """Read calls that have no marker, with or without `;` or `,` between them, as long as one comes."""
        while True:
            self.scanner.mark()
            yield from self.scanner.space()
            if self.num_calls and (yield from self.scanner.match(";", ",")):
                yield from self.scanner.space()
            if not (yield from self.call_or_list(only_known=True)):
                self.scanner.reset()
                return
            self.scanner.settle()

    def call(self, ends: Sequence[str] = (), *, only_known: bool = False) -> Reading[bool]:
        """At a call object: read it. False, with nothing read, if it is none."""
        self.scanner.mark()
        before = self.num_calls
        is_whole = yield from self._object(ends, only_known)
        if not is_whole and self.num_calls == before:
            self.scanner.reset()
            return False
        self.scanner.settle()
        return True

    def _object(self, ends: Sequence[str], only_known: bool) -> Reading[bool]:
        """Read one object; False where it breaks off or is no call."""
        scanner, call = self.scanner, _Call()
        if not (yield from scanner.match("{")):
            return False
        yield from scanner.space()
        while not (yield from scanner.match("}")):
            key = yield from read_string(scanner)
            yield from scanner.space()
            if key is None or not (yield from scanner.match(":")):
                return False
            yield from scanner.space()
            if not (yield from self._member(key, call, ends, only_known)):
                return False
            yield from scanner.space()
            if not (yield from scanner.match(",")) and (yield from scanner.peek()) not in ("}", ""):
                return False
            yield from scanner.space()
        if call.has_begun or call.name is None or only_known:
            return call.has_begun
        self._at_once(call.name, "{}")
        return True

    def _member(self, key: str, call: _Call, ends: Sequence[str], only_known: bool) -> Reading[bool]:
        """Read the value of one member. False if it does not belong to a call, or breaks off."""
        if key == "name" and call.name is None:
            call.name = yield from read_string(self.scanner)
            if not call.name or (only_known and call.name not in self.tools):
                return False
            if call.early is not None:
                self._at_once(call.name, call.early)
                call.has_begun = True
            return True
        if key in _ARGUMENTS and call.name is not None and not call.has_begun:
            call.has_begun = True
            return (yield from self._streamed(call.name, ends))
        if only_known and key not in (_LABELS | _ARGUMENTS):
            return False
        value: list[str] = []
        is_whole = yield from pass_value(self.scanner, value.append, ends)
        if key in _ARGUMENTS and call.early is None:
            call.early = "".join(value)
        return is_whole

    def _at_once(self, name: str, arguments: str) -> None:
        self.begin(name)
        self.arguments(arguments_text(arguments))
        self.end()

    def _streamed(self, name: str, ends: Sequence[str]) -> Reading[bool]:
        """At the arguments of a named call: pass them on as they come."""
        self.begin(name)
        value: list[str] = []
        is_object = (yield from self.scanner.peek()) in ("{", "[")
        is_whole = yield from pass_value(self.scanner, self.arguments if is_object else value.append, ends)
        if not is_object:
            self.arguments(arguments_text("".join(value)))
        if is_whole:
            self.end()
        return is_whole


class MarkedJsonParser(JsonToolParser):
    """Calls behind markers. `is_bare`: also without one, at the start of the answer and behind another call."""

    opening: ClassVar[tuple[str, ...]] = ()
    closing: ClassVar[tuple[str, ...]] = ()
    is_bare: ClassVar[bool] = False

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        if self.is_bare:
            yield from self.bare_calls()
        yield from self.calls_behind(self.opening, self.closing, self._marked_call)

    def _marked_call(self, marker: str) -> Reading[bool]:
        yield from self.scanner.space()
        found = yield from self.call_or_list(self.closing)
        if found and self.is_bare:
            yield from self.bare_calls()
        return found


def arguments_text(value: str) -> str:
    """The arguments that a JSON value means: `{}` for null and "", a string's content if that is an object."""
    inner = string_value(value[1:]) if value[:1] == '"' else None
    if value == "null" or (inner is not None and not inner.strip()):
        return "{}"
    if inner is None:
        return value
    try:
        is_object = isinstance(json.loads(inner), dict)
    except (ValueError, RecursionError):
        return value
    return inner if is_object else value
