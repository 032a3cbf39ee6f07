"""Stop strings, found over characters while the text arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds the stop string that is complete first; of several that end at the same character, the longest.

    The result depends on the text alone, not on how it is cut into pieces. Text is held back exactly as long as it may
    still turn out to be the beginning of a stop string (the longest suffix that is a proper prefix of one). One step
    per character and stop string (Knuth, Morris and Pratt, 1977).
    """

    def __init__(self, stop: Sequence[str], *, include_in_output: bool = False) -> None:
        self._stop = [string for string in dict.fromkeys(stop) if string]
        self._failures = [_failures(string) for string in self._stop]
        self._lengths = [0] * len(self._stop)  # how much of each stop string the text ends with
        self._first = {string[0] for string in self._stop}
        self._include = include_in_output
        self._held = ""

    def push(self, text: str, *, armed: bool = True) -> tuple[str, str | None]:
        """(what may be released, the stop string that is now complete). After a match nothing is held any more.

        Not `armed` (before min_tokens): matches that end in `text` do not count, but one that begins in it may be
        completed by later text.
        """
        if not self._stop or (not self._held and self._first.isdisjoint(text)):
            return text, None
        for end, character in enumerate(text, 1):
            complete = self._advance(character)
            if complete is not None and armed:
                return self._cut(self._held + text[:end], complete), complete
        whole = self._held + text
        released = len(whole) - max(self._lengths)
        self._held = whole[released:]
        return whole[:released], None

    def finish(self) -> str:
        """What is still held, as nothing follows."""
        held, self._held = self._held, ""
        return held

    def _advance(self, character: str) -> str | None:
        complete = None
        for i, string in enumerate(self._stop):
            length, failures = self._lengths[i], self._failures[i]
            while length and string[length] != character:
                length = failures[length]
            length += string[length] == character
            if length == len(string):
                if complete is None or len(string) > len(complete):
                    complete = string
                length = failures[length]
            self._lengths[i] = length
        return complete

    def _cut(self, text: str, stop: str) -> str:
        self._held = ""
        return text if self._include else text[: len(text) - len(stop)]


def _failures(string: str) -> list[int]:
    """[n]: length of the longest proper suffix of string[:n] that is also a prefix of it."""
    failures = [0, 0]
    length = 0
    for character in string[1:]:
        while length and string[length] != character:
            length = failures[length]
        length += string[length] == character
        failures.append(length)
    return failures
