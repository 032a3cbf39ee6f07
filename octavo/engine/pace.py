"""`--max-itl-ms`: prompts are cut so that answers that are being written keep their pace."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.engine.plan import StepPlan
from octavo.engine.sequence import Sequence
from octavo.engine.step_cost import StepCost

LEAST_TOKENS = 16  # of the step's first prompt, whatever they cost: prompts go on too
_AIM = 0.9  # share of the limit that a step is planned to take, since no two are quite alike


class Pace:
    """Sizes the chunks of prompts in the steps in which other sequences draw a token.

    A chunk is at most twice as long as any measured before: that far the cost is known well enough.
    """

    def __init__(self, max_itl: float) -> None:
        """`max_itl` is the longest that a step should take, in seconds."""
        self.cost = StepCost()
        self._goal = _AIM * max_itl
        self._longest = LEAST_TOKENS // 2  # chunk whose cost was measured
        self._left: float | None = None  # seconds for prompts in this step; None: as many as they need
        self._is_first = True

    def begin(self, running: Iterable[Sequence]) -> None:
        """A step is being planned, with these running sequences."""
        is_writing = any(sequence.num_uncomputed == 1 and sequence.leader is None for sequence in running)
        self._left = max(0.0, self._goal - self.cost.base.value) if is_writing else None
        self._is_first = True

    def chunk(self, start: int, num_tokens: int) -> int:
        """How many of the next `num_tokens` tokens of a prompt, from `start` on, go into this step."""
        if self._left is None:
            return num_tokens
        fitting = min(num_tokens, 2 * self._longest)
        per_token = self.cost.per_token(start)
        if per_token * fitting > self._left:
            fitting = int(self._left / per_token)
        if self._is_first:
            fitting = max(fitting, min(num_tokens, LEAST_TOKENS))
        self._is_first = False
        self._left = max(0.0, self._left - per_token * fitting)
        return fitting

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """The plan has been carried out in so many seconds. Nothing is learned from one that computes nothing."""
        if not plan.scheduled:
            return
        chunks = [(scheduled.start, scheduled.num_tokens) for scheduled in plan.scheduled if scheduled.num_tokens > 1]
        self._longest = max([self._longest, *(count for _, count in chunks)])
        self.cost.observe(chunks, seconds)
