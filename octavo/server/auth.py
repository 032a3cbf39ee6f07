"""`--api-key`: who may ask."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/ping", "/version", "/metrics"})
UNAUTHORIZED = b'{"error":"Unauthorized"}'


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class RequireKey:
    """ASGI middleware: 401 unless a request carries `Authorization: Bearer KEY` with one of the keys.

    Digests are compared, and all of them every time, so that the time taken tells nothing about a key.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS or self._allows(scope):
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(UNAUTHORIZED)).encode())]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": UNAUTHORIZED})

    def _allows(self, scope: Scope) -> bool:
        header = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        scheme, _, token = header.partition(b" ")
        given = _digest(token.strip())
        matches = [secrets.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == b"bearer" and any(matches)
