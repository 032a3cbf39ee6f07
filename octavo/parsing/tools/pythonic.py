"""`[name(key=value, ...), ...]`: Llama 3.2 and 4, LFM 2, and others that write Python."""

from __future__ import annotations

import re

from octavo.parsing.json_text import escaped
from octavo.parsing.literals import LiteralReader
from octavo.parsing.scanner import Reading
from octavo.parsing.tools.base import ToolParser, Tools

_STARTS = ("<|python_start|>", "<|tool_call_start|>")
_ENDS = ("<|python_end|>", "<|tool_call_end|>")
_NEXT_BRACKET = re.compile(r"""["'()\\]""")
_HELD = 64  # characters of arguments that come at once, with the name


class PythonicParser(ToolParser):
    """A list of calls with keyword arguments, anywhere in the answer; without a mark before it, the first must be of a
    function that the request offers.

    A call is sent when it is complete or has more than a few characters of arguments. Before that, one that turns out to
    be none (a value that JSON cannot express, a positional argument) is content; a list in which no call is good is text
    like any other.
    """

    special = (*_STARTS, *_ENDS)

    def __init__(self, tools: Tools) -> None:
        self._name = ""
        self._held: list[str] = []
        self._bad: list[str] = []  # calls of the list that are none, while no good one has come
        self._has_begun = False
        self._num_before = 0  # good calls before this list
        super().__init__(tools)

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        yield from self.calls_behind(["[", *_STARTS], _ENDS, self._list)

    def _list(self, marker: str) -> Reading[bool]:
        """Read a list of calls to its end. False if no call was good."""
        self._num_before, self._bad = self.num_calls, []
        yield from self.scanner.space()
        if marker in _STARTS and not (yield from self.scanner.match("[")):
            return False
        yield from self.scanner.space()
        is_first = marker not in _STARTS
        while (yield from self._call(only_known=is_first)):
            is_first = False
            yield from self.scanner.space()
            if (yield from self.scanner.match("]")):
                break
            if not (yield from self.scanner.match(",")):
                break
            yield from self.scanner.space()
        return self.num_calls > self._num_before

    def _call(self, *, only_known: bool) -> Reading[bool]:
        """Read one call, good or not. False if there is none, with nothing read."""
        self.scanner.mark()
        self._name = yield from self.scanner.name(".-")
        is_named = bool(self._name) and (self._name in self.tools or not only_known)
        if not is_named or not (yield from self.scanner.match("(")):
            self.scanner.reset()
            return False
        self._held, self._has_begun = [], False
        if (yield from self._arguments()):
            self._begin()
            self.end()
        elif not self._has_begun:
            self.scanner.reset()
            return (yield from self._bad_call())
        self.scanner.settle()
        return True

    def _arguments(self) -> Reading[bool]:
        """Behind the opening bracket: emit the arguments as one JSON object."""
        separator = "{"
        while True:
            yield from self.scanner.space()
            if (yield from self.scanner.match(")")):
                self._emit("}" if separator != "{" else "{}")
                return True
            key = yield from self.scanner.name()
            yield from self.scanner.space()
            if not key or not (yield from self.scanner.match("=")):
                return False
            yield from self.scanner.space()
            self._emit(f'{separator}"{escaped(key)}": ')
            separator = ", "
            if not (yield from LiteralReader(self.scanner, self._emit).value()):
                return False
            yield from self.scanner.space()
            if not (yield from self.scanner.match(",")) and (yield from self.scanner.peek()) != ")":
                return False

    def _emit(self, text: str) -> None:
        if self._has_begun:
            self.arguments(text)
            return
        self._held.append(text)
        if sum(map(len, self._held)) > _HELD:
            self._begin()

    def _begin(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            for text in self._bad:
                self.content(text)
            self._bad = []
            self.begin(self._name)
            self.arguments("".join(self._held))

    def _bad_call(self) -> Reading[bool]:
        """At a call that is none: take its text. False, with nothing read, if it has no end."""
        self.scanner.mark()
        depth, quote = 0, ""
        while rest := (yield from self.scanner.available()):
            stop = _NEXT_BRACKET.search(rest)
            self.scanner.take(len(rest) if stop is None else stop.end())
            letter = "" if stop is None else stop[0]
            if letter == "\\":
                yield from self.scanner.peek()
                self.scanner.take(1)
            elif letter and letter in "\"'":
                quote = "" if quote == letter else (quote or letter)
            elif letter and not quote:
                depth += 1 if letter == "(" else -1
                if depth == 0:
                    self._put_aside(self.scanner.settle())
                    return True
        self.scanner.reset()
        return False

    def _put_aside(self, bad_call: str) -> None:
        if self.num_calls > self._num_before:
            self.content(bad_call)
        else:
            self._bad.append(bad_call)
