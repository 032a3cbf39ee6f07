"""`--engine-stall-timeout`: an engine that has work and does not move is told of, by whoever still can."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.engine import Engine

LOOKS = 10  # within the timeout

logger = logging.getLogger(__name__)


class Watchdog:
    """Knows since when there is work and no progress. Made in any thread or process; somebody has to `look`."""

    def __init__(self, timeout: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`timeout` in seconds, as `clock` counts them; 0: never."""
        self.timeout = timeout
        self._clock = clock
        self._since = clock()
        self._had_work, self._progress = False, 0

    @property
    def interval(self) -> float:
        """Seconds between two looks."""
        return self.timeout / LOOKS

    def look(self, has_work: bool, progress: int) -> float | None:
        """Seconds that the engine has stood still for, if they are more than the timeout: since the first look that found it
        so. `progress` is any number that changes with every step."""
        now = self._clock()
        if not has_work or not self._had_work or progress != self._progress:
            self._had_work, self._progress, self._since = has_work, progress, now
        stalled = now - self._since
        return stalled if self.timeout and stalled > self.timeout else None


class StallReporter:
    """Logs the scheduler's state, and where the engine's thread is, once for each time that it stands still.

    It looks from a thread of its own, since the engine's own is where it is stuck; what it reads may be in the middle of a
    change only if the engine has begun to move again.
    """

    def __init__(self, engine: Engine, watchdog: Watchdog) -> None:
        """Called in the engine's thread."""
        self._engine = engine
        self._watchdog = watchdog
        self._thread = threading.get_ident()
        self._is_reported = False

    def start(self) -> None:
        """Look as long as the process lives."""
        if self._watchdog.timeout:
            threading.Thread(target=self._run, name="stall reporter", daemon=True).start()

    def look(self) -> None:
        """Report if there is something new to report."""
        stalled = self._watchdog.look(self._engine.has_work, self._engine.num_steps)
        if stalled is not None and not self._is_reported:
            where = "".join(traceback.format_stack(sys._current_frames()[self._thread]))
            state = json.dumps(self._engine.debug_state())
            logger.error("No step has ended for %.1f s. The scheduler: %s\nThe engine is at:\n%s", stalled, state, where)
        self._is_reported = stalled is not None

    def _run(self) -> None:
        while True:
            time.sleep(self._watchdog.interval)
            self.look()
