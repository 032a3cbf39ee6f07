"""The server's eye on the engine: what `/health` says when requests are there and nothing moves."""

from __future__ import annotations

import asyncio
import logging

from octavo.engine.watchdog import Watchdog
from octavo.server.state import ServerState

logger = logging.getLogger(__name__)


class StallWatch:
    """Sets `ServerState.stall` while the engine stands still, and logs when that begins and ends. The engine's own process
    logs what its scheduler was about, if it still can."""

    def __init__(self, server: ServerState, watchdog: Watchdog) -> None:
        self._server = server
        self._watchdog = watchdog

    def look(self) -> None:
        """See how it is now."""
        metrics, was_stalled = self._server.metrics, self._server.stall is not None
        # What the engine had when it was last heard of is work too, though all clients may have given up since.
        has_work = metrics.num_unfinished > 0 or metrics.engine.num_running + metrics.engine.num_waiting > 0
        stalled = self._watchdog.look(has_work, metrics.engine.num_steps)
        if stalled is None:
            self._server.stall = None
            if was_stalled:
                logger.warning("The engine moves again.")
            return
        blocks = f"{metrics.engine.num_free_blocks} of {metrics.engine.num_blocks} blocks were free"
        self._server.stall = (
            f"The engine has given no token for {stalled:.0f} s (--engine-stall-timeout {self._watchdog.timeout:g}) while "
            f"{metrics.num_unfinished} requests are unfinished; after its last step {metrics.num_running} were running, "
            f"{metrics.num_waiting} waiting, and {blocks}."
        )
        if not was_stalled:
            logger.error("%s /health is 503 until it moves.", self._server.stall)

    async def run(self) -> None:
        """Look for ever."""
        while self._watchdog.timeout:
            await asyncio.sleep(self._watchdog.interval)
            self.look()
