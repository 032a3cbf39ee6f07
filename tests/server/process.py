"""A server in a process of its own, whose log is read while it runs."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import psutil
import pytest


class ServerProcess:
    """`python ARGUMENTS...`, from the line that says where it listens. `http` is a client of it."""

    def __init__(self, arguments: Sequence[str], headers: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen([sys.executable, *arguments], stderr=subprocess.PIPE, text=True)
        self.log: list[str] = []
        self._seen = 0
        self._news = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.threads = ThreadPoolExecutor(16)
        self.address = self.wait_for_log("Listening on ").split()[-1]
        self.http = httpx.Client(base_url=self.address, timeout=30, headers=headers)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.log.append(line)
                self._news.notify_all()
        with self._news:
            self._has_ended = True
            self._news.notify_all()

    def wait_for_log(self, text: str, timeout: float = 60) -> str:
        """The next line of the log with this text; fails when the log ends or says nothing for so long."""
        with self._news:
            while True:
                for line in self.log[self._seen :]:
                    self._seen += 1
                    if text in line:
                        return line
                if self._has_ended or not self._news.wait(timeout):
                    pytest.fail(f"the log has no line with {text!r}:\n{''.join(self.log)}")

    @property
    def engine(self) -> psutil.Process:
        """The engine's process."""
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def stream(self, path: str, body: Any) -> Future[list[str]]:
        """The lines of a stream, which has begun."""
        response = self.http.send(self.http.build_request("POST", path, json={**body, "stream": True}), stream=True)
        assert response.status_code == 200, response.read()
        lines = response.iter_lines()
        first = next(lines)
        return self.threads.submit(lambda: [first, *lines])

    def end(self) -> tuple[int, list[str]]:
        """The exit code, and the lines on stderr that no logger wrote; the process must end by itself."""
        code = self.process.wait(20)
        self._reader.join()
        return code, [line for line in self.log if " [" not in line and not line.startswith("  ")]


@contextmanager
def server_process(*arguments: str, headers: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    """One that leaves nothing behind, whatever happens."""
    server = ServerProcess(arguments, headers)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()
        server.threads.shutdown()
        server.http.close()
        server._reader.join()
        assert server.process.stderr is not None
        server.process.stderr.close()
