"""When a full server says to come back: by the pace at which it empties."""

from __future__ import annotations

import pytest

from octavo.config import EngineConfig
from octavo.server.admission import Admission, QueueFullError
from octavo.server.outflow import MAX_SECONDS, Outflow


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(
    ("gap", "amount", "expected"), [(2.0, 3, 6), (0.5, 3, 2), (0.01, 3, 1), (30.0, 3, MAX_SECONDS), (2.0, 1, 2)]
)
def test_it_is_as_long_as_that_much_took_lately(gap: float, amount: int, expected: int) -> None:
    clock = Clock()
    outflow = Outflow(clock)
    assert outflow.seconds_until(amount) == 1
    for _ in range(10):
        outflow.went(1, left=5)
        clock.now += gap
    clock.now -= gap
    assert outflow.seconds_until(amount) == expected
    outflow.went(1, left=0)
    assert outflow.seconds_until(amount) == 1


def test_time_in_which_nothing_goes_counts() -> None:
    clock = Clock()
    outflow = Outflow(clock)
    for _ in range(3):
        outflow.went(1, left=5)
        clock.now += 1.0
    assert outflow.seconds_until(4) == 6
    clock.now += 20.0
    assert outflow.seconds_until(4) == 46


def test_a_full_server_tells_by_what_exceeds_its_limits() -> None:
    clock = Clock()
    admission = Admission(EngineConfig(max_num_queued_reqs=8, max_num_queued_tokens=100))
    for each in (admission._sequences_gone, admission._tokens_gone):
        each._clock = clock
    visits = [admission.visit(1) for _ in range(8)]
    for visit in visits:
        visit.add_prompts(12)
    for visit in visits[:4]:
        visit.prompt_computed(12)
        visit.sequence_ended()
        clock.now += 3.0
    more = [admission.visit(1) for _ in range(4)]
    with pytest.raises(QueueFullError) as full:
        admission.visit(2)
    assert full.value.retry_after == 8  # 3 have gone in 12 s: 2 take 8
    with pytest.raises(QueueFullError) as full:
        more[0].add_prompts(61)
    assert full.value.retry_after == 3  # 36 tokens in 12 s: 48 + 61 - 100 take 3
    assert admission.counts() == {"sequences": 8, "prompt_tokens": 48}
    for visit in [*visits, *more]:
        visit.leave()
    assert admission.counts() == {"sequences": 0, "prompt_tokens": 0}
