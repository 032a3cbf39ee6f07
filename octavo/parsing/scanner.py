"""Reading a text that arrives in pieces as if all of it were there.

A parser is a generator that calls a scanner's methods with `yield from`; each waits, by yielding, until what has arrived
decides its result, whatever follows. So the result of parsing depends on the text alone, never on where it was cut.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

Result = TypeVar("Result")
Reading = Generator[None, None, Result]
"""A piece of a parser: yields when it needs more text."""
Emit = Callable[[str], object]

_SPACE = " \t\r\n"


class Scanner:
    """The text that has arrived and is not read yet. `peek` and `match` decide with as little of it as possible."""

    __slots__ = ("_ended", "_marks", "_position", "_text", "ended_well", "num_reread")

    def __init__(self) -> None:
        self._text = ""
        self._position = 0
        self._ended = False
        self._marks: list[int] = []
        self.ended_well = False
        """Whether the text has ended where its author wanted it to."""
        self.num_reread = 0
        """Characters that were read in vain, as the reading went back."""

    def feed(self, text: str) -> None:
        """More has arrived."""
        low = min(self._marks, default=self._position)
        self._text = self._text[low:] + text
        self._position -= low
        self._marks = [mark - low for mark in self._marks]

    def end(self, *, is_cut: bool) -> None:
        """Nothing more will arrive: the text is complete, or cut off."""
        self._ended = True
        self.ended_well = not is_cut

    @property
    def is_at_end(self) -> bool:
        """Whether all is read and nothing more will arrive."""
        return self._ended and self._position == len(self._text)

    def mark(self) -> None:
        """Remember this place, until `settle` or `reset`. Marks nest."""
        self._marks.append(self._position)

    def settle(self) -> str:
        """Forget the last mark; the text that was read since then."""
        return self._text[self._marks.pop() : self._position]

    def reset(self) -> None:
        """Go back to the last mark."""
        mark = self._marks.pop()
        self.num_reread += self._position - mark
        self._position = mark

    def available(self) -> Reading[str]:
        """What is there to be read, at least one character; "" at the end."""
        while self._position == len(self._text) and not self._ended:
            yield
        return self._text[self._position :]

    def take(self, count: int) -> str:
        """Read so many of the available characters."""
        start = self._position
        self._position = min(start + count, len(self._text))
        return self._text[start : self._position]

    def unread(self, count: int) -> None:
        """Take back so many characters that were read since this parser last waited."""
        self._position -= count

    def peek(self, count: int = 1) -> Reading[str]:
        """The next characters, left unread; fewer at the end."""
        while len(self._text) - self._position < count and not self._ended:
            yield
        return self._text[self._position : self._position + count]

    def match(self, *options: str) -> Reading[str]:
        """Read the longest option that the text goes on with, and return it; else read nothing and return ""."""
        while True:
            left = len(self._text) - self._position
            rest = self._text[self._position : self._position + max(map(len, options))]
            if not self._ended and any(len(option) > left and option.startswith(rest) for option in options):
                yield
                continue
            found = max((option for option in options if rest.startswith(option)), key=len, default="")
            self._position += len(found)
            return found

    def space(self) -> Reading[str]:
        """Read white space, and return it."""
        start: list[str] = []
        while True:
            rest = yield from self.available()
            count = len(rest) - len(rest.lstrip(_SPACE))
            start.append(self.take(count))
            if not rest or count < len(rest):
                return "".join(start)

    def name(self, more: str = "") -> Reading[str]:
        """Read letters, digits, _ and the characters of `more`, and return them."""
        letters: list[str] = []
        while True:
            letter = yield from self.peek()
            if not letter or not (letter.isalnum() or letter == "_" or letter in more):
                return "".join(letters)
            letters.append(self.take(1))

    def until(self, markers: Markers, emit: Emit) -> Reading[str]:
        """Pass on all text before the first marker, read that, and return it; "" when the text ends without one.

        Text is held back while it may be a marker's beginning.
        """
        while True:
            rest = yield from self.available()
            start, marker = markers.find(rest, self._ended)
            if start:
                emit(self.take(start))
            if marker or not rest:
                self._position += len(marker)
                return marker
            if start < len(rest):
                while len(self._text) - self._position == len(rest) - start and not self._ended:
                    yield


class Markers:
    """Strings to look for: the one that begins first, of several at one place the longest."""

    __slots__ = ("_firsts", "_longest", "texts")

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = sorted(set(texts), key=len, reverse=True)
        self._firsts = frozenset(text[0] for text in self.texts)
        self._longest = len(self.texts[0]) if self.texts else 0

    def find(self, text: str, ended: bool) -> tuple[int, str]:
        """(characters before, marker). Without a marker: (characters that cannot belong to one any more, "")."""
        start, marker = len(text), ""
        for candidate in self.texts:
            place = text.find(candidate, 0, start + len(candidate))
            if 0 <= place < start:
                start, marker = place, candidate
        open_start = len(text) if ended else self._open_start(text)
        return (start, marker) if marker and start < open_start else (min(start, open_start), "")

    def _open_start(self, text: str) -> int:
        """Where a marker begins that the text breaks off in."""
        for place in range(max(len(text) - self._longest + 1, 0), len(text)):
            if text[place] in self._firsts:
                tail = text[place:]
                if any(len(candidate) > len(tail) and candidate.startswith(tail) for candidate in self.texts):
                    return place
        return len(text)
