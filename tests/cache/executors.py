"""Disks that work when the test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class _Waited(Future[Any]):
    """Whoever waits for it makes the disk work."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            self._disk.work(1)
        return super().result(timeout)


class Disk(Executor):
    """Runs what was submitted, in order, in `work`; or when somebody waits for it, or at the end."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[_Waited, Callable[..., Any], tuple[Any, ...]]] = deque()

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Future[Any]:  # type: ignore[override]
        future = _Waited(self)
        self.jobs.append((future, function, arguments))
        return future

    def work(self, count: int) -> None:
        """Run the next `count` jobs."""
        for _ in range(min(count, len(self.jobs))):
            future, function, arguments = self.jobs.popleft()
            future.set_result(function(*arguments))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.work(len(self.jobs))
