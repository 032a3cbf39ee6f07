"""How fast something goes away, for telling when it is worth asking again."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable

MIN_SECONDS, MAX_SECONDS = 1, 60
_NUM_EVENTS = 64  # the latest ones count


class Outflow:
    """Amounts and the times at which they went, since there was last nothing there."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._events: deque[tuple[float, int]] = deque(maxlen=_NUM_EVENTS)

    def went(self, amount: int, left: int) -> None:
        """So much went, and so much is left."""
        if left:
            self._events.append((self._clock(), amount))
        else:
            self._events.clear()

    def seconds_until(self, amount: int) -> int:
        """Whole seconds in which `amount` more will have gone at the pace so far, between MIN_SECONDS, which it also is
        while too little has gone to tell, and MAX_SECONDS."""
        if len(self._events) < 2:
            return MIN_SECONDS
        (first, _), *others = self._events
        per_second = sum(each for _, each in others) / max(self._clock() - first, 1e-3)
        return max(MIN_SECONDS, min(MAX_SECONDS, math.ceil(amount / per_second)))
