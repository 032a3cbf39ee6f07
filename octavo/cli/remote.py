"""A running server as a source of answers, over the standard library's HTTP client."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from octavo.errors import ConfigError, RequestError, UnavailableError

_CONNECT_SECONDS = 30.0


class RemoteModel:
    """Streams answers of the OpenAI API at `url` (with or without /v1). Closing a generator hangs up, which ends the answer
    on the server as well."""

    def __init__(self, url: str, model: str | None, api_key: str | None, parameters: Mapping[str, Any]) -> None:
        """`model` None takes the first that the server has. `parameters` go into each request's body."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--url must be like http://127.0.0.1:8000, got {url}", parameter="url")
        self._scheme, self._address = parts.scheme, parts.netloc.rpartition("@")[2]
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._parameters = parameters
        self.model = model or self._first_model()

    def chat(self, messages: list[dict[str, Any]]) -> Generator[str, None, None]:
        """Pieces of the answer to a conversation. Raises RequestError with the server's message."""
        for choice in self._stream("/v1/chat/completions", {"messages": messages}):
            yield choice["delta"].get("content") or ""

    def complete(self, prompt: str) -> Generator[str, None, None]:
        """Pieces of the continuation of a text. Raises RequestError with the server's message."""
        for choice in self._stream("/v1/completions", {"prompt": prompt}):
            yield choice["text"]

    def close(self) -> None:
        """Nothing is held between answers."""

    def _first_model(self) -> str:
        connection, response = self._send("GET", "/v1/models", None)
        models = json.loads(response.read())["data"]
        connection.close()
        if not models:
            raise ConfigError("the server has no model")
        name: str = models[0]["id"]
        return name

    def _stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        connection, response = self._send("POST", path, {"model": self.model, "stream": True, **self._parameters, **body})
        try:
            for line in response:
                event = line.removeprefix(b"data: ").strip()
                if event == b"[DONE]":
                    return
                if event and line.startswith(b"data: "):
                    yield from _choices(json.loads(event))
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(f"the server broke off the answer: {error}") from None
        finally:
            connection.close()

    def _send(self, method: str, path: str, body: Any) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        kind = http.client.HTTPSConnection if self._scheme == "https" else http.client.HTTPConnection
        connection = kind(self._address, timeout=_CONNECT_SECONDS)
        try:
            connection.connect()
            connection.sock.settimeout(None)  # an answer may take as long as it likes
            connection.request(method, self._prefix + path, body and json.dumps(body), self._headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise UnavailableError(f"cannot reach {self._scheme}://{self._address}: {error}") from None
        if response.status != 200:
            text = response.read()
            connection.close()
            raise _refusal(response.status, text)
        return connection, response


def _choices(event: dict[str, Any]) -> list[dict[str, Any]]:
    if "error" in event:
        raise RequestError(event["error"]["message"])
    choices: list[dict[str, Any]] = event["choices"]
    return choices


def _refusal(status: int, text: bytes) -> RequestError:
    """The message in the server's error body (vLLM's envelope, or a bare text under `error`), or the body itself."""
    try:
        error = json.loads(text)["error"]
        message = error if isinstance(error, str) else error["message"]
    except (ValueError, KeyError, TypeError):
        message = text.decode("utf-8", "replace")[:200] or http.client.responses.get(status, "")
    return RequestError(f"the server answered {status}: {message}")
