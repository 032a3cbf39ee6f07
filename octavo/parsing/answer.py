"""Reasoning and tool calls of one answer, from its text."""

from __future__ import annotations

from octavo.parsing.parts import CallBegin, Content, Part, Reasoning
from octavo.parsing.reasoning import Piece, ReasoningParser
from octavo.parsing.tools.base import ToolParser


class AnswerParser:
    """The two stages behind the stop strings, either of which may be missing. `push` and `finish` return what has become
    certain, in the order in which the model said it."""

    def __init__(
        self,
        reasoning: ReasoningParser | None,
        tools: ToolParser | None,
        shown_ids: frozenset[int] = frozenset(),
        *,
        only_one_call: bool = False,
    ) -> None:
        """`shown_ids` are special tokens that the text must show."""
        self.shown_ids = shown_ids
        self.is_full = False
        """Whether more calls than are allowed have begun. Nothing is returned from then on."""
        self._reasoning = reasoning
        self._tools = tools
        self._only_one_call = only_one_call

    @property
    def is_reasoning(self) -> bool:
        """Whether the text ends inside of reasoning."""
        return self._reasoning is not None and self._reasoning.is_reasoning

    @property
    def num_calls(self) -> int:
        """Calls that have begun."""
        return 0 if self._tools is None else self._tools.num_calls - self.is_full

    @property
    def has_calls(self) -> bool:
        """Whether there are calls, the last of them complete."""
        return self._tools is not None and self._tools.num_calls > 0 and (self.is_full or not self._tools.is_call_open)

    def push(self, text: str) -> list[Part]:
        """More text has come."""
        return self._sorted([(False, text)] if self._reasoning is None else self._reasoning.push(text))

    def finish(self, *, is_cut: bool) -> list[Part]:
        """No more text comes: the model has ended it, or it `is_cut`."""
        parts = [] if self._reasoning is None else self._sorted(self._reasoning.finish())
        return parts if self._tools is None else parts + self._allowed(self._tools.finish(is_cut=is_cut))

    def _sorted(self, pieces: list[Piece]) -> list[Part]:
        parts: list[Part] = []
        for is_reasoning, text in pieces:
            if is_reasoning:
                parts.append(Reasoning(text))
            elif self._tools is None:
                parts.append(Content(text))
            else:
                parts += self._allowed(self._tools.push(text))
        return parts

    def _allowed(self, parts: list[Part]) -> list[Part]:
        """Up to a call that is one too many."""
        if self.is_full or not self._only_one_call:
            return [] if self.is_full else parts
        for place, part in enumerate(parts):
            if isinstance(part, CallBegin) and part.index > 0:
                self.is_full = True
                return parts[:place]
        return parts
