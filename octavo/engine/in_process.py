"""The engine in the caller's own process: for `LLM`, and for tests."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from octavo.engine.engine import Engine
from octavo.engine.operations import perform
from octavo.engine.request import EngineOutput, EngineStatus, Request
from octavo.errors import EngineDeadError


class InProcessClient:
    """An `EngineClient` whose `poll` runs one step. Requests and aborts wait in a queue until the engine is between two
    steps, so other threads may make them at any time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._status = EngineStatus("ready", 100.0)
        self._commands: deque[Callable[[], None]] = deque()
        self._arrived = threading.Event()
        self._has_news = False  # commands have changed the stats since the last output
        self._between_steps = threading.Lock()  # held while the engine is used

    @property
    def status(self) -> EngineStatus:
        """Ready, until it is closed or dead."""
        return self._status

    def submit(self, request: Request) -> None:
        """See `EngineClient`."""
        self._raise_if_dead()
        self._enqueue(lambda: self._engine.add(request))

    def abort(self, request_id: str, index: int | None = None, reason: str = "abort") -> None:
        """See `EngineClient`."""
        self._enqueue(lambda: self._engine.abort(request_id, index, reason))

    def poll(self, timeout: float) -> EngineOutput:
        """Run one step; with nothing to run, wait up to `timeout` seconds for a request first."""
        self._arrived.clear()  # before looking, so that what comes after the look ends the wait
        with self._between_steps:
            idle = not self._commands and not self._status.is_dead and not self._engine.has_work
        if idle:
            self._arrived.wait(timeout)
        with self._between_steps:
            self._run_commands()
            if not self._engine.has_work and not self._has_news:
                return EngineOutput()
            self._has_news = False
            return self._step()

    def call(self, method: str, *arguments: Any) -> Any:
        """See `EngineClient`."""
        with self._between_steps:
            self._run_commands()
            return perform(self._engine, method, arguments)

    def close(self) -> None:
        """See `EngineClient`."""
        with self._between_steps:
            if not self._status.is_dead:
                self._die("The engine was closed.")

    def _enqueue(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._arrived.set()

    def _run_commands(self) -> None:
        """Bring the engine up to date."""
        self._raise_if_dead()
        while self._commands:
            self._commands.popleft()()
            self._has_news = True

    def _step(self) -> EngineOutput:
        try:
            return self._engine.step()
        except EngineDeadError as error:
            self._die(error.message)
            raise

    def _raise_if_dead(self) -> None:
        if self._status.is_dead:
            raise EngineDeadError(self._status.message)

    def _die(self, reason: str) -> None:
        self._status = EngineStatus("dead", message=reason)
        self._arrived.set()
        self._engine.close()
