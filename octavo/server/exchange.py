"""One HTTP request and its answer: a thin hold on the ASGI triple, with what every handler needs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from octavo.errors import OctavoError, UnavailableError
from octavo.server.body import read_body
from octavo.server.errors import OPENAI, Dialect, error_headers

Headers = Sequence[tuple[bytes, bytes]]


class Exchange:
    """`started` is true once a byte of the answer is out: from then on an error can only be an event of the stream.

    `num_body_bytes` is the size of the request's body once it was read, `began` the time.monotonic() of its head. `ending`
    is set by whoever ends the request from outside (the shutdown, a deadline), before its task is cancelled. `on_end` is
    closed when the work on the request is done. `headers` go out with the status line, whatever the answer is.
    """

    __slots__ = (
        "_disconnected",
        "_receive",
        "_scope",
        "_send",
        "began",
        "dialect",
        "ending",
        "headers",
        "num_body_bytes",
        "on_end",
        "started",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, dialect: Dialect = OPENAI) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self.dialect = dialect
        self._disconnected = False
        self.began = time.monotonic()
        self.started = False
        self.num_body_bytes = 0
        self.ending: OctavoError | None = None
        self.on_end = ExitStack()
        self.headers: list[tuple[bytes, bytes]] = []

    def detached(self) -> Exchange:
        """For work that goes on when this one is answered: what is due at the end of the work is due then."""
        detached = Exchange(self._scope, self._receive, self._send, self.dialect)
        detached.on_end = self.on_end.pop_all()
        return detached

    def header(self, name: bytes) -> str | None:
        """The value of a request header (lower-case name), if it was sent."""
        value: bytes | None = next((value for key, value in self._scope["headers"] if key == name), None)
        return None if value is None else value.decode("latin-1")

    @property
    def path_parameters(self) -> dict[str, Any]:
        """What the route's pattern caught."""
        parameters: dict[str, Any] = self._scope["path_params"]
        return parameters

    @property
    def query(self) -> dict[str, str]:
        """The parameters behind the path's question mark."""
        return dict(parse_qsl(self._scope["query_string"].decode("latin-1")))

    async def body(self) -> bytes:
        """The whole request body; see `octavo.server.body.read_body`."""
        body = await read_body(self._scope, self._receive)
        self.num_body_bytes = len(body)
        return body

    async def start(self, status: int, headers: Headers) -> None:
        """Send the status line and headers."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *self.headers]})

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; more follows. Middleware sees only how the answer begins and ends."""
        await self._scope["octavo.send"]({"type": "http.response.body", "body": data, "more_body": True})

    @property
    def write_now(self) -> Callable[[bytes], bool]:
        """Like `write`, but it never waits: False, and nothing is sent, where it would have to. Only for an answer that has
        begun, without a content length."""
        write_chunk: Callable[[bytes], bool] = self._scope["octavo.write_chunk"]
        return write_chunk

    async def finish(self, data: bytes = b"") -> None:
        """Send the last piece."""
        await self._send({"type": "http.response.body", "body": data})

    async def respond(
        self, body: bytes, *, status: int = 200, content_type: bytes = b"application/json", headers: Headers = ()
    ) -> None:
        """Send a whole answer; an empty one has no content type."""
        fields = [(b"content-length", str(len(body)).encode()), *headers]
        if body:
            fields.insert(0, (b"content-type", content_type))
        await self.start(status, fields)
        await self.finish(body)

    async def respond_error(self, error: OctavoError) -> None:
        """Send an error in the envelope, with its status."""
        if isinstance(error, UnavailableError):
            self._scope["octavo.refused"] = error.reason  # for the log
        await self.respond(self.dialect.error_body(error), status=error.status, headers=error_headers(error))

    async def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Do the work, or cancel it as soon as the client goes away."""
        task = asyncio.create_task(work)
        watcher = asyncio.create_task(self._watch(task))
        try:
            await task
        except asyncio.CancelledError:
            if not self._disconnected:
                raise
        finally:
            watcher.cancel()

    async def _watch(self, task: asyncio.Task[None]) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._disconnected = True
        task.cancel()
