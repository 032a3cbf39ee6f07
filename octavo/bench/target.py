"""The server that `octavo bench serve` measures, from its client's side."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from octavo.errors import ConfigError, UnavailableError

_MOST_LINE = 1 << 24  # bytes of one event


class Target:
    """A server: plain HTTP/1.1, one connection for each request, so that the client costs little."""

    def __init__(self, url: str, key: str | None) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:  # an IPv6 address without its end, a port that is none
            host = None
        if host is None or parts.scheme not in ("http", "https"):
            raise ConfigError(f"--base-url takes an address such as http://localhost:8000, got {url}", parameter="base_url")
        self.url = url
        self._host, self._tls = host, ssl.create_default_context() if parts.scheme == "https" else None
        self._port = port or (443 if self._tls else 80)
        self._path = parts.path.rstrip("/")
        self._headers = f"Host: {parts.netloc}\r\nConnection: close\r\n" + (
            f"Authorization: Bearer {key}\r\n" if key else ""
        )

    async def lines(self, method: str, path: str, body: bytes = b"") -> AsyncIterator[bytes]:
        """The lines of the answer's body. UnavailableError for any status but 200, and where nobody answers."""
        try:
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_MOST_LINE)
        except (OSError, UnicodeError) as error:  # UnicodeError: a name that no host can have
            raise UnavailableError(f"no server answers at {self.url} ({error})") from None
        try:
            head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}Content-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            status = (await reader.readline()).decode("latin-1").strip()
            while (await reader.readline()).strip():
                pass
            if " 200" not in status:
                raise UnavailableError(f"{path} answered {status}: {(await reader.read(2000)).decode(errors='replace')}")
            while line := await reader.readline():
                yield line
        finally:
            writer.close()

    async def first_model(self) -> str:
        """The name of what the server serves."""
        found = b"".join([line async for line in self.lines("GET", "/v1/models")])
        start, end = found.find(b"{"), found.rfind(b"}") + 1  # without the sizes of chunks
        try:
            return str(json.loads(found[start:end])["data"][0]["id"])
        except (ValueError, KeyError, IndexError, TypeError):
            raise UnavailableError(f"{self.url} is no server of the OpenAI API: it lists no models") from None
