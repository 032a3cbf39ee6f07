"""Who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from octavo.grammar.shortest_first import PATIENCE, ShortestFirst


class Jobs(ShortestFirst):
    """With a thread that is at work until `gate` is set; `done` lists the names of the others."""

    def __init__(self) -> None:
        super().__init__(ThreadPoolExecutor(1))
        self.gate, self.done, begun = threading.Event(), [], threading.Event()

        def first() -> None:
            begun.set()
            assert self.gate.wait(30)

        self.submit(0, first)
        assert begun.wait(30)


@pytest.fixture
def jobs() -> Iterator[Jobs]:
    jobs = Jobs()
    yield jobs
    jobs.gate.set()
    jobs.close()


def test_what_nobody_waits_for_any_more_is_not_done(jobs: Jobs) -> None:
    unwanted, wanted = (jobs.submit(i, lambda i=i: jobs.done.append(i)) for i in (1, 2))
    del unwanted
    jobs.gate.set()
    wanted.result(30)
    assert jobs.done == [2]


def test_small_ones_do_not_wait_for_large_ones(jobs: Jobs) -> None:
    large = [jobs.submit(1_000_000 - i, lambda i=i: jobs.done.append(f"large {i}")) for i in range(6)]
    small = jobs.submit(10, lambda: jobs.done.append("small"))
    jobs.gate.set()
    small.result(30)
    for future in large:
        future.result(30)
    assert jobs.done == ["small", *(f"large {i}" for i in range(6))]


def test_nobody_waits_for_ever(jobs: Jobs) -> None:
    large = jobs.submit(3 * PATIENCE, lambda: jobs.done.append("large"))
    later = [jobs.submit(1, lambda: jobs.done.append("small")) for _ in range(6)]
    jobs.gate.set()
    later[-1].result(30)
    assert large.done()
    assert jobs.done.index("large") == 2


def test_results_and_errors(jobs: Jobs) -> None:
    good, bad = jobs.submit(1, lambda: 5), jobs.submit(2, lambda: 1 // 0)
    jobs.gate.set()
    assert good.result(30) == 5
    with pytest.raises(ZeroDivisionError):
        bad.result(30)


def test_closing_cancels_what_waits(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    shutdown = jobs._executor.shutdown

    def cancel_and_let_the_thread_end(*, wait: bool, cancel_futures: bool) -> None:
        shutdown(wait=False, cancel_futures=cancel_futures)
        jobs.gate.set()
        shutdown(wait=wait)

    monkeypatch.setattr(jobs._executor, "shutdown", cancel_and_let_the_thread_end)
    waiting = jobs.submit(1, lambda: 5)
    jobs.close()
    jobs.close()
    with pytest.raises(CancelledError):
        waiting.result(0)
