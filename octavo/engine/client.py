"""The one protocol by which `LLM` and the server speak to an engine, in this process or in its own."""

from __future__ import annotations

from typing import Any, Protocol

from octavo.engine.request import EngineOutput, EngineStatus, Request


class EngineClient(Protocol):
    """Synchronous and small. `submit`, `abort`, `call` and `close` may be used from other threads while one polls. Once the
    engine is known to be dead or closed, `submit`, `poll` and `call` raise EngineDeadError with the reason."""

    @property
    def status(self) -> EngineStatus:
        """The newest status that `poll` has seen."""

    def submit(self, request: Request) -> None:
        """Queue a request; its deltas come out of `poll`, the last of each sequence with a finish_reason."""

    def abort(self, request_id: str, index: int | None = None, reason: str = "abort") -> None:
        """End a sequence, or all of a request, within one step; unknown ids, and a dead engine, are ignored. No delta
        follows: whoever ends it knows. `reason` is "abort", or "stop" when the text matched a stop string."""

    def poll(self, timeout: float) -> EngineOutput:
        """Wait up to `timeout` seconds for output. In process: run one step. Raises EngineDeadError when it has died."""

    def call(self, method: str, *arguments: Any) -> Any:
        """Run a named operation in the engine between two steps (`check_integrity`, `debug_state`) and return its result."""

    def close(self) -> None:
        """End the engine and give back all its memory. Idempotent."""
