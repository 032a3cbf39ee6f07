"""The engine's steps with a scripted model: order, chunks, preemption, ends, errors. Exact plans and exact ids."""

from __future__ import annotations

import gc
import logging
import sys

import pytest

from octavo.engine.engine import Engine
from octavo.engine.plan import StepPlan
from octavo.engine.request import RequestDelta
from octavo.errors import ConfigError, EngineDeadError
from tests.scripted import Script, ScriptedRunner, default_token, make_request, scripted_engine


def small(**limits: object) -> tuple[Engine, ScriptedRunner, list[StepPlan]]:
    """An engine with blocks of 4 tokens, and the plans it makes."""
    plans: list[StepPlan] = []
    script = Script(**{"block_size": 4, "num_blocks": 16, "max_model_len": 40, **limits})
    runner = ScriptedRunner(script=script, on_step=plans.append)
    return scripted_engine(runner), runner, plans


def run(engine: Engine, limit: int = 10_000) -> list[RequestDelta]:
    """Step until all is done; the bookkeeping is checked after each step."""
    deltas: list[RequestDelta] = []
    for _ in range(limit):
        if not engine.has_work:
            return deltas
        deltas += engine.step().deltas
        engine.check_integrity()
    raise AssertionError("the engine does not come to an end")


def ids(deltas: list[RequestDelta], request_id: str, index: int = 0) -> list[int]:
    return [token for d in deltas if (d.request_id, d.index) == (request_id, index) for token in d.token_ids]


def expected(request_id: str, prompt: int, count: int, index: int = 0) -> list[int]:
    request = make_request(request_id, prompt)
    return [default_token(request, index, position) for position in range(count)]


def shape(plan: StepPlan) -> list[tuple[int, int, bool]]:
    return [(row.start, row.num_tokens, row.sample) for row in plan.scheduled]


def test_one_request_runs_to_its_limit_and_gives_its_blocks_back() -> None:
    engine, _, plans = small()
    engine.add(make_request("a", 5, max_tokens=3))
    deltas = run(engine)
    assert ids(deltas, "a") == expected("a", 5, 3)
    assert [d.finish_reason for d in deltas] == [None, None, "length"]
    assert [shape(plan) for plan in plans] == [[(0, 5, True)], [(5, 1, True)], [(6, 1, True)]]
    assert engine.check_integrity() == {"free": 15, "cached": 1, "held": 0, "total": 16}


def test_blocks_are_taken_on_demand() -> None:
    engine, _, plans = small()
    engine.add(make_request("a", 4, max_tokens=6))
    run(engine)
    assert [len(plan.scheduled[0].new_block_ids) for plan in plans] == [1, 1, 0, 0, 0, 1]


def test_a_long_prompt_is_cut_and_the_running_ones_come_first() -> None:
    engine, _, plans = small(max_num_batched_tokens=8)
    engine.add(make_request("a", 3, max_tokens=9))
    engine.step()
    engine.add(make_request("b", 20, max_tokens=1))
    deltas = run(engine)
    assert [shape(plan) for plan in plans[1:5]] == [
        [(3, 1, True), (0, 7, False)],
        [(4, 1, True), (7, 7, False)],
        [(5, 1, True), (14, 6, True)],
        [(6, 1, True)],
    ]
    assert ids(deltas, "b") == expected("b", 20, 1)


def test_waiting_requests_are_served_in_order_of_arrival_within_the_limits() -> None:
    engine, _, plans = small(max_num_seqs=2)
    for name in "abcd":
        engine.add(make_request(name, 4, max_tokens=2))
    deltas = run(engine)
    finished = [d.request_id for d in deltas if d.finish_reason]
    assert finished == ["a", "b", "c", "d"]
    assert max(len(plan.scheduled) for plan in plans) == 2


def test_whole_prompts_wait_for_a_step_that_takes_them() -> None:
    runner = ScriptedRunner(script=Script(block_size=4, num_blocks=30, max_model_len=20, max_num_batched_tokens=20))
    plans: list[StepPlan] = []
    runner.on_step = plans.append
    engine = scripted_engine(runner, enable_chunked_prefill=False, enable_prefix_caching=False)
    for name in "abc":
        engine.add(make_request(name, 9, max_tokens=2))
    run(engine)
    assert [shape(plan) for plan in plans] == [
        [(0, 9, True), (0, 9, True)],
        [(9, 1, True), (9, 1, True), (0, 9, True)],
        [(9, 1, True)],
    ]


def test_whole_prompts_need_a_budget_as_long_as_a_prompt_may_be() -> None:
    runner = ScriptedRunner(script=Script(max_model_len=512, max_num_batched_tokens=511))
    with pytest.raises(ConfigError, match=r"--max-num-batched-tokens \(511\) is smaller than --max-model-len \(512\)"):
        scripted_engine(runner, enable_chunked_prefill=False)


def test_the_newest_is_preempted_and_gives_the_same_tokens_later() -> None:
    engine, _, plans = small(num_blocks=6, max_model_len=24)
    engine.add(make_request("a", 8, max_tokens=12))
    engine.add(make_request("b", 8, max_tokens=12))
    deltas = run(engine)
    for name in "ab":
        assert ids(deltas, name) == expected(name, 8, 12)
    last = {d.request_id: d for d in deltas if d.finish_reason}
    assert last["a"].num_preemptions == 0
    assert last["b"].num_preemptions > 0
    resumed = next(new for plan in plans[1:] for new in plan.new_rows)
    assert resumed.output_token_ids == expected("b", 8, len(resumed.output_token_ids))
    assert engine.stats().num_preemptions == last["b"].num_preemptions


def test_nobody_is_admitted_in_a_step_that_is_short_of_blocks() -> None:
    engine, _, plans = small(num_blocks=5, max_model_len=20)
    engine.add(make_request("a", 4, max_tokens=15))
    engine.add(make_request("b", 4, max_tokens=15))
    engine.add(make_request("c", 1, max_tokens=2))
    preemptions = 0
    while engine.has_work:
        engine.step()
        now = engine.stats().num_preemptions
        if now > preemptions:
            assert not plans[-1].new_rows
        preemptions = now
    assert preemptions > 0


def test_nobody_overtakes_one_that_waits_for_blocks() -> None:
    engine, _, plans = small(block_size=1, num_blocks=153, max_model_len=154, max_num_batched_tokens=16)
    engine.add(make_request("a", 1, max_tokens=12))
    engine.step()
    engine.add(make_request("b", 150, max_tokens=1))
    engine.add(make_request("c", 1, max_tokens=1))
    deltas = run(engine)
    assert [shape(plan) for plan in plans[10:12]] == [[(10, 1, True)], [(11, 1, True)]], "b waits until a has ended"
    assert [d.request_id for d in deltas if d.finish_reason] == ["a", "b", "c"]
    assert engine.stats().num_preemptions == 0


def test_two_that_together_exceed_the_pool_both_finish() -> None:
    engine, _, _ = small(num_blocks=3, max_model_len=13)
    engine.add(make_request("a", 5, max_tokens=8))
    engine.add(make_request("b", 6, max_tokens=7))
    deltas = run(engine, limit=60)
    assert ids(deltas, "a") == expected("a", 5, 8)
    assert ids(deltas, "b") == expected("b", 6, 7)


def test_the_oldest_is_part_of_every_step() -> None:
    engine, runner, _ = small(num_blocks=4, max_model_len=17)
    left = [f"r{i}" for i in range(12)]
    runner.on_step = lambda plan: firsts.append(runner.rows[plan.scheduled[0].row].request_name)
    firsts: list[str] = []
    for i, name in enumerate(left):
        engine.add(make_request(name, 1 + i % 5, max_tokens=11))
    while engine.has_work:
        ended = {delta.request_id for delta in engine.step().deltas if delta.finish_reason}
        assert firsts[-1] == left[0]
        left = [name for name in left if name not in ended]
    assert engine.stats().num_preemptions > 0


def test_a_request_that_can_never_fit_is_refused_with_the_arithmetic() -> None:
    engine, _, _ = small(num_blocks=3)
    engine.add(make_request("a", 6, max_tokens=8, n=2, temperature=1.0))
    engine.add(make_request("b", 6, max_tokens=7))
    deltas = run(engine)
    refused = [d for d in deltas if d.request_id == "a"]
    assert [(d.index, d.finish_reason) for d in refused] == [(0, "error"), (1, "error")]
    assert refused[0].error is not None
    assert "needs up to 4 KV cache blocks (6 prompt tokens and up to 8 output tokens, 4 tokens a block)" in refused[0].error
    assert "Request at most 7 output tokens" in refused[0].error
    assert len(ids(deltas, "b")) == 7


@pytest.mark.parametrize(("prompt", "max_model_len"), [(0, 40), (40, 40), (41, 40)])
def test_a_prompt_that_no_client_should_let_through_is_refused(prompt: int, max_model_len: int) -> None:
    engine, _, _ = small(max_model_len=max_model_len)
    engine.add(make_request("a", prompt))
    assert [d.finish_reason for d in run(engine)] == ["error"]


def test_the_context_ends_a_sequence() -> None:
    engine, _, _ = small(max_model_len=10)
    engine.add(make_request("a", 6, max_tokens=None))
    deltas = run(engine)
    assert ids(deltas, "a") == expected("a", 6, 4)
    assert deltas[-1].finish_reason == "length"


def test_eos_and_stop_tokens_end_a_sequence() -> None:
    engine, runner, _ = small()
    runner.outputs |= {"eos": [7, 8, 2, 9], "stop": [7, 8, 9], "ignored": [2, 8, 9]}
    engine.add(make_request("eos", eos=(1, 2)))
    engine.add(make_request("stop", stop_token_ids=[8]))
    engine.add(make_request("ignored", max_tokens=3, eos=(2,), ignore_eos=True))
    last = {d.request_id: d for d in run(engine) if d.finish_reason}
    assert (last["eos"].finish_reason, last["eos"].stop_reason, last["eos"].token_ids) == ("stop", 2, [2])
    assert (last["stop"].finish_reason, last["stop"].stop_reason) == ("stop", 8)
    assert last["ignored"].finish_reason == "length"


def test_n_makes_as_many_sequences() -> None:
    engine, _, _ = small()
    engine.add(make_request("a", 5, max_tokens=6, n=3, temperature=1.0))
    deltas = run(engine)
    for index in range(3):
        assert ids(deltas, "a", index) == expected("a", 5, 6, index)
    assert len({tuple(ids(deltas, "a", index)) for index in range(3)}) == 3


def test_logprobs_travel_with_their_tokens() -> None:
    engine, _, _ = small()
    engine.add(make_request("a", 5, max_tokens=3, logprobs=0))
    assert [d.logprobs[0].logprobs for d in run(engine) if d.logprobs] == [[-1.0], [-2.0], [-3.0]]


def test_prompt_logprobs_are_whole_whatever_the_chunks() -> None:
    engine, _, _ = small(max_num_batched_tokens=4, num_blocks=12)
    request = make_request("b", 21, max_tokens=3, prompt_logprobs=0, n=2, temperature=1.0)
    engine.add(request)
    deltas = [d for d in run(engine) if d.prompt_logprobs]
    assert [(d.index, len(d.token_ids)) for d in deltas] == [(0, 1)]
    entries = deltas[0].prompt_logprobs
    assert entries is not None
    assert [e and e.logprobs[0] for e in entries] == [None, *(-float(p) for p in range(1, 21))]


def test_prompt_logprobs_are_not_doubled_by_a_preemption_between_chunks() -> None:
    engine, _, _ = small(num_blocks=9, max_model_len=36, max_num_batched_tokens=5)
    engine.add(make_request("a", 4, max_tokens=30))
    engine.step()
    engine.add(make_request("b", 24, max_tokens=2, prompt_logprobs=0))
    deltas = run(engine)
    entries = next(d.prompt_logprobs for d in deltas if d.prompt_logprobs)
    assert [e and e.logprobs[0] for e in entries] == [None, *(-float(p) for p in range(1, 24))]


@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_abort_frees_at_once_wherever_the_request_is(after: int) -> None:
    engine, _, _ = small(max_num_seqs=1, max_num_batched_tokens=4)
    engine.add(make_request("a", 9, max_tokens=5))
    engine.add(make_request("b", 4, max_tokens=1))
    for _ in range(after):
        engine.step()
    engine.abort("a")
    assert engine.check_integrity()["held"] == 0
    deltas = run(engine)
    assert ids(deltas, "b") == expected("b", 4, 1)
    assert not ids(deltas, "a")
    engine.abort("a")
    engine.abort("never seen")
    assert engine.stats().num_aborted == 1


def test_rows_are_given_back_by_steps_that_compute_nothing() -> None:
    engine, runner, _ = small(max_num_seqs=1)
    engine.add(make_request("a"))
    engine.step()
    engine.abort("a")
    engine.step()
    engine.add(make_request("b"))
    assert [d.finish_reason for d in run(engine)] == [None, None, None, "length"]
    assert runner.num_steps == 5


def test_one_of_n_is_aborted_alone() -> None:
    engine, _, _ = small()
    engine.add(make_request("a", 4, max_tokens=5, n=3, temperature=1.0))
    engine.step()
    engine.abort("a", 1, "stop")
    deltas = run(engine)
    assert [len(ids(deltas, "a", index)) for index in range(3)] == [4, 0, 4]
    stats = engine.stats()
    assert (stats.num_received, stats.num_finished, stats.num_aborted) == (3, 3, 0)


def test_an_error_in_one_row_ends_that_sequence_only() -> None:
    engine, runner, _ = small()
    runner.script.row_errors = {"b/1": 2}
    engine.add(make_request("a", 5, max_tokens=6))
    engine.add(make_request("b", 5, max_tokens=6, n=2, temperature=1.0))
    deltas = run(engine)
    assert ids(deltas, "a") == expected("a", 5, 6)
    assert ids(deltas, "b", 0) == expected("b", 5, 6)
    assert ids(deltas, "b", 1) == expected("b", 5, 2, 1)
    failed = [d for d in deltas if d.finish_reason == "error"]
    assert [(d.request_id, d.index, d.error) for d in failed] == [("b", 1, "row error by script at output position 2")]


def test_a_failed_step_ends_its_sequences_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    engine, runner, _ = small(max_num_seqs=2, failing_steps=[1])
    for name in "abc":
        engine.add(make_request(name, 5, max_tokens=3))
    with caplog.at_level(logging.ERROR):
        deltas = run(engine)
    assert {d.request_id for d in deltas if d.finish_reason == "error"} == {"a", "b"}
    assert ids(deltas, "c") == expected("c", 5, 3)
    assert "step 1 fails by script" in caplog.text
    assert not set(runner.rows) - {0, 1}
    assert engine.stats().num_failed == 2


def test_rows_that_a_failed_step_did_not_free_are_freed_by_the_next() -> None:
    engine, _, _ = small(max_num_seqs=2, failing_steps=[1])
    engine.add(make_request("a", 5, max_tokens=1))
    engine.add(make_request("b", 5, max_tokens=9))
    engine.step()  # "a" ends
    engine.step()  # was to free its row
    engine.add(make_request("c", 5, max_tokens=2))
    engine.add(make_request("d", 5, max_tokens=2))
    assert [d.finish_reason for d in run(engine)] == [None, None, "length", "length"]


def test_several_failed_steps_in_a_row_are_the_end() -> None:
    engine, _, _ = small(max_num_seqs=1, failing_steps=[1, 3, 4, 5])
    for name in "abcdef":
        engine.add(make_request(name, 5, max_tokens=2))
    with pytest.raises(
        EngineDeadError, match="3 steps in a row failed, the last with ArithmeticError: step 5 fails by script"
    ):
        run(engine)


def test_an_interrupt_goes_through_and_leaves_the_engine_usable() -> None:
    engine, runner, _ = small()

    def interrupt(plan: StepPlan) -> None:
        runner.on_step = None
        raise KeyboardInterrupt

    runner.on_step = interrupt
    engine.add(make_request("a"))
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    engine.check_integrity()
    engine.add(make_request("b", 5, max_tokens=2))
    deltas = run(engine)
    assert [(d.request_id, d.finish_reason) for d in deltas] == [("a", "error"), ("b", None), ("b", "length")]


def test_an_id_in_use_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    engine, _, _ = small()
    engine.add(make_request("a", 5, max_tokens=2))
    engine.add(make_request("a", 6, max_tokens=2))
    assert ids(run(engine), "a") == expected("a", 5, 2)
    assert engine.stats().num_received == 1
    assert "running already" in caplog.text
    engine.add(make_request("a", 6, max_tokens=2))
    assert ids(run(engine), "a") == expected("a", 6, 2)


def count_calls(engine: Engine) -> int:
    """How many Python functions one step calls."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    gc.disable()  # what others left to be collected is no part of the step
    sys.setprofile(count)
    try:
        engine.step()
    finally:
        sys.setprofile(None)
        gc.enable()
    return calls


def test_a_step_costs_the_same_however_many_wait_or_have_finished() -> None:
    costs = []
    for waiting, finished in [(5, 5), (2000, 5), (5, 500)]:
        engine, _, _ = small(max_num_seqs=2)
        for i in range(finished):
            engine.add(make_request(f"f{i}", 4, max_tokens=1))
        run(engine)
        for i in range(waiting):
            engine.add(make_request(f"w{i}", 4, max_tokens=9))
        engine.step()
        costs.append(count_calls(engine))
    assert costs == [costs[0]] * 3


def test_first_deltas_say_when_the_request_was_scheduled() -> None:
    engine, _, _ = small()
    request = make_request("a", 5, max_tokens=2)
    engine.add(request)
    first, second = run(engine)
    assert first.scheduled_time >= request.arrival_time
    assert second.scheduled_time == 0.0


def test_stats_add_up_after_every_step() -> None:
    engine, runner, _ = small(num_blocks=6, max_model_len=24, failing_steps=[5])
    runner.script.row_errors = {"r2": 1}
    for i in range(8):
        engine.add(make_request(f"r{i}", 1 + 3 * i, max_tokens=4, n=1 + i % 2, temperature=1.0))
    engine.abort("r4", 0)
    engine.abort("r3", reason="stop")
    while engine.has_work:
        stats = engine.step().stats
        assert stats is not None
        parts = stats.num_finished + stats.num_aborted + stats.num_failed + stats.num_running + stats.num_waiting
        assert parts == stats.num_received == 12
    assert stats.num_aborted == 1
    assert stats.num_failed > 0
