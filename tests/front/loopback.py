"""A server of the OpenAI API on a free port of this machine, whose answers a test prepares."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, bytes]


class Loopback(ThreadingHTTPServer):
    """Records requests as (path, headers, body) and answers each path with the prepared status and bytes."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Answer] = {"/v1/models": (200, b'{"data": [{"id": "first"}, {"id": "second"}]}')}
        self.requests: list[tuple[str, dict[str, str], Any]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Loopback

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        self.server.requests.append((self.path, dict(self.headers), body))
        status, content = self.server.answers[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *arguments: object) -> None:
        pass


@contextmanager
def loopback() -> Iterator[Loopback]:
    server = Loopback()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def events(*payloads: Any, done: bool = True) -> bytes:
    """Server-sent events, with the closing [DONE]."""
    lines = [json.dumps(payload) for payload in payloads] + (["[DONE]"] if done else [])
    return "".join(f"data: {line}\n\n" for line in lines).encode()


def chat_pieces(*texts: str | None) -> bytes:
    """A chat answer in these pieces, with the first event's role and the last one's usage."""
    deltas = [{"role": "assistant", "content": ""}, *({"content": text} for text in texts), {}]
    return events(*({"choices": [{"index": 0, "delta": delta}]} for delta in deltas), {"choices": [], "usage": {}})
