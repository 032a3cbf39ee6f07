"""A model all of whose layers see a window: blocks before it are free, and nobody misses them. The scripted runner reads
what attention would read, and fails if it is not there."""

from __future__ import annotations

import pytest

from octavo.engine.engine import Engine
from octavo.engine.plan import StepPlan
from tests.engine.test_engine import expected, ids, run, shape
from tests.engine.test_prefix_cache import ask, cached, prompt_of
from tests.engine.test_swap import Swapping
from tests.scripted import Script, ScriptedRunner, make_request, scripted_engine


def windowed(window: int = 20, **limits: object) -> tuple[Engine, ScriptedRunner, list[StepPlan]]:
    """An engine with blocks of 4 tokens, and the plans it makes."""
    plans: list[StepPlan] = []
    script = Script(**{"block_size": 4, "num_blocks": 16, "max_model_len": 400, "window": window, **limits})
    runner = ScriptedRunner(script=script, on_step=plans.append)
    return scripted_engine(runner), runner, plans


def test_a_long_answer_holds_its_window_and_no_more() -> None:
    engine, _, _ = windowed()
    engine.add(make_request("a", 10, max_tokens=300))
    held = []
    for _ in range(300):
        engine.step()
        held.append(engine.check_integrity()["held"])
    assert max(held) == 6  # five blocks of 4 hold the 19 tokens before one that begins a block
    assert not engine.has_work


def test_what_does_not_fit_at_once_runs_all_the_same() -> None:
    """A prompt of 50 blocks in a cache of 16, in chunks that leave room for the window."""
    engine, runner, plans = windowed()
    engine.add(make_request("a", 200, max_tokens=100))
    assert ids(run(engine), "a") == expected("a", 200, 100)
    assert runner.num_computed_tokens == 299
    assert [row.num_tokens for plan in plans for row in plan.scheduled][:6] == [41, 41, 41, 41, 36, 1]
    assert engine.stats().num_preemptions == 0


def test_a_cache_that_holds_the_window_and_a_block_is_enough() -> None:
    engine, _, plans = windowed(num_blocks=6)
    engine.add(make_request("a", 30, max_tokens=30))
    assert ids(run(engine), "a") == expected("a", 30, 30)
    assert shape(plans[0]) == [(0, 1, False)]


@pytest.mark.parametrize(("window", "chunked"), [(24, True), (20, False)])
def test_what_can_never_run_is_refused(window: int, chunked: bool) -> None:
    """A window that does not fit, and a prompt that has to be computed in one piece."""
    script = Script(block_size=4, num_blocks=6, max_model_len=400, window=window)
    engine = scripted_engine(ScriptedRunner(script=script), enable_chunked_prefill=chunked)
    engine.add(make_request("a", 30, max_tokens=30))
    (delta,) = run(engine)
    assert "KV cache blocks" in (delta.error or "")
    engine.add(make_request("b", 20, max_tokens=5))
    assert ids(run(engine), "b") == expected("b", 20, 5)


def test_many_fit_where_one_would() -> None:
    """Four requests of 100 tokens, of which each would take 25 blocks without a window."""
    engine, _, plans = windowed(num_blocks=26)
    for name in "abcd":
        engine.add(make_request(name, 20, max_tokens=80))
    deltas = run(engine)
    assert all(len(ids(deltas, name)) == 80 for name in "abcd")
    assert max(len(plan.scheduled) for plan in plans) == 4
    assert engine.stats().num_preemptions == 0


def test_a_prefix_is_found_by_its_last_blocks() -> None:
    """The first blocks of the prompt are overwritten while it is computed; the window before its end is there."""
    engine, _, plans = windowed(window=9, num_blocks=8)
    prompt = prompt_of(100)
    ask(engine, "a", prompt)
    engine.add(make_request("b", [*prompt, 7, 8, 9], 1))
    deltas = run(engine)
    assert cached(deltas) == 100
    assert shape(plans[-1]) == [(100, 3, True)]
    assert plans[-1].scheduled[0].new_block_ids[:23] == [-1] * 23


def test_a_prefix_whose_window_is_not_there_is_computed() -> None:
    engine, _, _ = windowed(window=9, num_blocks=8)
    ask(engine, "a", prompt_of(100))
    assert cached(ask(engine, "b", [*prompt_of(40), 7])) == 0, "its last blocks were overwritten"
    assert cached(ask(engine, "c", [*prompt_of(40), 8])) == 40


def test_sequences_of_one_request_share_and_leave_blocks_on_their_own() -> None:
    engine, _, _ = windowed(window=9, num_blocks=20)
    engine.add(make_request("a", 30, max_tokens=60, n=3, temperature=1.0))
    deltas = run(engine)
    assert all(ids(deltas, "a", index) == expected("a", 30, 60, index) for index in range(3))


def test_what_gave_way_comes_back_with_its_window_alone() -> None:
    """Another one overwrites its whole cache meanwhile: two of its blocks move out and in, and what is computed again is
    the block that was not full."""
    swapping = Swapping(window=9, num_blocks=5, max_model_len=200, scheduling_policy="priority")
    engine = swapping.engine
    engine.add(make_request("a", 40, max_tokens=80))
    for _ in range(60):
        engine.step()
    sequence = engine._scheduler.running.first
    computed = sequence.num_computed
    assert computed > 60
    engine.add(make_request("b", 17, max_tokens=2, priority=-1, salt="other"))
    deltas = run(engine)
    assert ids(deltas, "b") == expected("b", 17, 2)
    assert sequence.output_token_ids == expected("a", 40, 80)
    assert sequence.num_preemptions == 1
    assert sum(len(plan.before.ins) + len(plan.meanwhile.ins) for plan in swapping.plans) == 2
    assert swapping.runner.num_computed_tokens == 40 + 79 + 17 + 1 + computed % 4
    engine.close()
