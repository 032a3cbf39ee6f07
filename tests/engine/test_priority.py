"""`--scheduling-policy priority`: who is served first, who gives way, and that nobody's answer changes by it."""

from __future__ import annotations

from octavo.engine.engine import Engine
from octavo.engine.plan import StepPlan
from octavo.engine.request import Request, RequestDelta
from octavo.engine.sequence_queue import SequenceQueue
from tests.scripted import Script, ScriptedRunner, default_token, make_request, scripted_engine


def small(policy: str = "priority", **limits: object) -> tuple[Engine, ScriptedRunner, list[StepPlan]]:
    """An engine with blocks of 4 tokens, and the plans it makes."""
    plans: list[StepPlan] = []
    script = Script(**{"block_size": 4, "num_blocks": 16, "max_model_len": 40, **limits})
    runner = ScriptedRunner(script=script, on_step=plans.append)
    return scripted_engine(runner, scheduling_policy=policy), runner, plans


def run(engine: Engine) -> list[RequestDelta]:
    deltas: list[RequestDelta] = []
    for _ in range(2_000):
        if not engine.has_work:
            return deltas
        deltas += engine.step().deltas
        engine.check_integrity()
    raise AssertionError("the engine does not come to an end")


def ended(deltas: list[RequestDelta]) -> list[str]:
    return [delta.request_id for delta in deltas if delta.finish_reason]


def assert_answers(deltas: list[RequestDelta], *requests: Request) -> None:
    """Each sequence got exactly what it gets alone."""
    for request in requests:
        for index in range(request.params.n):
            key = (request.request_id, index)
            got = [token for delta in deltas if (delta.request_id, delta.index) == key for token in delta.token_ids]
            assert got == [default_token(request, index, i) for i in range(request.params.max_tokens or 0)]


def test_the_lower_priority_is_served_first_and_equal_ones_by_arrival() -> None:
    engine, _, _ = small(max_num_seqs=1)
    priorities = {"a": 1, "b": 0, "c": 1, "d": -5, "e": 0}
    requests = [make_request(name, 4, max_tokens=2, priority=priority) for name, priority in priorities.items()]
    for request in requests:
        engine.add(request)
    deltas = run(engine)
    assert ended(deltas) == ["d", "b", "e", "a", "c"]
    assert engine.stats().num_preemptions == 0
    assert_answers(deltas, *requests)


def test_first_come_first_served_knows_no_priorities() -> None:
    engine, _, _ = small("fcfs", max_num_seqs=1)
    for name, priority in (("a", 1), ("b", 0), ("c", -1)):
        engine.add(make_request(name, 4, max_tokens=2, priority=priority))
    assert ended(run(engine)) == ["a", "b", "c"]


def test_who_comes_first_does_not_wait_for_a_row() -> None:
    engine, _, plans = small(max_num_seqs=2)
    background = [make_request(name, 4, max_tokens=9, priority=9) for name in ("first", "second")]
    for request in background:
        engine.add(request)
    engine.step()
    urgent = make_request("urgent", 5, max_tokens=3)
    engine.add(urgent)
    deltas = engine.step().deltas
    assert [delta.request_id for delta in deltas] == ["urgent", "first"]
    assert (engine.stats().num_running, engine.stats().num_waiting, engine.stats().num_preemptions) == (2, 1, 1)
    deltas += run(engine)
    assert ended(deltas) == ["urgent", "first", "second"]
    assert_answers(deltas, urgent)
    (resumed,) = [new for plan in plans[2:] for new in plan.new_rows if new.request is background[1]]
    assert len(resumed.output_token_ids) == 1


def test_who_comes_first_does_not_wait_for_blocks() -> None:
    engine, _, _ = small(num_blocks=6, max_model_len=24)
    low = make_request("low", 12, max_tokens=12, priority=1)
    engine.add(low)
    deltas = engine.step().deltas
    high = make_request("high", 16, max_tokens=8)
    engine.add(high)
    deltas += engine.step().deltas
    assert [delta.request_id for delta in deltas] == ["low", "high"]
    deltas += run(engine)
    assert ended(deltas) == ["high", "low"]
    assert_answers(deltas, low, high)


def test_with_room_for_both_nobody_gives_way() -> None:
    engine, _, plans = small()
    engine.add(make_request("low", 8, max_tokens=6, priority=1))
    engine.step()
    engine.add(make_request("high", 8, max_tokens=6))
    run(engine)
    assert engine.stats().num_preemptions == 0
    assert [len(plan.scheduled) for plan in plans[1:6]] == [2] * 5


def test_the_budget_is_spent_in_the_order_of_priorities() -> None:
    engine, _, plans = small(max_num_batched_tokens=8)
    engine.add(make_request("low", 30, max_tokens=1, priority=1))
    engine.step()
    engine.add(make_request("high", 13, max_tokens=1))
    assert ended(run(engine)) == ["high", "low"]
    shapes = [[(row.start, row.num_tokens) for row in plan.scheduled] for plan in plans]
    assert shapes == [[(0, 8)], [(0, 8)], [(8, 5), (8, 3)], [(11, 8)], [(19, 8)], [(27, 3)]]


def test_the_sequences_of_a_request_stay_together() -> None:
    engine, _, plans = small(max_num_seqs=4)
    low = make_request("low", 6, max_tokens=6, n=3, temperature=1.0, priority=1)
    engine.add(low)
    deltas = engine.step().deltas
    high = make_request("high", 6, max_tokens=6, n=3, temperature=1.0)
    engine.add(high)
    deltas += engine.step().deltas
    engine.check_integrity()
    assert sum(row.num_tokens for row in plans[1].scheduled[:3]) == 6, "one of them computes the prompt"
    deltas += run(engine)
    assert_answers(deltas, low, high)
    assert engine.stats().num_preemptions == 2


def test_a_queue_is_ordered_by_turns_whatever_the_order_of_arrival() -> None:
    engine, _, _ = small()
    for number, priority in enumerate((3, 1, 2, 1, 3)):
        engine.add(make_request(f"{number}", priority=priority))
    queue: SequenceQueue = engine._scheduler.waiting
    names = [sequence.request.request_id for sequence in queue]
    assert names == ["1", "3", "2", "0", "4"]
    assert (queue.first.turn, queue.last.turn, len(queue)) == ((1, 1), (3, 4), 5)
    middle = next(sequence for sequence in queue if sequence.request.request_id == "2")
    queue.remove(middle)
    assert middle not in queue
    queue.add(middle)
    assert [sequence.request.request_id for sequence in queue] == names


def test_who_gives_way_may_hold_the_prefix_that_was_found_for_the_next() -> None:
    """Equal prompts that fill their blocks are computed twice, in part; one of the two lets go of its copy."""
    engine, _, _ = small(max_num_seqs=2)
    prompt = list(range(3, 11))
    first = make_request("a", prompt, max_tokens=6, priority=5)
    second = make_request("b", prompt, max_tokens=6, priority=1)
    third = make_request("c", [*prompt, 50, 51, 52, 53], max_tokens=2, priority=0)
    deltas: list[RequestDelta] = []
    for request in (first, second, third):
        engine.add(request)
        deltas += engine.step().deltas
        engine.check_integrity()
    deltas += run(engine)
    assert ended(deltas) == ["c", "b", "a"]
    assert_answers(deltas, first, second, third)
