"""Counts and logs every answered request."""

from __future__ import annotations

import logging
import time
from collections import Counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.health import QUIET_PATHS
from octavo.server.metrics import Metrics

logger = logging.getLogger(__name__)


class Observe:
    """ASGI middleware: one count and one log line a request, when its answer has ended; probes are only counted. Of those
    refused with 503 the first of a kind has a line, the tenth, the hundredth and so on: clients that wait ask often."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._refused: Counter[str] = Counter()  # by the reason

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.monotonic()
        status = 499  # as nginx counts a client that left before the answer began

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            seconds = time.monotonic() - started
            path = getattr(scope.get("endpoint"), "path", "none")
            self._metrics.on_http(scope["method"], path, status, seconds)
            if "octavo.refused" in scope:
                self._log_refusal(scope["octavo.refused"], scope)
            elif path not in QUIET_PATHS:
                logger.info("%s %s %d %.3f s", scope["method"], scope["path"][:200], status, seconds)

    def _log_refusal(self, reason: str, scope: Scope) -> None:
        self._refused[reason] += 1
        count = self._refused[reason]
        if str(count).rstrip("0") == "1":
            logger.info("%s %s 503 (%s); refused so: %d", scope["method"], scope["path"][:200], reason, count)
