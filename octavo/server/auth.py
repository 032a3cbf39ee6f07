"""`--api-key` and `--api-key-file`: who may ask."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.config import OPTIONS, EngineConfig

if TYPE_CHECKING:  # the keys are read before the HTTP libraries are imported
    from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/livez", "/readyz", "/ping", "/version"})
UNAUTHORIZED = b'{"error":"Unauthorized"}'


def with_keys_of_file(config: EngineConfig) -> EngineConfig:
    """The options with the keys of `api_key_file` among `api_key`; blank lines and those that begin with # are none.

    Raises ConfigError when the file cannot be read or holds no key: a server without keys was not asked for.
    """
    if config.api_key_file is None:
        return config
    try:
        lines = Path(config.api_key_file).read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise OPTIONS["api_key_file"].error(f"{config.api_key_file} cannot be read: {error}") from None
    keys = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    if not keys:
        raise OPTIONS["api_key_file"].error(f"{config.api_key_file} holds no key")
    return replace(config, api_key=(*config.api_key, *keys), api_key_file=None)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class RequireKey:
    """ASGI middleware: 401 unless a request carries one of the keys as `Authorization: Bearer KEY`, or as `x-api-key: KEY`,
    as Anthropic's clients do.

    Digests are compared, and all of them every time, so that the time taken tells nothing about a key.
    """

    def __init__(self, app: ASGIApp, config: EngineConfig) -> None:
        self._app = app
        self._digests = [_digest(key.encode()) for key in config.api_key]
        self._open_paths = OPEN_PATHS if config.guard_metrics else OPEN_PATHS | {"/metrics"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_open(scope) or self._allows(scope):
            await self._app(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(UNAUTHORIZED)).encode())]
        await send({"type": "http.response.start", "status": 401, "headers": headers})
        await send({"type": "http.response.body", "body": UNAUTHORIZED})

    def _is_open(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path.removeprefix(scope.get("root_path", "")) in self._open_paths

    def _allows(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        given = _digest(token.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b""))
        matches = [secrets.compare_digest(given, digest) for digest in self._digests]
        return any(matches)
