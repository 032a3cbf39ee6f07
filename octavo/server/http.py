"""uvicorn, set up for this server."""

from __future__ import annotations

from asyncio import Transport
from collections import deque
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from octavo.config import EngineConfig

MAX_HEAD_BYTES = 1 << 20  # request line and headers, or the trailers of a body, which itself has another limit

# Requests behind the one that is answered after which the connection is not read any more, nor after 64 KiB of a body of
# theirs: until the answer is out, the end of such a connection is not seen.
MAX_PIPELINED = 16


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 over httptools that gives up on a request whose head or trailers do not end."""

    _bytes_outside_body = 0  # since a head, a piece of a body, or a request ended

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """A client is there."""
        super().connection_made(transport)
        self._unanswered: deque[RequestResponseCycle] = deque()  # in order; `cycle` is the last of them

    def data_received(self, data: bytes) -> None:
        """Count what comes; what turns out to be body does not stay counted."""
        self._bytes_outside_body += len(data)
        if self._bytes_outside_body > MAX_HEAD_BYTES:
            self.send_400_response("The request's headers are too large.")
            return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """The head has ended, and what answers it begins in a moment."""
        self._bytes_outside_body = 0
        super().on_headers_complete()
        while self._unanswered and self._unanswered[0].response_complete:
            self._unanswered.popleft()
        self._unanswered.append(self.cycle)
        if 0 < len(self.pipeline) <= MAX_PIPELINED:
            self.flow.resume_reading()
        if self.parser.get_http_version() == "1.0":
            _send_unchunked(self.cycle)
        self.scope["octavo.write_chunk"] = partial(write_chunk, self.cycle)  # type: ignore[typeddict-unknown-key]

    def on_body(self, body: bytes) -> None:
        """A piece of the body is here."""
        self._bytes_outside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The next request of the connection begins."""
        self._bytes_outside_body = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell all requests, not only the last: the one that is being answered may have others behind it."""
        super().connection_lost(exc)
        for cycle in self._unanswered:
            if not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()


def write_chunk(cycle: RequestResponseCycle, data: bytes) -> bool:
    """Send a piece (not empty) of an answer that has begun and is sent in pieces, as `cycle.send` does, in a tenth of its
    time. Whether it was sent: not while the connection's buffer is full."""
    if cycle.flow.write_paused:
        return False
    if not cycle.disconnected:
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data) if cycle.chunked_encoding else data)
    return True


def _send_unchunked(cycle: RequestResponseCycle) -> None:
    """For a client of HTTP/1.0, which knows no chunks: an answer without a length ends with the connection, which uvicorn
    closes for such a client in any case (RFC 9112, 6.3)."""
    send = cycle.send
    cycle.chunked_encoding = False

    async def send_piece(message: Any) -> None:
        cycle.expected_content_length = len(message.get("body", b""))  # all of it may go out
        await send(message)

    cycle.send = send_piece  # type: ignore[method-assign]


def http_config(app: ASGIApp, closing_seconds: int, config: EngineConfig) -> uvicorn.Config:
    """HTTP or, with a certificate, HTTPS. One process, no lifespan, no websockets; the caller has the loop and the signals.
    At a shutdown connections have `closing_seconds` to end."""
    return uvicorn.Config(
        app,
        loop="none",
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=closing_seconds,
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
        ssl_ca_certs=config.ssl_ca_certs,
        ssl_cert_reqs=config.ssl_cert_reqs,
    )
