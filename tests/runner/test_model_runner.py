"""Steps on a small random model: rows, chunks, preemption, prompt logprobs, faults of one row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.engine import Engine
from octavo.engine.plan import NewRow, RowResult, ScheduledRow, StepPlan
from octavo.engine.request import Request, RequestDelta, TokenLogprobs
from octavo.kernels.numpy.ops import NumpyOps
from octavo.models.registry import Model
from octavo.runner import model_runner
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams
from tests.models.driver import logits_of
from tests.models.tiny import tiny_checkpoint, tiny_config, tiny_model

OPS = NumpyOps()
MODEL = tiny_model(OPS, tiny_checkpoint(tiny_config(), seed=11))
BLOCK_SIZE = 16


def make_runner(model: Model = MODEL, num_blocks: int = 40, max_model_len: int = 128) -> ModelRunner:
    config = model.config
    cache = OPS.kv_cache(
        config.num_layers, num_blocks, BLOCK_SIZE, config.num_kv_heads, config.head_dim, np.dtype(np.float32)
    )
    return ModelRunner(model, OPS, cache, max_num_seqs=8, max_model_len=max_model_len)


def make_request(name: str, prompt: list[int], max_tokens: int = 8, **params: object) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, **{"temperature": 0.0, **params})  # type: ignore[arg-type]
    return Request(name, prompt, sampling, arrival_time=0.0)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    return np.random.RandomState(seed).randint(3, 160, length).tolist()


def run(runner: ModelRunner, requests: list[Request], budget: int = 2048) -> dict[str, list[RequestDelta]]:
    """The deltas of each request (those of n as "name/index")."""
    engine = Engine(
        runner,
        block_size=BLOCK_SIZE,
        max_num_seqs=8,
        max_num_batched_tokens=budget,
        max_model_len=128,
        enable_chunked_prefill=True,
    )
    deltas: dict[str, list[RequestDelta]] = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for delta in engine.step().deltas:
            deltas.setdefault(f"{delta.request_id}/{delta.index}", []).append(delta)
    assert engine.check_integrity()["held"] == 0
    return deltas


def ids(deltas: list[RequestDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def greedy(prompt: list[int], count: int) -> list[int]:
    """What the model alone, without rows and blocks shared with others, goes on with."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_of(MODEL, OPS, tokens, len(tokens))[-1].argmax()))
    return tokens[len(prompt) :]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("budget", [2048, 7])
def test_sequences_of_different_lengths_share_steps(budget: int) -> None:
    prompts = {f"r{length}": prompt_of(length, length) for length in (1, 15, 16, 17, 40)}
    deltas = run(make_runner(), [make_request(name, prompt) for name, prompt in prompts.items()], budget)
    assert {name: ids(deltas[f"{name}/0"]) for name in prompts} == {name: greedy(p, 8) for name, p in prompts.items()}


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=8), st.integers(4, 60))
def test_preempted_sequences_go_on_as_if_nothing_had_happened(sizes: list[tuple[int, int]], budget: int) -> None:
    requests = [make_request(f"{i}", prompt_of(length, i), new) for i, (length, new) in enumerate(sizes)]
    crowded = run(make_runner(num_blocks=5), requests, budget)
    alone = {name: deltas for request in requests for name, deltas in run(make_runner(), [request]).items()}
    assert {name: ids(deltas) for name, deltas in crowded.items()} == {name: ids(deltas) for name, deltas in alone.items()}


def test_a_sequence_may_fill_the_whole_context() -> None:
    deltas = run(make_runner(), [make_request("long", prompt_of(100), max_tokens=28)])["long/0"]
    assert len(ids(deltas)) == 28
    assert deltas[-1].finish_reason == "length"


def assert_scores(found: list[TokenLogprobs | None] | None, prompt: list[int], top: int) -> None:
    expected = log_softmax(logits_of(MODEL, OPS, prompt, len(prompt)))
    assert found is not None
    assert len(found) == len(prompt)
    assert found[0] is None
    for position, scores in enumerate(found[1:], start=1):
        row = expected[position - 1]
        assert scores is not None
        assert scores.token_ids == [prompt[position], *np.argsort(-row)[:top].tolist()]
        np.testing.assert_allclose(scores.logprobs, row[scores.token_ids], atol=1e-5)
        assert scores.rank == 1 + (row > row[prompt[position]]).sum()


@pytest.fixture
def few_logits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_runner, "LOGITS_BYTES", 5 * 4 * 160)


@pytest.mark.usefixtures("few_logits_at_once")
@pytest.mark.parametrize("budget", [2048, 7, 16])
def test_prompt_logprobs_whatever_the_chunks(budget: int) -> None:
    lengths = (1, 2, 33, 64)
    requests = [make_request(f"{n}", prompt_of(n, n), prompt_logprobs=3) for n in lengths]
    requests += [
        make_request("plain", prompt_of(20)),
        make_request("most", prompt_of(9), prompt_logprobs=0, n=2, temperature=1.0, seed=1),
    ]
    deltas = run(make_runner(), requests, budget)
    for n in lengths:
        assert_scores(deltas[f"{n}/0"][0].prompt_logprobs, prompt_of(n, n), 3)
    assert_scores(deltas["most/0"][0].prompt_logprobs, prompt_of(9), 0)
    assert deltas["plain/0"][0].prompt_logprobs is None
    assert deltas["most/1"][0].prompt_logprobs is None


@pytest.mark.parametrize("budget", [2048, 33])
def test_a_prompt_that_fills_the_context_can_be_scored(budget: int) -> None:
    """Its one output token is sampled, and needs no place behind it."""
    full = make_request("full", prompt_of(128, 5), 1, prompt_logprobs=2)
    deltas = run(make_runner(), [full, make_request("short", prompt_of(10), 4)], budget)
    assert_scores(deltas["full/0"][0].prompt_logprobs, prompt_of(128, 5), 2)
    assert ids(deltas["full/0"]) == greedy(prompt_of(128, 5), 1)
    assert deltas["full/0"][-1].finish_reason == "length"
    assert ids(deltas["short/0"]) == greedy(prompt_of(10), 4)


def test_prompt_logprobs_survive_a_preemption_between_chunks() -> None:
    requests = [make_request("old", prompt_of(30), 40), make_request("new", prompt_of(60, 1), 4, prompt_logprobs=2)]
    deltas = run(make_runner(num_blocks=7), requests, budget=9)
    assert_scores(deltas["new/0"][0].prompt_logprobs, prompt_of(60, 1), 2)
    assert ids(deltas["old/0"]) == greedy(prompt_of(30), 40)


def test_sampled_logprobs_are_the_raw_ones() -> None:
    prompt = prompt_of(12)
    delta = run(make_runner(), [make_request("r", prompt, 1, logprobs=2)])["r/0"][0]
    row = log_softmax(logits_of(MODEL, OPS, prompt, 12)[-1:])[0]
    assert delta.logprobs is not None
    assert delta.logprobs[0].token_ids == [delta.token_ids[0], *np.argsort(-row)[:2].tolist()]


def test_a_recomputed_sequence_gives_its_prompt_logprobs_only_once() -> None:
    request = make_request("r", prompt_of(20), prompt_logprobs=1)
    plan = StepPlan(new_rows=[NewRow(0, request, 0, [7])], scheduled=[ScheduledRow(0, 0, 21, [1, 2], True)])
    result = make_runner().execute(plan)[0]
    assert result.prompt_logprobs is None
    assert [result.token_id] == greedy([*prompt_of(20), 7], 1)


def test_the_sampler_sees_what_was_drawn_before() -> None:
    deltas = run(make_runner(), [make_request("r", prompt_of(20), 30, frequency_penalty=2.0, logit_bias={7: 60.0, 8: 50.0})])
    assert set(ids(deltas["r/0"])) == {7, 8}


POISON = 99


@pytest.fixture(scope="module")
def poisoned_model() -> Model:
    """A model in which one token's embedding is NaN."""
    checkpoint = tiny_checkpoint(tiny_config(), seed=11)
    checkpoint.tensors["model.embed_tokens.weight"][POISON] = np.nan
    return tiny_model(OPS, checkpoint)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("prompt_logprobs", [None, 1])
def test_a_row_that_is_not_finite_fails_alone(poisoned_model: Model, prompt_logprobs: int | None) -> None:
    bad = [*prompt_of(10), POISON, 5]
    good = [token for token in prompt_of(30, 2) if token != POISON]
    requests = [
        make_request("bad", bad, prompt_logprobs=prompt_logprobs),
        make_request("good", good, prompt_logprobs=prompt_logprobs),
    ]
    deltas = run(make_runner(poisoned_model), requests)
    assert [delta.finish_reason for delta in deltas["bad/0"]] == ["error"]
    assert "not finite" in (deltas["bad/0"][0].error or "")
    assert ids(deltas["good/0"]) == greedy(good, 8)


def test_padding_of_the_vocabulary_is_never_drawn() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=30, logprobs=160)
    padded = Request("padded", prompt_of(10), params, arrival_time=0.0, vocab_size=20)
    deltas = run(make_runner(), [padded, make_request("whole", prompt_of(10), 30)])
    assert max(ids(deltas["padded/0"])) < 20 <= max(ids(deltas["whole/0"]))
    assert deltas["padded/0"][0].logprobs is not None
    assert max(deltas["padded/0"][0].logprobs[0].token_ids) < 20


def test_blocks_are_copied_before_they_are_read() -> None:
    prompt, runner = prompt_of(20), make_runner()
    request = make_request("r", prompt)

    def step(**plan: object) -> RowResult:
        return runner.execute(StepPlan(**plan))[0]  # type: ignore[arg-type]

    step(new_rows=[NewRow(0, request, 0, [])], scheduled=[ScheduledRow(0, 0, 19, [4, 5], False)])
    last = ScheduledRow(1, 19, 1, [4, 9], True)
    result = step(new_rows=[NewRow(1, request, 1, [])], scheduled=[last], block_copies=[(5, 9)])
    assert [result.token_id] == greedy(prompt, 1)


@pytest.mark.parametrize(
    "scheduled",
    [
        ScheduledRow(0, 0, 21, [1, 2], True),  # a token that nobody knows
        ScheduledRow(0, 0, 20, [1], True),  # tokens without a block
        ScheduledRow(0, 0, 19, [1, 2], True),  # a draw before the last token
        ScheduledRow(0, 0, 0, [1, 2], False),  # nothing
        ScheduledRow(3, 0, 1, [1], False),  # a free row
    ],
)
def test_a_plan_that_does_not_fit_is_refused(scheduled: ScheduledRow) -> None:
    plan = StepPlan(new_rows=[NewRow(0, make_request("r", prompt_of(20)), 0, [])], scheduled=[scheduled])
    with pytest.raises(RuntimeError, match="plan for row"):
        make_runner().execute(plan)


def test_closing_gives_the_cache_back() -> None:
    runner = make_runner()
    runner.close()
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.execute(StepPlan())
