"""uvicorn, set up for this server."""

from __future__ import annotations

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 1 << 20  # request line and headers; a body has a limit of its own


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 over httptools that gives up on a request whose head does not end."""

    _head_bytes = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        """Count what comes before the head is complete."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self.send_400_response("The request's headers are too large.")
                return
        super().data_received(data)

    def on_headers_complete(self) -> None:
        """The head has ended: what follows is the body's."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The next request of the connection begins."""
        self._in_head = True
        self._head_bytes = 0
        super().on_message_complete()


def http_config(app: ASGIApp, closing_seconds: int) -> uvicorn.Config:
    """One process, no lifespan, no websockets; the caller has the loop and the signals. At a shutdown connections have
    `closing_seconds` to end."""
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
    )
