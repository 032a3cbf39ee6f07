"""What was computed before is found again: by whom, how much of it, and never anything else. The scripted runner reads every
block that a sequence holds, and fails if it is not what the sequence's own tokens would have written."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from hashlib import sha256

import pytest

from octavo.engine.engine import Engine
from octavo.engine.plan import StepPlan
from octavo.engine.request import RequestDelta
from octavo.sampling.sampler import MASKED
from tests.engine.test_engine import count_calls, ids, run, shape
from tests.scripted import PlanError, Script, ScriptedRunner, default_token, make_request, scripted_engine


def engine_of(caching: bool = True, **limits: object) -> tuple[Engine, ScriptedRunner, list[StepPlan]]:
    """An engine with blocks of 16 tokens, and the plans it makes."""
    plans: list[StepPlan] = []
    script = Script(**{"block_size": 16, "num_blocks": 64, "max_model_len": 512, **limits})
    runner = ScriptedRunner(script=script, on_step=plans.append)
    return scripted_engine(runner, enable_prefix_caching=caching), runner, plans


def ask(engine: Engine, name: str, prompt: list[int], max_tokens: int = 1, **more: object) -> list[RequestDelta]:
    """Run one request to its end."""
    engine.add(make_request(name, prompt, max_tokens, **more))  # type: ignore[arg-type]
    return run(engine)


def cached(deltas: list[RequestDelta]) -> int:
    return deltas[0].num_cached_tokens


def prompt_of(length: int, label: int = 3) -> list[int]:
    return [label + i % 900 for i in range(length)]


def test_a_prompt_that_came_before_is_not_computed_again() -> None:
    engine, _, plans = engine_of()
    assert cached(ask(engine, "a", prompt_of(40))) == 0
    assert cached(ask(engine, "b", prompt_of(40))) == 32
    assert cached(ask(engine, "c", [*prompt_of(20), *prompt_of(30, 50)])) == 16
    assert [shape(plan) for plan in plans] == [[(0, 40, True)], [(32, 8, True)], [(16, 34, True)]]


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 48, 64])
def test_the_last_token_is_always_computed(length: int) -> None:
    engine, _, plans = engine_of()
    ask(engine, "a", prompt_of(length))
    assert cached(ask(engine, "b", prompt_of(length))) == (length - 1) // 16 * 16
    assert plans[-1].scheduled[0].num_tokens == length - (length - 1) // 16 * 16


def test_nobody_finds_the_blocks_of_one_that_failed() -> None:
    engine, runner, _ = engine_of()
    ask(engine, "a", prompt_of(40))
    runner.script.row_errors = {"b": 0}
    assert ask(engine, "b", prompt_of(60))[0].finish_reason == "error"  # its own blocks, and those that it found
    assert engine.check_integrity()["cached"] == 0
    assert cached(ask(engine, "c", prompt_of(60))) == 0
    assert cached(ask(engine, "d", prompt_of(60))) == 48


def test_one_that_no_token_is_left_for_leaves_its_blocks() -> None:
    engine, runner, _ = engine_of()
    runner.script.row_errors, runner.script.row_error = {"a": 0}, MASKED
    assert ask(engine, "a", prompt_of(60))[0].is_refusal
    assert cached(ask(engine, "b", prompt_of(60))) == 48


def test_requests_in_one_step_share_what_the_step_computes() -> None:
    engine, runner, plans = engine_of()
    for name in "abc":
        engine.add(make_request(name, [*prompt_of(48), 100 + ord(name)], 3))
    deltas = run(engine)
    assert [shape(plan) for plan in plans] == [
        [(0, 49, True), (48, 1, True), (48, 1, True)],
        [(49, 1, True)] * 3,
        [(50, 1, True)] * 3,
    ]
    assert {d.request_id: d.num_cached_tokens for d in reversed(deltas)} == {"a": 0, "b": 48, "c": 48}
    assert runner.num_computed_tokens == 51 + 2 * 3


def test_what_runs_is_found_as_soon_as_its_blocks_are_full() -> None:
    engine, _, _ = engine_of(max_num_batched_tokens=40)
    engine.add(make_request("a", prompt_of(100), 50))
    engine.step()
    assert cached_at_once(engine, "b", prompt_of(34)) == 32
    engine.step()
    assert cached_at_once(engine, "c", prompt_of(90)) == 80
    for _ in range(20):
        engine.step()
    answer = [default_token(make_request("a", prompt_of(100)), 0, position) for position in range(20)]
    assert cached_at_once(engine, "d", [*prompt_of(100), *answer]) == 112


def cached_at_once(engine: Engine, name: str, prompt: list[int]) -> int:
    """Of a request while others run; it ends with its first token."""
    engine.add(make_request(name, prompt, 1))
    while True:
        for delta in engine.step().deltas:
            if delta.request_id == name:
                return delta.num_cached_tokens


def test_the_next_turn_of_a_conversation_finds_the_answer_as_well() -> None:
    engine, _, _ = engine_of()
    answer = ids(ask(engine, "a", prompt_of(20), max_tokens=30), "a")
    turn = [*prompt_of(20), *answer, *prompt_of(10, 70)]
    assert cached(ask(engine, "b", turn)) == 48


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_blocks_of_an_aborted_request_are_found_at_once(steps: int) -> None:
    engine, _, _ = engine_of(max_num_batched_tokens=40)
    engine.add(make_request("a", prompt_of(100), 9))
    for _ in range(steps):
        engine.step()
    engine.abort("a")
    assert engine.check_integrity()["cached"] == min(100, 40 * steps) // 16
    assert cached(ask(engine, "b", prompt_of(101))) == min(100, 40 * steps) // 16 * 16


def test_it_can_be_turned_off() -> None:
    engine, runner, _ = engine_of(caching=False)
    assert [cached(ask(engine, name, prompt_of(40))) for name in "aab"] == [0, 0, 0]
    assert runner.num_computed_tokens == 120
    assert engine.check_integrity() == {"free": 64, "cached": 0, "held": 0, "total": 64}
    assert (engine.stats().prefix_cache_queries, engine.stats().prefix_cache_hits) == (0, 0)


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize("length", [31, 32, 33, 64])
@pytest.mark.parametrize("first_plain", [True, False])
def test_c107_prompt_logprobs_are_whole_before_and_after_a_hit(block_size: int, length: int, first_plain: bool) -> None:
    engine, _, _ = engine_of(block_size=block_size)
    for scored in [False, True, True, False] if first_plain else [True, False, True]:
        more = {"prompt_logprobs": 1} if scored else {}
        deltas = ask(engine, f"{scored}", prompt_of(length), 2, **more)
        entries = deltas[0].prompt_logprobs
        assert (entries is not None) == scored
        if entries is not None:
            assert [entry and entry.logprobs[0] for entry in entries] == [None, *(-float(p) for p in range(1, length))]
            assert cached(deltas) == 0


def test_c115_prompt_logprobs_in_chunks_with_a_preemption_between_them() -> None:
    engine, _, _ = engine_of(num_blocks=9, max_model_len=144, max_num_batched_tokens=17)
    engine.add(make_request("a", prompt_of(30, 400), 80))
    for _ in range(3):
        engine.step()
    engine.add(make_request("b", prompt_of(100), 2, prompt_logprobs=0))
    deltas = run(engine)
    assert engine.stats().num_preemptions > 0
    entries = next(d.prompt_logprobs for d in deltas if d.prompt_logprobs)
    assert [entry and entry.logprobs[0] for entry in entries] == [None, *(-float(p) for p in range(1, 100))]


def test_c109_salts_share_nothing() -> None:
    engine, _, _ = engine_of()
    salts = [None, "a", "b"]
    assert [cached(ask(engine, f"{salt}", prompt_of(40), salt=salt)) for salt in salts] == [0, 0, 0]
    assert [cached(ask(engine, f"{salt}", prompt_of(40), salt=salt)) for salt in salts] == [32, 32, 32]


def test_c109_a_weak_hash_would_be_noticed_and_the_default_is_not_weak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are not compared in full, so all rests on the hash. Under one of two bits requests get each other's blocks, and
    the scripted runner sees it."""

    def collide() -> None:
        engine, _, _ = engine_of()
        for i in range(20):
            ask(engine, f"r{i}", prompt_of(40, 3 + i))

    collide()

    class Weak:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def digest(self) -> bytes:
            return bytes([sum(sha256(self.data).digest()) % 4]) * 32

    monkeypatch.setattr("octavo.cache.prefix_index.sha256", Weak)
    with pytest.raises(PlanError, match="the cache holds the row's tokens"):
        collide()


def test_c110_shared_prefixes_in_any_order_with_half_of_them_cancelled() -> None:
    generator = random.Random(5)
    base = [generator.randrange(3, 900) for _ in range(120)]
    prompts = {f"r{i}": [*base[: generator.randrange(100)], *prompt_of(generator.randrange(1, 30), i)] for i in range(50)}
    outputs = {}
    for caching in (True, False):
        engine, _, _ = engine_of(caching, num_blocks=14, max_num_batched_tokens=64, max_num_seqs=6)
        deltas: list[RequestDelta] = []
        for i, (name, prompt) in enumerate(prompts.items()):
            engine.add(make_request(name, prompt, 12))
            for _ in range(3):
                deltas += engine.step().deltas
                engine.check_integrity()
            if i % 2:
                engine.abort(name)
        deltas += run(engine)
        outputs[caching] = {name: ids(deltas, name) for i, name in enumerate(prompts) if not i % 2}
        assert all(len(output) == 12 for output in outputs[caching].values())
        if caching:
            assert engine.stats().prefix_cache_hits > 500
    assert outputs[True] == outputs[False]


def test_c112_what_is_counted_is_what_admission_found() -> None:
    engine, _, _ = engine_of(num_blocks=8, max_model_len=128)
    assert cached(ask(engine, "a", prompt_of(40), 2)) == 0
    engine.add(make_request("old", prompt_of(30, 300), 90))
    engine.step()
    engine.add(make_request("b", prompt_of(40), 40))
    deltas = [delta for delta in run(engine) if delta.request_id == "b"]
    assert deltas[-1].num_preemptions > 0
    assert [delta.num_cached_tokens for delta in deltas] == [32, *[0] * 39]
    assert (engine.stats().prefix_cache_queries, engine.stats().prefix_cache_hits) == (40 + 30 + 40, 32)


def test_a_preempted_sequence_takes_back_what_is_left_of_it() -> None:
    engine, runner, plans = engine_of(num_blocks=6, max_model_len=96)
    engine.add(make_request("a", prompt_of(20, 300), 60))
    engine.add(make_request("b", prompt_of(30), 20))
    run(engine)
    assert engine.stats().num_preemptions > 0
    resumed = next(plan for plan in plans[1:] if plan.new_rows)
    (row,) = [each for each in resumed.scheduled if each.row == resumed.new_rows[0].row]
    assert row.start > 0
    assert runner.num_computed_tokens < 20 + 30 + 80 + 32


def test_a_failed_step_leaves_nothing_to_be_found() -> None:
    engine, _, _ = engine_of(failing_steps=[1])
    ask(engine, "a", prompt_of(40))
    deltas = ask(engine, "b", prompt_of(80, 200))
    assert deltas[-1].finish_reason == "error"
    assert engine.check_integrity() == {"free": 64, "cached": 0, "held": 0, "total": 64}
    assert cached(ask(engine, "c", prompt_of(40))) == cached(ask(engine, "d", prompt_of(80, 200))) == 0


def test_a_reset_forgets_what_was_computed_before() -> None:
    engine, _, _ = engine_of()
    ask(engine, "a", prompt_of(40))
    engine.add(make_request("long", prompt_of(80), 60))
    engine.step()
    assert engine.reset_prefix_cache()
    assert engine.check_integrity()["cached"] == 0
    assert cached_at_once(engine, "b", prompt_of(41)) == 0
    assert cached_at_once(engine, "c", prompt_of(41)) == 32
    for _ in range(40):
        engine.step()
    engine.abort("long")
    assert cached_at_once(engine, "d", prompt_of(82)) == 32, "what was begun before the reset is not found after it either"


def test_a_reset_can_start_running_requests_again() -> None:
    engine, runner, _ = engine_of()
    engine.add(make_request("a", prompt_of(40), 5))
    engine.step()
    assert engine.reset_prefix_cache(True)
    assert engine.check_integrity() == {"free": 64, "cached": 0, "held": 0, "total": 64}
    deltas = run(engine)
    assert len(ids(deltas, "a")) == 4
    assert runner.num_computed_tokens == 40 + 41 + 3


def test_a_reset_gives_the_memory_back_where_nobody_holds_a_block() -> None:
    engine, runner, _ = engine_of()
    engine.add(make_request("a", prompt_of(40), 5))
    engine.step()
    engine.reset_prefix_cache()
    assert runner.num_releases == 0
    run(engine)
    engine.reset_prefix_cache()
    assert runner.num_releases == 1
    assert len(ids(ask(engine, "b", prompt_of(40)), "b")) == 1
    engine.add(make_request("c", prompt_of(40), 5))
    engine.step()
    engine.reset_prefix_cache(True)
    assert runner.num_releases == 2
    assert len(ids(run(engine), "c")) == 4


def test_500_starts_and_ends_at_random_times_leave_nothing_behind() -> None:
    generator = random.Random(9)
    engine, runner, _ = engine_of(num_blocks=12, max_model_len=96, max_num_batched_tokens=40)
    runner.on_step = None  # keeps the plans
    golden = make_request("golden", prompt_of(37), 8)

    def cycles(first: int, last: int) -> None:
        for i in range(first, last):
            prompt = [*prompt_of(generator.randrange(60)), *prompt_of(1 + generator.randrange(20), generator.randrange(40))]
            engine.add(make_request(f"r{i}", prompt, 15, n=1 + generator.randrange(3), temperature=1.0))
            for _ in range(generator.randrange(4)):
                engine.step()
            who, index = f"r{i - generator.randrange(4)}", generator.choice([None, None, 0, 1])
            engine.abort(who, index, generator.choice(["abort", "stop"]))
            engine.check_integrity()
        run(engine)

    cycles(0, 200)
    tracemalloc.start()
    try:
        cycles(200, 250)
        before = tracemalloc.take_snapshot()
        cycles(250, 500)
        grown = sum(each.size_diff for each in tracemalloc.take_snapshot().compare_to(before, "filename"))
    finally:
        tracemalloc.stop()
    assert grown < 200_000
    assert engine.check_integrity()["held"] == 0
    engine.add(golden)
    assert ids(run(engine), "golden") == [default_token(golden, 0, position) for position in range(8)]


def fill_the_index(engine: Engine) -> None:
    for i in range(engine.stats().num_blocks // 4):
        ask(engine, f"f{i}", prompt_of(64, 3 + i))


@pytest.mark.parametrize("prepare", [lambda engine: None, fill_the_index])
def test_a_step_costs_the_same_whatever_the_cache_holds(prepare: Callable[[Engine], None]) -> None:
    costs = []
    for num_blocks in (64, 512):
        engine, _, _ = engine_of(num_blocks=num_blocks)
        prepare(engine)
        engine.add(make_request("a", prompt_of(40, 700), 30))
        calls = [count_calls(engine) for _ in range(30)]
        assert max(calls[1:]) - min(calls[1:]) < 90, "a step that fills a block hashes it, and no more than it"
        costs.append(calls)
    assert costs[0] == costs[1]
