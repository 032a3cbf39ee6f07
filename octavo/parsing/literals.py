"""Python's literals (and Gemma's) as JSON, while they arrive."""

from __future__ import annotations

import math
import re

from octavo.parsing.json_text import escaped
from octavo.parsing.scanner import Emit, Markers, Reading, Scanner

_MAX_DEPTH = 32
_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_CLOSING = {"[": "]", "(": ")", "{": "}"}
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0", "\n": ""}
_CODE_LENGTHS = {"x": 2, "u": 4, "U": 8}
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")
_STRING_STOP = re.compile(r"""["'\\]""")


def literal_to_json(text: str) -> str | None:
    """A whole literal as JSON; None for what is none."""
    scanner = Scanner()
    scanner.feed(text)
    scanner.end(is_cut=True)
    parts: list[str] = []
    reading = LiteralReader(scanner, parts.append).value()
    try:
        while True:
            next(reading)
    except StopIteration as stop:
        return "".join(parts) if stop.value and scanner.is_at_end else None


class LiteralReader:
    """Reads values from a scanner and emits them as JSON.

    Strings, numbers, the constants of Python and JSON, lists, tuples (as arrays), and dictionaries whose keys are strings,
    names or numbers. `quote`: strings are raw text between two of these instead.
    """

    def __init__(self, scanner: Scanner, emit: Emit, quote: str | None = None) -> None:
        self._scanner = scanner
        self._emit = emit
        self._quote = quote

    def value(self, depth: int = 0) -> Reading[bool]:
        """Read one value. False for what is none or breaks off: what was emitted until then is of no use."""
        first = yield from self._scanner.peek()
        if first in _CLOSING:
            return depth < _MAX_DEPTH and (yield from self._collection(depth))
        if (yield from self._is_string()):
            return (yield from self._string())
        word = yield from self._scanner.name("+-.")
        text = _CONSTANTS.get(word) or _number(word)
        if text is None:
            return False
        self._emit(text)
        return True

    def _collection(self, depth: int) -> Reading[bool]:
        opening = self._scanner.take(1)
        closing = _CLOSING[opening]
        self._emit("{" if opening == "{" else "[")
        separator = ""
        while True:
            yield from self._scanner.space()
            if (yield from self._scanner.match(closing)):
                self._emit("}" if opening == "{" else "]")
                return True
            self._emit(separator)
            if opening == "{" and not (yield from self._key()):
                return False
            if not (yield from self.value(depth + 1)):
                return False
            yield from self._scanner.space()
            separator = ", "
            if not (yield from self._scanner.match(",")) and (yield from self._scanner.peek()) != closing:
                return False

    def _key(self) -> Reading[bool]:
        if (yield from self._is_string()):
            if not (yield from self._string()):
                return False
        else:
            name = yield from self._scanner.name(".-")
            if not name:
                return False
            self._emit(f'"{escaped(name)}"')
        yield from self._scanner.space()
        if not (yield from self._scanner.match(":")):
            return False
        yield from self._scanner.space()
        self._emit(": ")
        return True

    def _is_string(self) -> Reading[bool]:
        if self._quote is None:
            return (yield from self._scanner.peek()) in ('"', "'")
        self._scanner.mark()
        found = yield from self._scanner.match(self._quote)
        self._scanner.reset()
        return bool(found)

    def _string(self) -> Reading[bool]:
        self._emit('"')
        if self._quote is None:
            is_whole = yield from self._python_string()
        else:
            self._scanner.take(len(self._quote))
            is_whole = bool((yield from self._scanner.until(Markers([self._quote]), lambda text: self._emit(escaped(text)))))
        self._emit('"')
        return is_whole

    def _python_string(self) -> Reading[bool]:
        quote = yield from self._scanner.match('"""', "'''", '"', "'")
        if len(quote) == 1 and (yield from self._scanner.match(quote)):
            return True
        while True:
            rest = yield from self._scanner.available()
            if not rest:
                return False
            stop = _STRING_STOP.search(rest)
            if stop is None or stop.start():
                self._emit(escaped(self._scanner.take(len(rest) if stop is None else stop.start())))
            elif stop[0] == "\\":
                yield from self._escape()
            elif (yield from self._scanner.match(quote)):
                return True
            else:
                self._emit(escaped(self._scanner.take(1)))

    def _escape(self) -> Reading[None]:
        """At a backslash: what it means together with the characters behind it; itself, if nothing."""
        pair = yield from self._scanner.peek(2)
        self._scanner.take(2)
        letter = pair[1:]
        if letter in _CODE_LENGTHS:
            code = yield from self._scanner.peek(_CODE_LENGTHS[letter])
            if len(code) == _CODE_LENGTHS[letter] and set(code) <= _HEXADECIMAL and int(code, 16) < 0x110000:
                self._scanner.take(len(code))
                self._emit(escaped(chr(int(code, 16))))
                return
        elif letter and letter in "\\'\"":
            self._emit(escaped(letter))
            return
        elif letter in _ESCAPES:
            self._emit(escaped(_ESCAPES[letter]))
            return
        self._emit(escaped(pair))


def _number(text: str) -> str | None:
    """A finite number of Python as JSON; None for what is none."""
    if _JSON_NUMBER.fullmatch(text):
        return text if math.isfinite(float(text)) else None
    try:
        return str(int(text, 0))
    except ValueError:
        pass
    try:
        value = float(text)
    except ValueError:
        return None
    return repr(value) if math.isfinite(value) else None
