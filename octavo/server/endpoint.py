"""What every route has around its handler: errors in the envelope, disconnects, and the end of requests at a shutdown."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from octavo.errors import OctavoError
from octavo.server.body import ClientGoneError, parse_body
from octavo.server.errors import Dialect, InternalError, ShuttingDownError
from octavo.server.exchange import Exchange, Headers
from octavo.server.sse import Events, stream
from octavo.server.state import ServerState, offload

Handler = Callable[[ServerState, Exchange], Awaitable[None]]
BodyHandler = Callable[[ServerState, Exchange, Any], Awaitable["bytes | Content | Events"]]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Content:
    """A whole answer that is not JSON."""

    body: bytes
    content_type: bytes
    headers: Headers


class Endpoint:
    """An ASGI application of one route without a body."""

    def __init__(self, path: str, server: ServerState, handler: Handler) -> None:
        self.path = path
        self._server = server
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send)
        try:
            await self._handler(self._server, exchange)
        except OctavoError as error:
            await exchange.respond_error(error)


class BodyEndpoint:
    """An ASGI application of one route whose body is the JSON of `struct`; the handler gives JSON, or events to stream.

    The handler runs in a task of its own, known to the server while it runs: it is cancelled when the client leaves, at its
    deadline, and when the shutdown's grace time is over.
    """

    def __init__(
        self,
        path: str,
        server: ServerState,
        struct: type[msgspec.Struct],
        handler: BodyHandler,
        dialect: Dialect,
        task: str | None = None,
    ) -> None:
        """`task`: what the model must be there for; None: anything."""
        self.path = path
        self._server = server
        self._struct = struct
        self._handler = handler
        self._dialect = dialect
        self._task = task

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._dialect)
        try:
            _, model = self._server.ready()
            if self._task is not None:
                model.check_task(self._task, self.path)
            data = await exchange.body()
            body = await offload(len(data), lambda: parse_body(self._struct, data))
            await exchange.run(self._work(exchange, body))
        except ClientGoneError:
            return
        except OctavoError as error:
            await exchange.respond_error(error)
        except asyncio.CancelledError:  # by uvicorn, at the end of a shutdown: the body was still on its way
            if exchange.started or not self._server.stopping:
                raise
            await exchange.respond_error(ShuttingDownError())
        except Exception:  # a fault of ours: the client gets the envelope, the log the traceback
            logger.exception("a request failed by a fault")
            if exchange.started:
                raise
            await exchange.respond_error(InternalError())

    async def _work(self, exchange: Exchange, body: msgspec.Struct) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._server.running[task] = exchange
        try:
            answer = await self._handler(self._server, exchange, body)
            if isinstance(answer, bytes):
                exchange.on_end.close()  # it is there: no deadline can come between its parts
                await exchange.respond(answer)
            elif isinstance(answer, Content):
                exchange.on_end.close()
                await exchange.respond(answer.body, content_type=answer.content_type, headers=answer.headers)
            else:
                await stream(exchange, answer)
            self._server.answered()
        except asyncio.CancelledError:
            if exchange.ending is None:
                raise
            if not exchange.started:  # else all that could be said was
                await exchange.respond_error(exchange.ending)
        finally:
            exchange.on_end.close()
            del self._server.running[task]
