"""Runs prompts on an engine in this process, for any number of threads at once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from octavo.engine.client import EngineClient
from octavo.engine.intake import Intake
from octavo.engine.request import Request, RequestDelta
from octavo.engine.truncation import Truncation
from octavo.errors import RequestError, UnavailableError, ValidationError
from octavo.offline.collector import RequestCollector
from octavo.offline.interrupts import interrupt_held_back
from octavo.offline.memory import release_freed_memory
from octavo.offline.prompts import Prompt
from octavo.sampling.params import SamplingParams

_IDLE_SECONDS = 1.0  # how long a poll may wait; with a request outstanding it does not wait at all


class Collector(Protocol):
    """Gathers what comes of one request."""

    request_id: str
    finished: bool

    def add(self, delta: RequestDelta) -> None:
        """Take what one step gave."""


Gathers = TypeVar("Gathers", bound=Collector)


@dataclass(frozen=True)
class Job(Generic[Gathers]):
    """A request that was found good, and where its answers gather."""

    request: Request
    collector: Gathers


class Session:
    """Whoever waits for an answer runs the engine's steps, for the requests of all threads: those that wait at the same time
    share each step."""

    def __init__(self, intake: Intake, client: EngineClient) -> None:
        self._intake: Intake | None = intake
        self._client = client
        self._collectors: dict[str, Collector] = {}
        self._stepping = threading.Lock()
        self._numbers = itertools.count()

    @property
    def intake(self) -> Intake:
        """What is known of the model. Raises UnavailableError after `close`."""
        if self._intake is None:
            raise UnavailableError("this LLM was closed")
        return self._intake

    def next_id(self) -> str:
        """A new request id: "0", "1", ..."""
        return str(next(self._numbers))

    def prepare(
        self,
        prompt: Prompt | RequestError,
        params: SamplingParams,
        priority: int = 0,
        truncation: Truncation | None = None,
    ) -> Job[RequestCollector]:
        """Check a prompt and its parameters. Raises ValidationError (or the error that stands in the prompt's place)."""
        if isinstance(prompt, RequestError):
            raise prompt
        if not isinstance(params, SamplingParams):
            raise ValidationError(f"sampling_params must be SamplingParams, got {type(params).__name__}")
        request = self.intake.request(
            self.next_id(),
            prompt.content,
            params,
            add_special_tokens=prompt.add_special_tokens,
            cache_salt=prompt.cache_salt,
            priority=priority,
            truncation=truncation,
            offline=True,
        )
        return Job(request, RequestCollector(request, prompt.text, self.intake.tokenizer, self._client.abort))

    def run(self, jobs: Sequence[Job[Any]]) -> Generator[None, None, None]:
        """Submit the jobs and step until all have finished, yielding after each step; what came is in the collectors.

        Closing the iterator aborts what has not finished. Raises EngineDeadError when the engine has died.
        """
        waiting = [job.collector for job in jobs]
        try:
            for job in jobs:
                self._collectors[job.request.request_id] = job.collector
                self._client.submit(job.request)
            while waiting:
                self._step(waiting)
                waiting = [collector for collector in waiting if not collector.finished]
                yield
        finally:
            for job in jobs:
                self._collectors.pop(job.request.request_id, None)
            for collector in waiting:
                self._client.abort(collector.request_id)

    def reset_prefix_cache(self, restart: bool) -> bool:
        """See `Engine.reset_prefix_cache`."""
        return bool(self._client.call("reset_prefix_cache", restart))

    def close(self) -> None:
        """Give back the engine's memory and everything known of the model. Idempotent."""
        if self._intake is not None:
            self._intake.grammars.close()
        self._intake = None
        self._client.close()
        release_freed_memory()

    def _step(self, waiting: Sequence[Collector]) -> None:
        with self._stepping, interrupt_held_back():
            if all(collector.finished for collector in waiting):
                return  # by a step of another thread
            for delta in self._client.poll(_IDLE_SECONDS).deltas:
                collector = self._collectors.get(delta.request_id)
                if collector is not None:
                    collector.add(delta)
