"""n sequences of one prompt: it is computed once, its blocks are held once, and nobody notices."""

from __future__ import annotations

import pytest

from octavo.engine.engine import Engine
from octavo.engine.plan import StepPlan
from tests.engine.test_engine import expected, ids, run, shape
from tests.scripted import Script, ScriptedRunner, default_token, make_request, scripted_engine


def engine_of(caching: bool = True, **limits: object) -> tuple[Engine, ScriptedRunner, list[StepPlan]]:
    plans: list[StepPlan] = []
    script = Script(**{"block_size": 4, "num_blocks": 64, "max_model_len": 60, **limits})
    runner = ScriptedRunner(script=script, on_step=plans.append)
    return scripted_engine(runner, enable_prefix_caching=caching), runner, plans


def test_eight_of_a_thousand_tokens_take_one_prompt_and_eight_tails() -> None:
    engine, runner, _ = engine_of(block_size=16, num_blocks=80, max_model_len=1100)
    engine.add(make_request("a", 1000, 16, n=8, temperature=1.0))
    held = []
    while engine.has_work:
        assert len(engine.step().deltas) == 8, "all of them draw in every step, from the first"
        held.append(engine.check_integrity()["held"])
    whole = 1000 // 16
    assert held == [whole + 1] + [whole + 8] * 8 + [whole + 2 * 8] * 6 + [0]
    assert runner.num_computed_tokens == 1000 + 8 * 15


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("prompt", [1, 3, 4, 5, 8])
def test_all_draw_in_the_step_that_ends_the_prompt(prompt: int, caching: bool) -> None:
    engine, _, plans = engine_of(caching, max_num_batched_tokens=3)
    engine.add(make_request("a", prompt, 3, n=3, temperature=1.0))
    deltas = run(engine)
    *chunks, last = [shape(plan) for plan in plans[: -(-prompt // 3)]]
    assert [len(chunk) for chunk in chunks] == [1] * len(chunks)
    assert last == [(prompt - 1 - (prompt - 1) % 3, 1 + (prompt - 1) % 3, True), (prompt, 0, True), (prompt, 0, True)]
    for index in range(3):
        assert ids(deltas, "a", index) == expected("a", prompt, 3, index)


def test_the_last_one_writes_into_the_block_that_the_others_have_copied() -> None:
    engine, _, plans = engine_of()
    engine.add(make_request("a", 6, 2, n=3, temperature=1.0))
    engine.step()
    (partial,) = {plan.new_block_ids[-1] for plan in plans[0].scheduled}
    engine.step()
    assert [source for source, _ in plans[1].block_copies] == [partial, partial]
    assert [each.replaces_last for each in plans[1].scheduled] == [True, True, False]
    targets = [target for _, target in plans[1].block_copies]
    assert [each.new_block_ids for each in plans[1].scheduled] == [[target] for target in targets] + [[]]


def test_full_blocks_are_not_copied() -> None:
    engine, _, plans = engine_of()
    engine.add(make_request("a", 8, 4, n=3, temperature=1.0))
    run(engine)
    assert not any(plan.block_copies for plan in plans)


@pytest.mark.parametrize("caching", [True, False])
def test_those_that_find_no_row_come_later(caching: bool) -> None:
    engine, _, plans = engine_of(caching, max_num_seqs=3)
    engine.add(make_request("z", [5] * 9, 2))
    engine.add(make_request("a", 10, 6, n=6, temperature=1.0))
    engine.add(make_request("b", 10, 6))
    deltas = run(engine)
    for index in range(6):
        assert ids(deltas, "a", index) == expected("a", 10, 6, index)
    first = [next(i for i, d in enumerate(deltas) if (d.request_id, d.index) == ("a", index)) for index in range(6)]
    assert first == sorted(first)
    assert first[-1] < next(i for i, d in enumerate(deltas) if d.request_id == "b"), "nobody overtakes them"
    assert {d.num_cached_tokens for d in deltas if d.request_id == "a"} == {0}, "its own blocks are no hits"
    assert [len(plan.scheduled) for plan in plans][:3] == [3, 3, 3]


def test_rows_that_wait_for_a_prompt_are_not_given_to_others() -> None:
    engine, _, plans = engine_of(max_num_seqs=4, max_num_batched_tokens=8)
    engine.add(make_request("a", 20, 3, n=3, temperature=1.0))
    engine.add(make_request("b", 4, 3))
    engine.add(make_request("c", 4, 3))
    deltas = run(engine)
    assert [len(plan.scheduled) for plan in plans[:3]] == [1, 1, 4]
    assert [d.request_id for d in deltas[:4]] == ["a", "a", "a", "b"]


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("who", [0, 1, 2])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_any_of_them_may_be_aborted_at_any_time(caching: bool, who: int, after: int) -> None:
    engine, _, _ = engine_of(caching, max_num_batched_tokens=8)
    engine.add(make_request("a", 20, 5, n=3, temperature=1.0))
    deltas = [delta for _ in range(after) for delta in engine.step().deltas]
    engine.abort("a", who)
    engine.check_integrity()
    deltas += run(engine)
    for index in {0, 1, 2} - {who}:
        assert ids(deltas, "a", index) == expected("a", 20, 5, index)
    assert engine.stats().num_aborted == 1


def test_an_error_of_the_one_that_computes_the_prompt_is_its_own() -> None:
    engine, runner, _ = engine_of()
    runner.script.row_errors = {"a/0": 0}
    engine.add(make_request("a", 10, 4, n=3, temperature=1.0))
    deltas = run(engine)
    assert [d.index for d in deltas if d.finish_reason == "error"] == [0]
    for index in (1, 2):
        assert ids(deltas, "a", index) == expected("a", 10, 4, index)


def test_a_failed_step_takes_only_those_that_were_in_it() -> None:
    engine, _, _ = engine_of(max_num_batched_tokens=8, failing_steps=[1])
    engine.add(make_request("a", 20, 4, n=3, temperature=1.0))
    deltas = run(engine)
    assert [d.index for d in deltas if d.finish_reason == "error"] == [0]
    for index in (1, 2):
        assert ids(deltas, "a", index) == expected("a", 20, 4, index)


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("num_blocks", [6, 7, 9, 12])
def test_those_that_are_preempted_come_back(caching: bool, num_blocks: int) -> None:
    engine, _, _ = engine_of(caching, num_blocks=num_blocks, max_model_len=24, max_num_batched_tokens=6)
    engine.add(make_request("z", 6, 10))
    engine.add(make_request("a", 10, 12, n=4, temperature=1.0))
    deltas = run(engine)
    assert ids(deltas, "z") == expected("z", 6, 10)
    for index in range(4):
        assert ids(deltas, "a", index) == expected("a", 10, 12, index)
    assert engine.stats().num_preemptions > 0


def test_prompt_logprobs_come_with_the_first_alone() -> None:
    engine, runner, _ = engine_of()
    engine.add(make_request("a", 10, 3, n=3, temperature=1.0, prompt_logprobs=0, logprobs=0))
    deltas = run(engine)
    assert [(d.index, len(d.prompt_logprobs)) for d in deltas if d.prompt_logprobs] == [(0, 10)]
    assert all(len(d.logprobs or ()) == 1 for d in deltas)
    assert runner.num_computed_tokens == 10 + 3 * 2


def test_the_prompt_is_looked_up_once() -> None:
    engine, _, _ = engine_of()
    engine.add(make_request("a", 10, 3))
    run(engine)
    engine.add(make_request("b", 10, 3, n=3, temperature=1.0))
    first = [delta.num_cached_tokens for delta in engine.step().deltas]
    assert first == [8, 8, 8]
    assert (engine.stats().prefix_cache_queries, engine.stats().prefix_cache_hits) == (20, 8)


def test_300_requests_that_leave_after_the_first_chunk_leak_nothing() -> None:
    engine, _, _ = engine_of(num_blocks=20)
    for i in range(300):
        engine.add(make_request(f"r{i}", 1 + i % 30, 20, n=3, temperature=1.0))
        for _ in range(1 + i % 3):
            engine.step()
        engine.abort(f"r{i}")
        assert engine.check_integrity()["held"] == 0
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_free_blocks) == (0, 0, 20)
    golden = make_request("golden", 7, 5)
    engine.add(golden)
    assert ids(run(engine), "golden") == [default_token(golden, 0, position) for position in range(5)]
