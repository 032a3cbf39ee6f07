"""An engine for asyncio: each request's deltas are handed to whoever waits for its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from octavo.engine.client import EngineClient
from octavo.engine.request import EngineOutput, EngineStats, EngineStatus, Request, RequestDelta
from octavo.errors import EngineDeadError, ValidationError

logger = logging.getLogger(__name__)

Take = Callable[[RequestDelta], None]
POLL_SECONDS = 1.0  # only how often the reader thread looks up when nothing happens


class _Stream:
    """One request in the engine: who takes its deltas, and which of its sequences have not ended."""

    def __init__(self, request: Request, key: str, take: Take) -> None:
        self.request_id = request.request_id
        self.key = key  # the id that the engine knows the request by
        self.open = set(range(request.params.n))
        self._take = take
        self._error: Exception | None = None
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def put(self, delta: RequestDelta) -> None:
        """Hand on what one step gave to one sequence, unless it was on its way when the sequence was aborted."""
        if delta.index not in self.open or self._over.done():
            return
        if delta.finish_reason is not None:
            self.open.discard(delta.index)
        delta.request_id = self.request_id
        try:
            self._take(delta)
        except Exception as error:  # not lost: raised by whoever waits
            self.end(error)
        if not self.open:
            self.end()

    def end(self, error: Exception | None = None) -> None:
        """Nothing follows. Idempotent: the first error stays, also one behind an end that nobody has seen yet."""
        self._error = self._error or error
        if not self._over.done():
            self._over.set_result(None)

    async def wait(self) -> None:
        """Until the end; raises its error."""
        await self._over
        if self._error is not None:
            raise self._error


class AsyncClient:
    """Owns an `EngineClient`. A reader thread blocks in its `poll`; each output enters the event loop as one call.

    Made, used and closed in one event loop.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._streams: dict[str, _Stream] = {}  # by request id
        self._by_key: dict[str, _Stream] = {}
        self._count = 0
        self._stats = EngineStats()
        self._death: EngineDeadError | None = None
        self._on_stats: list[Callable[[EngineStats], None]] = []
        self._on_status: list[Callable[[EngineStatus], None]] = []
        self._loop = asyncio.get_running_loop()
        self._status_changed = asyncio.Event()
        self._reader = threading.Thread(target=self._read, name="engine reader", daemon=True)
        self._reader.start()

    @property
    def status(self) -> EngineStatus:
        """How far the engine is; "dead" with the reason once it is."""
        return self._client.status

    @property
    def stats(self) -> EngineStats:
        """The newest that the engine sent."""
        return self._stats

    def on_stats(self, callback: Callable[[EngineStats], None]) -> None:
        """Call `callback` in the event loop with the stats of every step from now on."""
        self._on_stats.append(callback)

    def on_status(self, callback: Callable[[EngineStatus], None]) -> None:
        """Call `callback` in the event loop with every status from now on, the last one being "dead"."""
        self._on_status.append(callback)

    async def wait_until_ready(self) -> EngineStatus:
        """The status "ready". EngineDeadError with the reason if the start fails."""
        while not self.status.is_ready:
            self._raise_if_dead()
            self._status_changed.clear()
            await self._status_changed.wait()
        return self.status

    async def run(self, request: Request, take: Take) -> None:
        """Call `take` in the event loop with each of the request's deltas, as it comes, until each of its n sequences has
        ended. Cancelled, or by an error of `take`, which is raised here, it aborts the request. EngineDeadError as soon as
        the engine is dead; ValidationError for an id in use."""
        self._raise_if_dead()
        if request.request_id in self._streams:
            raise ValidationError(f"The request id {request.request_id!r} is in use.", parameter="request_id")
        self._count += 1  # a key is never used again: late deltas of an aborted request find nobody
        stream = _Stream(request, f"{request.request_id}#{self._count}", take)
        self._streams[request.request_id] = self._by_key[stream.key] = stream
        try:
            self._client.submit(msgspec.structs.replace(request, request_id=stream.key))
            await stream.wait()
        finally:
            del self._streams[request.request_id], self._by_key[stream.key]
            if stream.open:
                self._client.abort(stream.key)

    def abort(self, request_id: str, index: int | None = None, reason: str = "abort") -> None:
        """End a sequence, or all of a request, without a further delta. See `EngineClient.abort`."""
        stream = self._streams.get(request_id)
        if stream is None:
            return
        stream.open -= stream.open if index is None else {index}
        self._client.abort(stream.key, index, reason)
        if not stream.open:
            stream.end()

    async def call(self, method: str, *arguments: Any) -> Any:
        """See `EngineClient.call`."""
        return await asyncio.to_thread(self._client.call, method, *arguments)

    async def close(self) -> None:
        """End the engine and every stream. Idempotent."""
        await asyncio.to_thread(self._client.close)
        await asyncio.to_thread(self._reader.join)

    def _read(self) -> None:
        """The reader thread."""
        try:
            while True:
                output = self._client.poll(POLL_SECONDS)
                self._loop.call_soon_threadsafe(self._deliver, output)
        except EngineDeadError as error:
            death = error
        except Exception as error:  # a fault of ours: an end, but never a silence
            logger.exception("The engine's reader failed")
            death = EngineDeadError(f"{type(error).__name__}: {error}")
        self._loop.call_soon_threadsafe(self._die, death)

    def _raise_if_dead(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death.message)

    def _deliver(self, output: EngineOutput) -> None:
        for delta in output.deltas:
            stream = self._by_key.get(delta.request_id)
            if stream is not None:
                stream.put(delta)
        if output.stats is not None:
            self._stats = output.stats
            for on_stats in self._on_stats:
                on_stats(output.stats)
        if output.status is not None:
            self._tell_status(output.status)

    def _die(self, error: EngineDeadError) -> None:
        self._death = error
        for stream in self._streams.values():
            stream.end(EngineDeadError(error.message))
        self._tell_status(self._client.status)

    def _tell_status(self, status: EngineStatus) -> None:
        self._status_changed.set()
        for on_status in self._on_status:
            on_status(status)
