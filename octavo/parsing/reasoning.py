"""What of an answer is reasoning. One small machine for each way in which models mark it.

The text goes in piece by piece; out come pieces of reasoning and of the rest. Where the prompt's end has opened or closed
the block, that decides how the answer starts (`start`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from octavo.parsing.scanner import Markers, Reading, Scanner
from octavo.parsing.tools.openai import CHANNEL, ENDS, MESSAGE, RECIPIENT, SPECIAL, START

Piece = tuple[bool, str]
"""(whether it is reasoning, text)."""


class ReasoningParser:
    """One answer. `push` and `finish` return what has become certain. All text comes out but the marks themselves."""

    special: ClassVar[tuple[str, ...]] = ()
    """Marks of the format that may be special tokens of a tokenizer: they have to be in the text."""

    def __init__(self) -> None:
        self.scanner = Scanner()
        self.is_reasoning = False
        self._pieces: list[Piece] = []
        self._reading: Reading[None] | None = None

    def start(self, prompt: str, continued: str | None = None) -> None:
        """The end of the prompt says where the answer starts: inside of a block, behind it, or neither. `continued` is the
        beginning of the answer itself, where the prompt ends with one."""
        if continued:
            self.push(continued)
            self._pieces = []

    @property
    def end_mark(self) -> str:
        """Right after `start`: what the model will write at the end of the reasoning that the answer starts with; "" if it
        starts with none."""
        raise NotImplementedError

    @property
    def marks(self) -> tuple[str, str]:
        """Right after `start`: what opens the reasoning that may come, and what closes it. The first is "" where it is open,
        both where none will come."""
        raise NotImplementedError

    def push(self, text: str) -> list[Piece]:
        """More text has come."""
        self.scanner.feed(text)
        return self._advance()

    def finish(self) -> list[Piece]:
        """No more text comes."""
        self.scanner.end(is_cut=True)
        return self._advance()

    def run(self) -> Reading[None]:
        """The format: read `scanner` to its end. To be overridden."""
        raise NotImplementedError
        yield

    def _advance(self) -> list[Piece]:
        if self._reading is None:
            self._reading = self.run()
        next(self._reading, None)
        pieces, self._pieces = self._pieces, []
        return pieces

    def reasoning(self, text: str) -> None:
        """Text inside of the block."""
        self._pieces.append((True, text))

    def rest(self, text: str) -> None:
        """Text outside of it."""
        self._pieces.append((False, text))


class TagReasoning(ReasoningParser):
    """A block between two marks, at the start of the answer. Behind it, marks are text like any other; inside of it, so is
    everything but the closing mark (calls too)."""

    opening: ClassVar[tuple[str, ...]] = ("<think>",)
    closing: ClassVar[tuple[str, ...]] = ("</think>",)
    special = (*opening, *closing)
    starts_inside: ClassVar[bool] = False
    """Where neither the prompt nor the answer's start says it."""

    def __init__(self) -> None:
        super().__init__()
        self._starts: bool | None = None

    def start(self, prompt: str, continued: str | None = None) -> None:
        """See `ReasoningParser`."""
        tail = prompt.rstrip()
        if not continued and tail.endswith(tuple(mark.rstrip() for mark in (*self.opening, *self.closing))):
            self._starts = tail.endswith(tuple(mark.rstrip() for mark in self.opening))
        self.is_reasoning = self.starts_inside if self._starts is None else self._starts
        super().start(prompt, continued)

    @property
    def end_mark(self) -> str:
        """See `ReasoningParser`."""
        return self.closing[0] if self.is_reasoning else ""

    @property
    def marks(self) -> tuple[str, str]:
        """See `ReasoningParser`."""
        may_start = self._reading is None and self._starts is None
        return ("", self.end_mark) if self.end_mark or not may_start else (self.opening[0], self.closing[0])

    def run(self) -> Reading[None]:
        """See `ReasoningParser`."""
        if self._starts is not False:
            self.scanner.mark()
            yield from self.scanner.space()
            if (yield from self.scanner.match(*self.opening)):
                self.scanner.settle()
                self._starts = True
            else:
                self.scanner.reset()
        if self._starts or self.is_reasoning:
            self.is_reasoning = True
            yield from self.scanner.until(Markers(self.closing), self.reasoning)
            self.is_reasoning = False
        yield from self.scanner.until(Markers([]), self.rest)


class DeepSeekR1Reasoning(TagReasoning):
    """Think tags; the opening one is often in the prompt, or nowhere."""

    starts_inside = True


class MistralReasoning(TagReasoning):
    """`[THINK]...[/THINK]`."""

    opening = ("[THINK]",)
    closing = ("[/THINK]",)
    special = (*opening, *closing)


class SeedReasoning(TagReasoning):
    """`<seed:think>...</seed:think>`."""

    opening = ("<seed:think>",)
    closing = ("</seed:think>",)
    special = (*opening, *closing)


class GraniteReasoning(TagReasoning):
    """Sentences (Granite 3.2) or think tags (3.3)."""

    opening = ("<think>", "Here is my thought process:", "Here's my thought process:")
    closing = ("</think>", "Here is my response:", "Here's my response:")


class Gemma4Reasoning(TagReasoning):
    """The channel "thought"."""

    opening = ("<|channel>thought\n",)
    closing = ("<channel|>",)
    special = ("<|channel>", "<channel|>")


class HarmonyReasoning(ReasoningParser):
    """gpt-oss: an answer is a row of messages. Those in the channel "analysis" are reasoning; those to a function are left
    as they are, for the tool stage; of the others the text is left."""

    special = SPECIAL
    _message = Markers([START, CHANNEL, *ENDS])
    _head_end = Markers([MESSAGE, *ENDS])
    _body_end = Markers([START, CHANNEL, *ENDS])

    @property
    def end_mark(self) -> str:
        """See `ReasoningParser`. An answer always starts with a channel."""
        return "" if self._reading is not None and not self.is_reasoning else f"{CHANNEL}final{MESSAGE}"

    @property
    def marks(self) -> tuple[str, str]:
        """See `ReasoningParser`. The message ends, and that of the final channel begins."""
        closing = f"{ENDS[1]}{START}assistant{CHANNEL}final{MESSAGE}"
        return ("", closing if self.is_reasoning else "") if self._reading is not None else (CHANNEL, closing)

    def run(self) -> Reading[None]:
        """See `ReasoningParser`."""
        yield from self.scanner.peek()
        self.scanner.mark()
        if (yield from self.scanner.match(" to=", "to=")):
            self.scanner.reset()
            marker = yield from self._one_message("")
        else:
            self.scanner.settle()
            marker = yield from self.scanner.until(self._message, self.rest)
        while marker:
            if marker in ENDS:
                marker = yield from self.scanner.until(self._message, self.rest)
            else:
                marker = yield from self._one_message(marker)

    def _one_message(self, marker: str) -> Reading[str]:
        """Behind a mark that begins a message: read it; the mark that ended it."""
        head = [marker]
        end = yield from self.scanner.until(self._head_end, head.append)
        text = "".join(head)
        if end != MESSAGE:
            self.rest(text)
            return end
        if RECIPIENT.search(text):
            self.rest(text + end)
            end = yield from self.scanner.until(self._body_end, self.rest)
            if end in ENDS:
                self.rest(end)
            return end
        channel = text.rpartition(CHANNEL)[2].strip()
        self.is_reasoning = CHANNEL in text and channel.startswith("analysis")
        emit: Callable[[str], None] = self.reasoning if self.is_reasoning else self.rest
        end = yield from self.scanner.until(self._body_end, emit)
        self.is_reasoning = False
        return end
