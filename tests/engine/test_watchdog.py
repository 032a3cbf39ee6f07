"""When the engine counts as stuck, and what is logged then. Time is what the tests say it is."""

from __future__ import annotations

import json
import logging
import threading

import pytest

from octavo.engine.plan import StepPlan
from octavo.engine.watchdog import StallReporter, Watchdog
from tests.scripted import Script, ScriptedRunner, make_request, scripted_engine


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_counts_from_the_last_progress_while_there_is_work() -> None:
    clock = Clock()
    watchdog = Watchdog(10.0, clock)
    seen = []
    for seconds, has_work, progress in [
        *((0, False, 0), (50, False, 0)),  # idle
        *((1, True, 0), (10, True, 0), (1, True, 0), (5, True, 0)),  # a request that does not get its first step
        *((1, True, 1), (10, True, 1), (1, True, 1)),  # a step, and again none
        *((1, False, 1), (20, True, 1), (10, True, 2), (10, True, 2)),  # it goes; the next one gets its step in time
    ]:
        clock.now += seconds
        seen.append(watchdog.look(has_work, progress))
    assert seen == [None, None, None, None, 11.0, 16.0, None, None, 11.0, None, None, None, None]


def test_without_a_timeout_nothing_is_stuck() -> None:
    clock = Clock()
    watchdog = Watchdog(0.0, clock)
    watchdog.look(True, 0)
    clock.now += 1e9
    assert watchdog.look(True, 0) is None


def test_a_stuck_step_is_reported_once_with_the_state_and_the_place(caplog: pytest.LogCaptureFixture) -> None:
    is_stuck, may_go_on = threading.Event(), threading.Event()
    clock = Clock()
    reporters: list[StallReporter] = []

    def this_step_hangs(plan: StepPlan) -> None:
        is_stuck.set()
        assert may_go_on.wait(10)

    runner = ScriptedRunner(script=Script(max_num_seqs=1), on_step=this_step_hangs)
    engine = scripted_engine(runner)

    def work() -> None:
        reporters.append(StallReporter(engine, Watchdog(5.0, clock)))
        for name in ("first", "second"):
            engine.add(make_request(name, 20, max_tokens=1))
        while engine.has_work:
            engine.step()

    thread = threading.Thread(target=work)
    thread.start()
    assert is_stuck.wait(10)
    (reporter,) = reporters
    with caplog.at_level(logging.ERROR, "octavo.engine.watchdog"):
        for _ in range(4):
            reporter.look()
            clock.now += 3.0
        (record,) = caplog.records
        may_go_on.set()
        thread.join(10)
        reporter.look()
        clock.now += 60.0
        reporter.look()
    assert caplog.records == [record]
    first, state, *where = (
        record.getMessage().splitlines()[0].split("The scheduler: ") + record.getMessage().splitlines()[1:]
    )
    assert first == "No step has ended for 6.0 s. "
    told = json.loads(state)
    assert [each["request_id"] for each in (*told["running"], *told["waiting"])] == ["first", "second"]
    assert told["blocks"]["held"] == 2
    assert any("this_step_hangs" in line for line in where)
