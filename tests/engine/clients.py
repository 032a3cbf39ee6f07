"""Both clients around a scripted engine, and how to read them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from octavo.engine.client import EngineClient
from octavo.engine.in_process import InProcessClient
from octavo.engine.process import ProcessClient
from octavo.engine.request import RequestDelta
from tests.scripted import FACTORY, Script, ScriptedRunner, script_file, scripted_engine

KINDS = ("in process", "own process")


def make_client(kind: str, folder: Path, script: Script) -> EngineClient:
    if kind == "in process":
        return InProcessClient(scripted_engine(ScriptedRunner(script=script)))
    return ProcessClient(script_file(folder, script), factory=FACTORY)


def poll_until(
    client: EngineClient, done: Callable[[list[RequestDelta]], bool], seconds: float = 20.0
) -> list[RequestDelta]:
    """Poll, which waits by itself, until the deltas so far satisfy `done`."""
    deltas: list[RequestDelta] = []
    deadline = time.monotonic() + seconds
    while not done(deltas):
        assert time.monotonic() < deadline, "the engine says nothing more"
        deltas += client.poll(1.0).deltas
    return deltas


def ended(*request_ids: str) -> Callable[[list[RequestDelta]], bool]:
    """All these requests (of one sequence each) have ended."""
    return lambda deltas: {d.request_id for d in deltas if d.finish_reason} >= set(request_ids)


def tokens(deltas: list[RequestDelta], request_id: str, index: int = 0) -> list[int]:
    return [token for d in deltas if (d.request_id, d.index) == (request_id, index) for token in d.token_ids]
