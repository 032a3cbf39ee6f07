"""Requests whose grammar is being built: they wait here, so that nobody waits for it in a step."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.engine.request import Grammar, Request

WAIT_SECONDS = 0.02
"""How long an engine that has nothing else to do sleeps before it looks again, for new commands too."""


MAX_GRAMMARS = 256
"""That are built at a time, those of running requests included: each may take some 25 MiB. Further ones wait unbuilt."""


class Builder(Protocol):
    """What is needed of `octavo.grammar.matchers.Matchers`."""

    @property
    def num_alive(self) -> int: ...

    def prepare(self, grammar: Grammar) -> Future[Any]: ...


@dataclass(slots=True)
class _Held:
    request: Request
    grammar: Grammar
    built: Future[Any] | None = None
    aborted: set[int] = field(default_factory=set)  # sequences


class Preparation:
    """Requests by id, in order of arrival."""

    def __init__(self, builder: Builder | None) -> None:
        self._builder = builder
        self._held: dict[str, _Held] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._held

    def __bool__(self) -> bool:
        return bool(self._held)

    @property
    def num_sequences(self) -> int:
        """That wait, those that were aborted meanwhile not counted."""
        return sum(held.request.params.n - len(held.aborted) for held in list(self._held.values()))

    def hold(self, request: Request, grammar: Grammar) -> None:
        """Keep the request until its grammar is built."""
        self._held[request.request_id] = _Held(request, grammar)
        self._begin()

    def abort(self, request_id: str, index: int | None) -> int:
        """End one sequence of a request that waits here, or all; how many that were."""
        held = self._held[request_id]
        new = {i for i in range(held.request.params.n) if index in (None, i)} - held.aborted
        held.aborted |= new
        if len(held.aborted) == held.request.params.n:
            del self._held[request_id]
        return len(new)

    def wait(self) -> None:
        """Sleep until a grammar is built, or for WAIT_SECONDS."""
        wait([held.built for held in self._held.values() if held.built is not None], WAIT_SECONDS, FIRST_COMPLETED)

    def ready(self) -> Iterator[tuple[Request, frozenset[int], Future[Any]]]:
        """Those whose grammars are built, or cannot be, which leave: the request, its sequences that have ended, and the
        grammar, which has to be held as long as the request may need it."""
        self._begin()
        for request_id, held in list(self._held.items()):
            if held.built is not None and held.built.done():
                del self._held[request_id]
                yield held.request, frozenset(held.aborted), held.built

    def _begin(self) -> None:
        """Let grammars be built, as many as there is room for."""
        for held in self._held.values():
            if held.built is None and self._builder is not None and self._builder.num_alive < MAX_GRAMMARS:
                held.built = self._builder.prepare(held.grammar)
