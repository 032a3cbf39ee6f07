"""The way out of a stream: at once while the client reads, and in turn when it does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from octavo.server.exchange import Exchange, Headers

Write = Callable[[bytes], None]


class Outlet:
    """Writes the pieces of an answer's body from callbacks, which cannot wait.

    A piece goes to the connection within the call. What cannot (the status line is not out yet, or the connection's buffer
    is full, since the client reads slowly or not at all) waits here for a task that exists only as long as anything does;
    whatever comes meanwhile queues up behind it. `has_begun` is true once there was a piece.
    """

    def __init__(self, exchange: Exchange, headers: Headers) -> None:
        self.has_begun = False
        self._exchange = exchange
        self._write_now = exchange.write_now
        self._headers = headers
        self._waiting: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    def write(self, data: bytes) -> None:
        """Take the next piece, which is not empty."""
        if self._task is None and self.has_begun and self._write_now(data):
            return
        self.has_begun = True
        self._waiting.append(data)
        if self._task is not None and self._task.done():
            self._task.result()  # it failed: an end sets it to None
        if self._task is None:
            self._task = asyncio.create_task(self._drain())

    async def drained(self) -> None:
        """Wait until all is in the connection's buffer."""
        task = self._task
        if task is not None:
            await asyncio.wait([task])
            self._task = None
            task.result()

    async def finish(self, data: bytes) -> None:
        """The last piece."""
        await self.drained()
        await self._exchange.finish(data)

    def close(self) -> None:
        """Nobody is there any more: forget what waits."""
        if self._task is not None:
            self._task.cancel()

    async def _drain(self) -> None:
        if not self._exchange.started:
            await self._exchange.start(200, self._headers)
        while self._waiting:
            data = b"".join(self._waiting)
            self._waiting.clear()
            await self._exchange.write(data)
        self._task = None
