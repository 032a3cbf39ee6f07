"""An engine for asyncio: one stream of deltas per request."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from octavo.engine.client import EngineClient
from octavo.engine.request import EngineOutput, EngineStats, EngineStatus, Request, RequestDelta
from octavo.errors import EngineDeadError, ValidationError

logger = logging.getLogger(__name__)

POLL_SECONDS = 1.0  # only how often the reader thread looks up when nothing happens


class _Stream:
    """The deltas of one request on their way to its consumer, and which of its sequences have not ended."""

    def __init__(self, n: int, key: str) -> None:
        self.key = key  # the id that the engine knows the request by
        self.open = set(range(n))
        self._deltas: deque[RequestDelta | None] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, delta: RequestDelta | None) -> None:
        """Hand a delta to the consumer; None makes it look whether anything is still open."""
        self._deltas.append(delta)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> RequestDelta | None:
        """The next one. There is one consumer."""
        while not self._deltas:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._deltas.popleft()


class AsyncClient:
    """Owns an `EngineClient`. A reader thread blocks in its `poll`; each output enters the event loop as one call.

    Made, used and closed in one event loop.
    """

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._streams: dict[str, _Stream] = {}  # by request id
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

    async def generate(self, request: Request) -> AsyncGenerator[RequestDelta, None]:
        """The request's deltas until each of its n sequences has ended. Closing the iterator early, or cancelling who waits
        for it, aborts the request. EngineDeadError as soon as the engine is dead; ValidationError for an id in use."""
        self._raise_if_dead()
        if request.request_id in self._streams:
            raise ValidationError(f"The request id {request.request_id!r} is in use.", parameter="request_id")
        self._count += 1  # a key is never used again: late deltas of an aborted request find nobody
        stream = self._streams[request.request_id] = _Stream(request.params.n, f"{request.request_id}#{self._count}")
        try:
            self._client.submit(msgspec.structs.replace(request, request_id=stream.key))
            while stream.open:
                delta = await stream.get()
                if delta is None:
                    self._raise_if_dead()
                elif delta.index in stream.open:  # else it was on its way when the sequence was aborted
                    if delta.finish_reason is not None:
                        stream.open.discard(delta.index)
                    yield delta
        finally:
            del self._streams[request.request_id]
            if stream.open:
                self._client.abort(stream.key)

    def abort(self, request_id: str, index: int | None = None, reason: str = "abort") -> None:
        """End a sequence, or all of a request: its stream ends too, without a further delta. See `EngineClient.abort`."""
        stream = self._streams.get(request_id)
        if stream is None:
            return
        stream.open -= stream.open if index is None else {index}
        stream.put(None)
        self._client.abort(stream.key, index, reason)

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
            request_id = delta.request_id.rpartition("#")[0]
            stream = self._streams.get(request_id)
            if stream is not None and stream.key == delta.request_id:
                delta.request_id = request_id
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
            stream.put(None)
        self._tell_status(self._client.status)

    def _tell_status(self, status: EngineStatus) -> None:
        self._status_changed.set()
        for on_status in self._on_status:
            on_status(status)
