"""Responses that may be asked for again, or gone on from: in memory, the most recently used ones."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.server.responses.schema import Response

MAX_RESPONSES = 1024
MAX_BYTES = 64 << 20  # of the conversations and answers, as JSON


@dataclass
class Stored:
    """A response with the conversation that led to it (the answer itself is in the response).

    `task` works on it, if it is made in the background. `nbytes` are those of the bodies in the
    conversation and of the answer, as JSON.
    """

    response: Response
    messages: list[dict[str, Any]]
    nbytes: int
    task: asyncio.Task[None] | None = None


class ResponseStore:
    """Forgets the least recently used ones beyond its limits, but none that is being made in the background."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self._stored: OrderedDict[str, Stored] = OrderedDict()
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._nbytes = 0

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, stored: Stored) -> None:
        """Keep it."""
        self._stored[stored.response.id] = stored
        self._nbytes += stored.nbytes
        self._trim(stored)

    def grow(self, stored: Stored, nbytes: int) -> None:
        """The answer is there, and takes so much."""
        if self._stored.get(stored.response.id) is stored:
            stored.nbytes += nbytes
            self._nbytes += nbytes
            self._trim(stored)

    def _trim(self, newest: Stored) -> None:
        for id in list(self._stored):
            if len(self._stored) <= self._max_responses and self._nbytes <= self._max_bytes:
                return
            if self._stored[id].task is None and id != newest.response.id:
                self._nbytes -= self._stored.pop(id).nbytes

    def get(self, id: str) -> Stored | None:
        """The one of that id, if it is still there."""
        if id in self._stored:
            self._stored.move_to_end(id)
        return self._stored.get(id)
