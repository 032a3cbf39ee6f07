"""What a step costs: measured, so that it holds for whatever model, machine and load there is."""

from __future__ import annotations

from collections.abc import Sequence

Chunk = tuple[int, int]  # where in its prompt it starts, and its number of tokens

_NEWEST = 0.3  # what the newest measurement counts against all before it
_RANGE = 1024  # tokens at about the same place of their prompts cost about the same
_WHOLE = 16  # shorter chunks count less, since so little cannot be told from chance
_MOST = 2.0  # times what was expected; more is taken for an accident, such as another program's work


class Average:
    """A moving average; of the first few values the plain one."""

    def __init__(self) -> None:
        self.value = 0.0
        self.count = 0

    def add(self, value: float, weight: float = 1.0) -> None:
        """One more value; a `weight` below 1 makes it count less."""
        self.count += 1
        self.value += max(_NEWEST, 1 / self.count) * weight * (value - self.value)


class StepCost:
    """Seconds of a step: `base` for the rows that draw a token, and so much for each token of a prompt, the more the later
    it stands there. The first is measured in steps without prompts, and stands still during those with some."""

    def __init__(self) -> None:
        self.base = Average()
        self._per_token: dict[int, Average] = {}  # by place in the prompt, in ranges

    def chunk(self, start: int, num_tokens: int) -> float:
        """Seconds that a chunk is expected to add to a step; 0 as long as nothing was measured."""
        return num_tokens * self.per_token(start)

    def per_token(self, start: int) -> float:
        """As it was measured where this is nearest to."""
        if not self._per_token:
            return 0.0
        place = start // _RANGE
        return self._per_token[min(self._per_token, key=lambda each: abs(each - place))].value

    def observe(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """A step with these chunks has taken `seconds`."""
        if not chunks:
            self.base.add(seconds)
            return
        extra = max(0.0, seconds - self.base.value)
        expected = sum(self.chunk(*chunk) for chunk in chunks)
        num_tokens = sum(count for _, count in chunks)
        each = [
            self.per_token(start) * min(extra / expected, _MOST) if expected else extra / num_tokens for start, _ in chunks
        ]
        for (start, count), per_token in zip(chunks, each, strict=True):
            average = self._per_token.setdefault(start // _RANGE, Average())
            average.add(per_token, min(1.0, count / _WHOLE) if average.count else 1.0)
