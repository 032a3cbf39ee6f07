"""A bound on the tokens of a reasoning block: when they are used up, the block's end is what comes next."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.engine.request import Thinking

_START_WITHIN = 2  # tokens: white space may stand before the mark that opens the block


class ThinkingBudget:
    """Follows one answer. `forced_id` is the token that must come next, None where any may.

    The first token of the closing mark ends the block however it came there; the marks themselves do not count.
    """

    __slots__ = ("_is_inside", "_left", "_num_forced", "_num_tokens", "_thinking", "forced_id")

    def __init__(self, thinking: Thinking, output_token_ids: Sequence[int]) -> None:
        self._thinking = thinking
        self._left = thinking.budget
        self._is_inside = thinking.opening_id is None
        self._num_tokens = 0
        self._num_forced = 0
        self.forced_id: int | None = None
        self._force()
        for token_id in output_token_ids:
            self.append(token_id)

    def append(self, token_id: int) -> None:
        """The next token of the answer."""
        self._num_tokens += 1
        if self.forced_id is not None:
            self._is_inside = False
            self._num_forced += 1
        elif self._is_inside:
            self._is_inside = token_id != self._thinking.closing_ids[0]
            self._left -= 1
        elif token_id == self._thinking.opening_id and self._num_tokens <= _START_WITHIN:
            self._is_inside = True
        self._force()

    def _force(self) -> None:
        closing = self._thinking.closing_ids
        must_close = self._is_inside and self._left <= 0
        is_closing = 0 < self._num_forced < len(closing)
        self.forced_id = closing[self._num_forced] if must_close or is_closing else None
