"""What all tool formats share: how text becomes parts, and what is done with white space and with what is no call."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from octavo.parsing.parts import CallArguments, CallBegin, Content, Part
from octavo.parsing.scanner import Markers, Reading, Scanner

Tools = Mapping[str, Mapping[str, Any]]
"""Name of each function that the request offers -> the JSON schema of its parameters."""

_MAX_REREAD = 1 << 18  # characters: a second of work at the most


@dataclass(frozen=True)
class ParameterForm:
    """How a model writes one argument that has marks of its own: what stands before it (with KEY) and behind it, and marks
    that no value may hold, since the parser would take them for its end."""

    begin: str
    end: str
    excludes: tuple[str, ...]


@dataclass(frozen=True)
class CallForm:
    """How a model writes calls: `opening`, one call or more with `separator` between them, `closing`. A call is `begin`
    (with NAME, or "NAME" for the name as JSON), the arguments and `end`."""

    begin: str
    end: str
    trigger: str = ""
    """What tells that calls begin: the start of `opening` and `begin`. Without one they stand at the answer's start."""
    opening: str = ""
    separator: str = "\n"
    closing: str = ""
    parameters: ParameterForm | None = None
    """None: the arguments are a JSON object."""
    starts: str = ""
    """Without a trigger: characters with which an answer begins that the parser may take for a call."""


@dataclass(frozen=True)
class MessageForm:
    """How a model writes an answer of several messages: any number of notes, each begun by one of `notes`, ended by
    `note_end` and followed by `next`, and then a call, or what `answer` begins. No text in them holds any of `excludes`."""

    notes: tuple[str, ...]
    note_end: str
    next: str
    answer: str
    excludes: tuple[str, ...]


class ToolParser:
    """One answer in one format. `push` and `finish` return what has become certain.

    All of the text comes out: what belongs to a call's form is consumed, its arguments become `CallArguments`, everything
    else is content, broken calls included as long as nothing of them was sent. White space right at the start of the
    answer, or right after a call, is consumed with a call that follows it or at the end; before other text it is content.
    """

    special: ClassVar[tuple[str, ...]] = ()
    """Marks of the format that may be special tokens of a tokenizer: they have to be in the text."""
    forms: ClassVar[tuple[CallForm, ...]] = ()
    """How calls are written, together all that begins like one to the parser; empty where no grammar can say it."""
    messages: ClassVar[MessageForm | None] = None
    """Where calls are messages among others."""

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self.scanner = Scanner()
        self.num_calls = 0
        self.is_call_open = False
        """Whether the last call's arguments have begun and are not complete."""
        self._parts: list[Part] = []
        self._ids: set[str] = set()
        self._space = ""
        self._at_boundary = True
        self._reading = self.run()

    def run(self) -> Reading[None]:
        """The format: read `scanner` to its end. To be overridden."""
        raise NotImplementedError
        yield

    def push(self, text: str) -> list[Part]:
        """More text has come."""
        self.scanner.feed(text)
        self._advance()
        return self._drained()

    def finish(self, *, is_cut: bool = True) -> list[Part]:
        """No more text comes: the model has ended it, or it `is_cut` (by a limit, a stop string, an abort)."""
        self.scanner.end(is_cut=is_cut)
        self._advance()
        if self._space and not self.num_calls:
            self._parts.append(Content(self._space))
        return self._drained()

    def _advance(self) -> None:
        next(self._reading, None)

    def _drained(self) -> list[Part]:
        parts, self._parts = self._parts, []
        return parts

    def content(self, text: str) -> None:
        """Text that belongs to no call."""
        if self._at_boundary:
            text = self._space + text
            if not text.strip():
                self._space = text
                return
            self._space, self._at_boundary = "", False
        self._parts.append(Content(text))

    def begin(self, name: str, id: str | None = None) -> None:
        """A call begins: from here on it cannot be taken back. `id` is the model's, unless it has used that before."""
        if not id or id in self._ids:
            id = self.new_id()
        self._ids.add(id)
        self._space, self._at_boundary = "", True
        self.is_call_open = True
        self._parts.append(CallBegin(self.num_calls, id, name))
        self.num_calls += 1

    def arguments(self, text: str) -> None:
        """More of the open call's arguments, as JSON."""
        self._parts.append(CallArguments(self.num_calls - 1, text))

    def end(self) -> None:
        """The open call's arguments are complete."""
        self.is_call_open = False

    def calls_behind(
        self, opening: Sequence[str], closing: Sequence[str], read: Callable[[str], Reading[bool]]
    ) -> Reading[None]:
        """Read the text to its end: each of `opening` makes `read` look for a call (it returns False if nothing of one was
        sent; the marker is text then, like any other). The first of `closing` behind a call is consumed with it.

        An answer that has much more that looks like calls than could be read twice is text from there on.
        """
        openings, inside = Markers(opening), Markers([*opening, *closing])
        marker = yield from self.scanner.until(openings, self.content)
        while marker:
            self.scanner.mark()
            if (yield from read(marker)):
                self.scanner.settle()
                marker = yield from self.scanner.until(inside, self.content)
                if marker and marker not in closing:
                    continue
                if marker and self._at_boundary:
                    self._space = ""
            else:
                self.scanner.reset()
                self.content(marker)
            if self.scanner.num_reread > _MAX_REREAD:
                openings = Markers([])
            marker = yield from self.scanner.until(openings, self.content)

    def new_id(self) -> str:
        """For a call whose id the model did not say."""
        return f"chatcmpl-tool-{uuid.uuid4().hex[:16]}"
