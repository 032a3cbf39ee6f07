"""Values in a text of JSON, passed on character by character while they arrive.

The text is a model's and may be wrong: nothing here raises, and what is no JSON is passed on as it is. Only raw control
characters and wrong escapes inside strings, which models write and JSON forbids, become right ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from octavo.parsing.scanner import Emit, Reading, Scanner

_STRING_STOP = re.compile(r'["\\\x00-\x1f]')
_SCALAR_STOP = re.compile(r"[,\]}<\s]")
_CLOSING = {"{": "}", "[": "]"}
_ESCAPABLE = '"\\/bfnrtu'
_NO_STRING_TEXT = re.compile(r'["\\\x00-\x1f\ud800-\udfff]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\b": "\\b", "\f": "\\f"}


def escaped(text: str) -> str:
    """The text as it stands inside a JSON string: what can be itself is itself, halves of surrogate pairs are escapes."""
    return _NO_STRING_TEXT.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return _ESCAPES.get(character) or f"\\u{ord(character):04x}"


def read_string(scanner: Scanner) -> Reading[str | None]:
    """At a quote: the string's value, without halves of surrogate pairs. None for what is no string of JSON."""
    if not (yield from scanner.match('"')):
        return None
    parts: list[str] = []
    if not (yield from pass_string(scanner, parts.append)):
        return None
    return string_value("".join(parts))


def string_value(literal: str) -> str | None:
    """The value of a string's inside and closing quote; None for a wrong escape."""
    try:
        value = json.loads(f'"{literal}')
    except ValueError:
        return None
    return str(value).encode("utf-8", "replace").decode()


def pass_string(scanner: Scanner, emit: Emit) -> Reading[bool]:
    """Behind a quote: pass on the string's inside and closing quote. False if the text ends before."""
    while True:
        rest = yield from scanner.available()
        stop = _STRING_STOP.search(rest)
        if not rest:
            return False
        if stop is None:
            emit(scanner.take(len(rest)))
            continue
        if stop.start():
            emit(scanner.take(stop.start()))
        if stop[0] == '"':
            emit(scanner.take(1))
            return True
        if stop[0] == "\\":
            yield from scanner.peek(2)
            pair = scanner.take(2)
            emit(pair if len(pair) == 1 or pair[1] in _ESCAPABLE else "\\\\" + escaped(pair[1]))
        else:
            emit(escaped(scanner.take(1)))


def pass_value(scanner: Scanner, emit: Emit, ends: Sequence[str] = ()) -> Reading[bool]:
    """Pass on one value. False if it is not complete.

    Where one of `ends` (left unread) or the end of a text that is not cut off comes before closing brackets, these are
    added.
    """
    stops = re.compile("[" + re.escape('"{}[]' + "".join({end[0] for end in ends})) + "]")
    if (yield from scanner.peek()) not in ("", "{", "[", '"'):
        return (yield from _pass_scalar(scanner, emit))
    missing: list[str] = []
    while True:
        rest = yield from scanner.available()
        stop = stops.search(rest)
        if rest and (stop is None or stop.start()):
            emit(scanner.take(len(rest) if stop is None else stop.start()))
            continue
        if stop is None or (yield from _stands_at(scanner, ends)):
            return _close(missing, emit) if stop is not None or scanner.ended_well else False
        emit(scanner.take(1))
        if stop[0] == '"' and not (yield from pass_string(scanner, emit)):
            return False
        if stop[0] in _CLOSING:
            missing.append(_CLOSING[stop[0]])
        elif stop[0] in "]}" and missing:
            missing.pop()
        if not missing and stop[0] in '"]}':
            return True


def _close(missing: list[str], emit: Emit) -> bool:
    if missing:
        emit("".join(reversed(missing)))
    return bool(missing)


def _stands_at(scanner: Scanner, ends: Sequence[str]) -> Reading[bool]:
    if not ends:
        return False
    scanner.mark()
    found = yield from scanner.match(*ends)
    scanner.reset()
    return bool(found)


def _pass_scalar(scanner: Scanner, emit: Emit) -> Reading[bool]:
    """A number, true, false, null, or whatever stands there: up to a comma, closing bracket, < or white space."""
    is_empty = True
    while True:
        rest = yield from scanner.available()
        if not rest:
            return not is_empty and scanner.ended_well
        stop = _SCALAR_STOP.search(rest)
        text = scanner.take(len(rest) if stop is None else stop.start())
        is_empty = is_empty and not text
        if text:
            emit(text)
        if stop is not None:
            return not is_empty
