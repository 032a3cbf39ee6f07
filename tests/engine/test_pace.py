"""`--max-itl-ms` and `--long-prefill-token-threshold`: how prompts are cut. Time is what the tests say it is."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from octavo.engine.engine import Engine
from octavo.engine.pace import LEAST_TOKENS, Pace
from octavo.engine.plan import ScheduledRow, StepPlan
from octavo.engine.request import Request
from octavo.engine.sequence import Sequence
from octavo.engine.step_cost import StepCost
from octavo.kernels.cpu.ops import CpuOps
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams
from octavo.weights.checkpoint import Weights
from tests.models.tiny import tiny_checkpoint, tiny_config
from tests.scripted import Script, ScriptedRunner, default_token, make_request, scripted_engine

BASE, PER_TOKEN, PER_KEY = 0.010, 0.0004, 1e-7


def law(plan: StepPlan, slower: float = 1.0) -> float:
    """Seconds that a step takes: each token attends to all before it and to itself."""
    rows = [row for row in plan.scheduled if row.num_tokens > 1]
    keys = sum(row.num_tokens * row.start + row.num_tokens * (row.num_tokens + 1) // 2 for row in rows)
    return slower * (BASE + PER_TOKEN * sum(row.num_tokens for row in rows) + PER_KEY * keys)


def plan(*chunks: tuple[int, int]) -> StepPlan:
    """A step with these (start, tokens), and a row that draws."""
    rows = [ScheduledRow(row, start, count, [], False) for row, (start, count) in enumerate(chunks, 1)]
    return StepPlan(scheduled=[ScheduledRow(0, 7, 1, [], True), *rows])


def test_what_is_measured_is_expected_at_the_same_place_and_near_it() -> None:
    cost = StepCost()
    assert cost.chunk(0, 100) == 0.0
    cost.observe([], BASE)
    for start in (0, 3000):
        cost.observe([(start, 64)], law(plan((start, 64))))
    assert cost.base.value == BASE
    for start, near in ((0, 0), (0, 900), (3000, 3000), (3000, 2900), (3000, 7000)):
        assert cost.chunk(near, 64) == pytest.approx(law(plan((start, 64))) - BASE)
        assert cost.chunk(near, 32) == pytest.approx(cost.chunk(near, 64) / 2)


def test_several_chunks_share_what_their_step_took() -> None:
    cost = StepCost()
    cost.observe([(0, 30), (5000, 10)], 0.040)
    assert cost.per_token(0) == cost.per_token(5000) == pytest.approx(0.001)
    for _ in range(30):
        cost.observe([(0, 100)], 0.050)
        cost.observe([(5000, 100)], 0.150)
    cost.observe([(0, 40), (5000, 40)], 0.080)
    assert (cost.per_token(0), cost.per_token(5000)) == pytest.approx((0.0005, 0.0015), rel=1e-2)


@pytest.mark.parametrize("slower", [0.3, 5.0])
def test_what_has_changed_is_learned_anew(slower: float) -> None:
    cost = StepCost()
    for factor in (1.0, slower):
        for _ in range(25):
            cost.observe([], factor * BASE)
            cost.observe([(50, 64)], law(plan((50, 64)), factor))
    assert cost.base.value == pytest.approx(slower * BASE, rel=1e-2)
    assert cost.chunk(50, 64) == pytest.approx(slower * (law(plan((50, 64))) - BASE), rel=1e-2)


def test_an_accident_is_not_taken_for_the_rule() -> None:
    cost = StepCost()
    for seconds in (*[0.02] * 10, 5.0):
        cost.observe([(0, 20)], seconds)
    assert 0.001 < cost.per_token(0) < 0.0014
    for _ in range(5):
        cost.observe([(0, 2)], 0.1)  # so few tokens say little
    assert cost.per_token(0) < 0.002


def test_the_first_steps_may_be_slow() -> None:
    cost = StepCost()
    for seconds in (3.0, *[0.02] * 12):
        cost.observe([(0, 20)], seconds)
    assert cost.per_token(0) < 0.004


def test_no_cost_is_negative() -> None:
    cost = StepCost()
    cost.observe([], 0.05)
    for _ in range(3):
        cost.observe([(0, 20)], 0.01)
    assert cost.per_token(0) == 0.0


def measured(max_itl: float, *chunks: tuple[int, int]) -> Pace:
    """A pace that has seen a step without prompts, then these."""
    pace = Pace(max_itl)
    for each in (plan(), *map(plan, chunks)):
        pace.observe(each, law(each))
    return pace


def writing() -> list[Sequence]:
    """Running sequences of which one writes."""
    engine = scripted_engine(ScriptedRunner())
    engine.add(make_request("a", 4, max_tokens=9))
    engine.step()
    return list(engine._scheduler.running)


def test_a_chunk_is_the_longest_that_fits() -> None:
    pace = measured(0.1, (0, 128), (2000, 128))
    for start in (0, 2000):
        pace.begin(writing())
        count = pace.chunk(start, 6000)
        assert law(plan((start, count - 2))) <= 0.09 < law(plan((start, count + 8)))
    pace.begin(writing())
    assert pace.chunk(0, 20) == 20


def test_a_step_that_computes_nothing_teaches_nothing() -> None:
    pace = measured(0.1, (0, 128))
    base = pace.cost.base.value
    pace.observe(StepPlan(block_copies=[(1, 2)]), 5.0)
    assert pace.cost.base.value == base == BASE


def test_where_nobody_writes_prompts_are_not_cut() -> None:
    pace = measured(0.1, (0, 100))
    pace.begin([])
    assert [pace.chunk(0, 2048), pace.chunk(0, 2048)] == [2048, 2048]


def test_several_prompts_share_the_time() -> None:
    pace = measured(0.1, (0, 128), (2000, 128))
    pace.begin(writing())
    first, second, third = pace.chunk(2000, 60), pace.chunk(0, 6000), pace.chunk(0, 6000)
    assert (first, third) == (60, 0)
    assert law(plan((2000, 60), (0, second - 2))) <= 0.09 < law(plan((2000, 60), (0, second + 8)))


def test_the_first_prompt_goes_on_whatever_it_costs() -> None:
    pace = measured(0.001, (0, 100))
    for left, expected in ((500, LEAST_TOKENS), (5, 5)):
        pace.begin(writing())
        assert [pace.chunk(0, left), pace.chunk(0, left)] == [expected, 0]


def test_nothing_is_extrapolated_far() -> None:
    pace = Pace(1000.0)
    chunks = []
    for _ in range(5):
        pace.begin(writing())
        chunks.append(pace.chunk(0, 2048))
        pace.observe(plan((0, chunks[-1])), 0.001)
    assert chunks == [16, 32, 64, 128, 256]


class Timed:
    """An engine whose steps take what the law says."""

    def __init__(self, max_itl_ms: float | None) -> None:
        self.now = 0.0
        self.plans: list[StepPlan] = []
        script = Script(num_blocks=640, max_model_len=8192, max_num_batched_tokens=2048)
        self.runner = ScriptedRunner(script=script, on_step=self.take)
        self.engine = scripted_engine(self.runner, max_itl_ms=max_itl_ms, clock=lambda: self.now)
        self.answers: dict[str, list[int]] = {}

    def take(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        self.now += law(plan)

    def step(self) -> float:
        """The seconds that it took."""
        began = self.now
        for delta in self.engine.step().deltas:
            self.answers.setdefault(delta.request_id, []).extend(delta.token_ids)
        return self.now - began

    def stall(self) -> list[float]:
        """The times between the tokens of two streams while a prompt of 6,000 tokens is computed."""
        for name in ("first", "second"):
            self.engine.add(make_request(name, 20, max_tokens=400, ignore_eos=True))
        for _ in range(5):
            self.step()
        self.engine.add(make_request("long", [3 + i % 900 for i in range(6000)], max_tokens=1))
        gaps = []
        while "long" not in self.answers:
            before = len(self.answers["first"])
            gaps.append(self.step())
            assert len(self.answers["first"]) == before + 1, "streams get a token in every step"
        return gaps


def test_c116_streams_keep_their_pace_while_a_long_prompt_is_computed() -> None:
    free, paced = Timed(None), Timed(60.0)
    gaps, paced_gaps = free.stall(), paced.stall()
    assert max(gaps) > 1.0
    assert max(paced_gaps) <= 0.060
    assert sorted(paced_gaps)[len(paced_gaps) // 2] > 0.050, "the time that there is, is used"
    assert sum(paced_gaps) < 1.5 * sum(gaps)
    request = make_request("long", [3 + i % 900 for i in range(6000)])
    assert free.answers["long"] == paced.answers["long"] == [default_token(request, 0, 0)]
    chunks = [row.num_tokens for plan in paced.plans for row in plan.scheduled if row.num_tokens > 20]
    assert chunks[-2] < max(chunks), "chunks get shorter as there are more keys to attend to"


def test_an_unreachable_limit_does_not_stop_prompts() -> None:
    paced = Timed(1.0)
    assert len(paced.stall()) == 6000 / LEAST_TOKENS


def test_prompts_are_cut_at_the_threshold() -> None:
    plans: list[StepPlan] = []
    script = Script(block_size=4, num_blocks=30, max_model_len=100, max_num_batched_tokens=20)
    runner = ScriptedRunner(script=script, on_step=plans.append)
    engine = scripted_engine(runner, long_prefill_token_threshold=8, enable_prefix_caching=False)
    engine.add(make_request("long", 21, max_tokens=1))
    engine.add(make_request("short", 8, max_tokens=1))
    engine.add(make_request("other", 10, max_tokens=1))
    while engine.has_work:
        engine.step()
    shapes = [[(row.start, row.num_tokens) for row in plan.scheduled] for plan in plans]
    assert shapes == [[(0, 8), (0, 8), (0, 4)], [(8, 8), (4, 6)], [(16, 5)]]


def test_answers_are_the_same_to_the_last_bit_whatever_the_chunks() -> None:
    """The real kernels, under a clock that makes no sense at all."""
    checkpoint, ops = tiny_checkpoint(tiny_config(), seed=5), CpuOps(2)
    dtype = np.dtype(ml_dtypes.bfloat16)
    model = build_model(read_model_config(checkpoint), Weights(checkpoint, dtype, ops), ops)
    random = np.random.RandomState(3)
    prompts = [random.randint(3, 160, length).tolist() for length in (5, 100, 30, 90)]

    def run(max_itl_ms: float | None) -> tuple[dict[str, list[object]], int]:
        cache = ops.kv_cache(model.config.num_layers, 64, 16, model.config.num_kv_heads, model.config.head_dim, dtype)
        runner = ModelRunner(model, ops, cache, max_num_seqs=8, max_model_len=128)
        ticks = np.random.RandomState(4)
        engine = Engine(
            runner,
            block_size=16,
            max_num_seqs=8,
            max_num_batched_tokens=2048,
            max_model_len=128,
            max_itl_ms=max_itl_ms,
            clock=lambda: float(ticks.random_sample()),
        )
        answers: dict[str, list[object]] = {}
        for number, prompt in enumerate(prompts):
            params = SamplingParams(max_tokens=20, temperature=0.5, seed=number, logprobs=3, ignore_eos=True)
            engine.add(Request(f"{number}", prompt, params, 0.0))
            for delta in engine.step().deltas:
                answers.setdefault(delta.request_id, []).append((delta.token_ids, delta.logprobs))
        while engine.has_work:
            for delta in engine.step().deltas:
                answers.setdefault(delta.request_id, []).append((delta.token_ids, delta.logprobs))
        cache.close()
        return answers, engine.stats().num_steps

    free, paced = run(None), run(50.0)
    assert paced[1] > free[1], "prompts were cut"
    assert paced[0] == free[0]
