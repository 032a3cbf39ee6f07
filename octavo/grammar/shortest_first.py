"""A thread for work of very different length: what is short does not wait for all that is long."""

from __future__ import annotations

import heapq
import itertools
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")

PATIENCE = 1_000
"""By how much of cost each later job counts for more: a job of cost 100,000 lets at most 100 later ones pass."""


class ShortestFirst:
    """Of the jobs that wait, the one of least cost is next; one whose future nobody holds any more is left out. `executor`
    has one thread."""

    def __init__(self, executor: ThreadPoolExecutor) -> None:
        self._executor = executor
        self._waiting: list[tuple[int, int, weakref.ref[Future[Any]], Callable[[], Any]]] = []
        self._lock = threading.Lock()
        self._numbers = itertools.count()

    def submit(self, cost: int, work: Callable[[], Result]) -> Future[Result]:
        """Do the work in the thread when it is its turn. The cost is the length of a text, or as good a guess."""
        future: Future[Result] = Future()
        with self._lock:
            number = next(self._numbers)
            heapq.heappush(self._waiting, (cost + PATIENCE * number, number, weakref.ref(future), work))
        self._executor.submit(self._next)
        return future

    def close(self) -> None:
        """End the thread when the job that it is at is done; the others are cancelled. Idempotent."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        for _, _, held, _ in self._waiting:
            if (future := held()) is not None:
                future.cancel()
        self._waiting.clear()

    def _next(self) -> None:
        with self._lock:
            _, _, held, work = heapq.heappop(self._waiting)
        future = held()
        if future is None or not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(work())
        except BaseException as error:  # whoever waits for it is told
            future.set_exception(error)
