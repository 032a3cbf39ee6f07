"""Known ways for a sampler to go wrong (numbers are those of the case collection), and its distribution."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from octavo.engine.plan import RowResult
from octavo.engine.request import Request
from octavo.sampling.logprobs import FLOOR, token_logprobs
from octavo.sampling.params import SamplingParams
from octavo.sampling.sampler import MASKED, sample
from octavo.sampling.state import SamplingState
from octavo.sampling.stopping import finish_reason
from tests.sampling import reference

EOS = [2, 9]


def make_state(index: int = 0, output: tuple[int, ...] = (), vocab_size: int = 10, **fields: Any) -> SamplingState:
    fields = {"seed": 1, "max_tokens": None, **fields}
    return SamplingState(Request("r", [4, 5], SamplingParams(**fields), 0.0, EOS), index, list(output), vocab_size)


def row(values: list[float]) -> np.ndarray:
    return np.array([values], dtype=np.float32)


def generate(state: SamplingState, steps: int) -> list[int]:
    """Tokens of a made-up model whose logits depend on the last token; ends as the engine does."""
    table = np.random.default_rng(0).standard_normal((state.vocab_size, state.vocab_size)).astype(np.float32) * 2
    request = Request("r", state.prompt_token_ids, state.params, 0.0, EOS)
    while len(state.output_token_ids) < steps:
        last = [*state.prompt_token_ids, *state.output_token_ids][-1]
        result = sample(table[last : last + 1], [state])[0]
        assert result.token_id is not None, result.error
        state.append(result.token_id)
        if finish_reason(request, state.output_token_ids, 10**6)[0]:
            break
    return state.output_token_ids


def draws(logits: list[float], count: int, **fields: Any) -> Counter[int | None]:
    """Tokens drawn under `count` seeds."""
    states = [make_state(vocab_size=len(logits), **{**fields, "seed": seed}) for seed in range(count)]
    return Counter(result.token_id for result in sample(np.tile(row(logits), (count, 1)), states))


# C88: extreme temperatures and truncations


@pytest.mark.parametrize("temperature", [0, 5e-324, 1e-10, 1e-4, 0.0099])
def test_c88_tiny_temperature_is_greedy(temperature: float) -> None:
    assert draws([1.0, 1.001, 1.0009, -3e38, 3e-39], 200, temperature=temperature) == {1: 200}


def test_c88_lowest_random_temperature_is_finite_on_extreme_logits() -> None:
    assert draws([3.4e38, -3.4e38, 0.0, -math.inf], 50, temperature=0.01) == {0: 50}


@pytest.mark.parametrize("fields", [{"top_p": 0}, {"top_p": 1e-9}, {"min_p": 1.0}, {"top_k": 1}])
def test_c88_only_the_top_token(fields: dict[str, Any]) -> None:
    assert draws([0.0, 0.1, 0.1001, 0.05], 200, temperature=2.0, **fields) == {2: 200}


def test_equal_tokens_the_lower_id_is_first() -> None:
    logits = [0.0, 5.0, 5.0, 5.0, 1.0]
    assert draws(logits, 50, temperature=0) == {1: 50}
    assert draws(logits, 50, top_k=1) == {1: 50}
    assert draws(logits, 50, top_p=0) == {1: 50}
    assert set(draws(logits, 200, top_k=2)) == {1, 2}
    assert set(draws(logits, 200, min_p=1.0)) == {1, 2, 3}
    assert token_logprobs(row(logits), [3], 3)[0].token_ids == [3, 1, 2, 3]
    assert token_logprobs(row(logits), [3], 3)[0].rank == 1


# C83, C86: logprobs are raw and finite


def test_c86_logprobs_do_not_change_with_the_params() -> None:
    logits = np.random.default_rng(3).standard_normal((1, 10)).astype(np.float32)
    expected = reference.logprobs(logits[0])
    for fields in (
        {"temperature": 0.5, "top_p": 0.9},
        {"temperature": 2.0, "logit_bias": {3: -100}},
        {"top_k": 1, "min_p": 0.5},
    ):
        logprobs = sample(logits, [make_state(logprobs=-1, **fields)])[0].logprobs
        assert logprobs is not None
        assert np.allclose(logprobs.logprobs[1:], sorted(expected, reverse=True), atol=1e-5)
        assert math.isclose(sum(map(math.exp, logprobs.logprobs[1:])), 1.0, abs_tol=1e-5)


def test_c83_logprobs_of_impossible_tokens_are_finite() -> None:
    results = token_logprobs(np.array([[0, -np.inf, 3], [np.nan, 0, 1], [-np.inf] * 3], dtype=np.float32), [1, 1, 1], -1)
    for result in results:
        json.dumps(result.logprobs, allow_nan=False)
        assert result.logprobs[0] == FLOOR
    assert results[0].rank == 3


def test_logprobs_zero_is_the_sampled_token_alone() -> None:
    logprobs = sample(row([0.0, 3.0, 0.0]), [make_state(vocab_size=3, temperature=0, logprobs=0)])[0].logprobs
    assert logprobs is not None
    assert logprobs.token_ids == [1]


# C91: one row's faults stay its own


def test_a_bad_row_fails_alone() -> None:
    good = np.random.default_rng(4).standard_normal(10).astype(np.float32)
    nan, infinite, masked = good.copy(), good.copy(), np.full(10, -np.inf, dtype=np.float32)
    nan[7], infinite[3] = np.nan, np.inf
    logits = np.stack([good, nan, good, infinite, masked, good])
    for fields in (
        {},
        {"temperature": 0},
        {"top_p": 0.5},
        {"top_k": 3},
        {"min_p": 0.1},
        {"presence_penalty": 1.0, "logprobs": 2},
    ):
        state = make_state(output=(1, 1), **fields)
        results = sample(logits, [state] * 6)
        expected = sample(good[None], [state])[0]
        assert [results[i] for i in (0, 2, 5)] == [expected] * 3
        assert expected.error is None
        assert results[1] == results[3] == RowResult(error="the model's logits are not finite")
        assert results[4] == RowResult(error=MASKED)


def test_a_row_whose_every_token_is_banned_or_without_seed_fails_alone() -> None:
    banned = make_state(vocab_size=10, min_tokens=1, stop_token_ids=list(range(10)))
    unseeded = make_state(seed=None)
    results = sample(np.zeros((3, 10), dtype=np.float32), [banned, make_state(), unseeded])
    assert [result.error for result in results] == [MASKED, None, "the request has no seed"]


def test_c91_ids_outside_the_vocabulary_touch_nothing() -> None:
    far = {"stop_token_ids": [10, 999_999_999, -1], "logit_bias": {10: 100, -1: 100, 10**9: 100}, "min_tokens": 5}
    logits = np.random.default_rng(5).standard_normal((2, 10)).astype(np.float32)
    state = make_state(output=(3,), repetition_penalty=1.5, **far)
    state.append(10**9)  # a scripted token may be anything
    neighbour = make_state()
    plain = make_state(output=(3, 10**9), repetition_penalty=1.5, min_tokens=5)
    assert sample(logits, [state, neighbour]) == sample(logits, [plain, neighbour])


# C94, C95: seeds


def test_c94_the_n_sequences_differ_and_come_back() -> None:
    texts = [generate(make_state(index), 20) for index in range(4)]
    assert len({tuple(text) for text in texts}) == 4
    assert [generate(make_state(index), 20) for index in range(4)] == texts


def test_c95_seeded_is_the_same_alone_and_in_a_batch() -> None:
    logits = np.random.default_rng(6).standard_normal((8, 10)).astype(np.float32)
    for position in range(20):
        output = tuple([3] * position)
        states = [make_state(seed=seed, output=output, top_p=[1.0, 0.9][seed % 2]) for seed in range(8)]
        assert sample(logits[7:], [states[7]])[0] == sample(logits, states)[7]


def test_another_seed_gives_another_text() -> None:
    assert (
        len({tuple(generate(make_state(seed=seed, ignore_eos=True), 20)) for seed in (0, 1, 2, -5, 2**40, 2**63 - 1)}) == 6
    )


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.9, "repetition_penalty": 1.3, "frequency_penalty": 0.4}])
def test_a_preempted_sequence_goes_on_as_if_nothing_had_been(fields: dict[str, Any]) -> None:
    """Rebuilt at any point from its output, with seed and penalties."""
    fields = {**fields, "ignore_eos": True, "vocab_size": 200}
    whole = generate(make_state(**fields), 90)  # more distinct tokens than the counts' first capacity
    for cut in (0, 1, 40, 89):
        assert generate(make_state(output=tuple(whole[:cut]), **fields), 90) == whole


def test_penalties_count_every_token_of_a_long_history() -> None:
    random = np.random.default_rng(7)
    logits = (random.standard_normal((1, 500)) * 3).astype(np.float32)
    output, prompt = random.integers(0, 500, 700).tolist(), random.integers(0, 500, 300).tolist()
    for fields in ({"frequency_penalty": 0.7}, {"presence_penalty": 2.0}, {"repetition_penalty": 1.8}):
        params = SamplingParams(seed=9, max_tokens=None, **fields)
        state = SamplingState(Request("r", prompt, params, 0.0), 0, output[:350], 500)
        sample(logits, [state])  # counts exist from here on
        for token in output[350:]:
            state.append(token)
        expected = reference.sample_row(logits[0], params, prompt, output, [], 0)
        assert expected.margin > 1e-6
        assert sample(logits, [state])[0].token_id == expected.token_id


# C97: min_tokens


@pytest.mark.parametrize("end", EOS)
def test_c97_exactly_min_tokens_others_and_then_eos(end: int) -> None:
    for fields in ({"temperature": 0}, {"temperature": 1.0}, {"top_k": 3}):
        tokens = generate(make_state(min_tokens=4, logit_bias={end: 100}, **fields), 50)
        assert len(tokens) == 5
        assert tokens[4] == end
        assert not {*tokens[:4]} & {*EOS}


def test_c97_ignore_eos_runs_to_max_tokens_but_stop_tokens_stop() -> None:
    assert len(generate(make_state(ignore_eos=True, max_tokens=10, logit_bias={2: 100}), 50)) == 10
    tokens = generate(make_state(ignore_eos=True, min_tokens=3, stop_token_ids=[7], logit_bias={7: 100}), 50)
    assert len(tokens) == 4
    assert tokens.index(7) == 3


# C98: the order of the steps


def test_c98_temperature_acts_before_top_p() -> None:
    assert draws([3.0, 2.0, 1.0], 10_000, temperature=0.5, top_p=0.8) == {0: 10_000}
    assert set(draws([3.0, 2.0, 1.0], 1_000, temperature=1.0, top_p=0.8)) == {0, 1}


def test_top_p_is_of_what_top_k_left() -> None:
    # Of the whole the first has 0.25, of the first two 0.56: top_k before top_p keeps one, top_p before top_k two.
    logits = [math.log(0.25), math.log(0.2), *[math.log(0.11)] * 5]
    assert set(draws(logits, 300, top_k=2, top_p=0.5)) == {0}
    assert set(draws(logits, 300, top_p=0.5)) == {0, 1, 2}


def test_top_p_is_of_what_min_p_left() -> None:
    logits = [math.log(0.25), math.log(0.2), *[math.log(0.11)] * 5]
    assert set(draws(logits, 300, min_p=0.5, top_p=0.5)) == {0}


def test_bias_cannot_lift_a_ban_and_penalties_act_after_it() -> None:
    assert set(draws([0.0, 0.0, 1.0], 100, min_tokens=1, stop_token_ids=[2], logit_bias={2: 100}, temperature=2.0)) == {0, 1}
    # 1 + 1 = 2, halved by the penalty to 1: below the other's 1.2. Penalty first would give 0.5 + 1 = 1.5.
    state = make_state(vocab_size=3, output=(0,), temperature=0, repetition_penalty=2.0, logit_bias={0: 1.0})
    assert sample(row([1.0, 1.2, 0.0]), [state])[0].token_id == 1


def test_repetition_counts_the_prompt_and_the_others_do_not() -> None:
    logits = row([0.0, 0.0, 0.0, 0.0, 1.0, 0.9, 0.8])  # the prompt is 4, 5
    assert sample(logits, [make_state(vocab_size=7, temperature=0, repetition_penalty=2.0)])[0].token_id == 6
    for penalty in ("frequency_penalty", "presence_penalty"):
        assert sample(logits, [make_state(vocab_size=7, temperature=0, **{penalty: 2.0})])[0].token_id == 4
        assert sample(logits, [make_state(vocab_size=7, output=(4,), temperature=0, **{penalty: 2.0})])[0].token_id == 5


def test_presence_and_frequency_leave_the_prompt_alone_beside_a_repetition_penalty() -> None:
    logits = row([0.0, 0.0, 0.0, 0.0, 1.0, 0.9, 0.8])  # the prompt is 4, 5
    fields = {"temperature": 0, "repetition_penalty": 1.01, "presence_penalty": 2.0, "frequency_penalty": 2.0}
    assert sample(logits, [make_state(vocab_size=7, **fields)])[0].token_id == 4


@pytest.mark.parametrize("penalty", [5e-324, 1e-300, 1e-38, 1e38, 1e300])
def test_any_repetition_penalty_leaves_finite_logits(penalty: float) -> None:
    logits = row([3.0, -3.0, 2.0, -2.0, 1.0, -1.0, -np.inf])
    for temperature in (0, 1.0):
        state = make_state(vocab_size=7, output=(0, 1, 2, 3, 4, 5, 6), temperature=temperature, repetition_penalty=penalty)
        token_id = sample(logits, [state])[0].token_id
        assert token_id in ((0, 2, 4) if penalty < 1 else (0, 1, 2, 3, 4, 5))


def test_top_p_is_reached_by_an_equal_share() -> None:
    assert set(draws([0.0, 0.0, 0.0, 0.0], 100, top_p=0.5)) == {0, 1}


@pytest.mark.parametrize("fields", [{}, {"top_p": 0.95}, {"top_k": 300}])
@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-53])
def test_the_ends_of_the_draw_are_tokens_with_weight(
    number: float, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.sampling.sampler.uniforms", lambda seeds, *_: np.full(len(seeds), number))
    logits = (np.random.default_rng(10).standard_normal((300, 600)) * 3).astype(np.float32)
    logits[:, :100] = logits[:, 500:] = -np.inf
    results = sample(logits, [make_state(vocab_size=600, **fields)] * 300)
    assert all(result.token_id is not None and 100 <= result.token_id < 500 for result in results)


# C152: a padded embedding matrix


def test_c152_columns_beyond_the_vocabulary_are_never_drawn() -> None:
    logits = np.zeros((1, 64), dtype=np.float32)
    logits[0, 50:] = 20.0
    for fields in ({}, {"temperature": 0}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.5}):
        results = sample(
            np.tile(logits, (100, 1)), [make_state(seed=s, vocab_size=50, logprobs=3, **fields) for s in range(100)]
        )
        for result in results:
            assert result.logprobs is not None
            assert max(result.logprobs.token_ids) < 50


# The distribution


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 1.0}, {"temperature": 1.7}, {"top_k": 6}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 9, "top_p": 0.8}],
)
@pytest.mark.parametrize("count", [5_000, pytest.param(20_000, marks=pytest.mark.nightly)])
def test_draws_have_the_kept_tokens_probabilities(fields: dict[str, Any], count: int) -> None:
    """Chi-square over draws with fixed seeds, at a vocabulary of several blocks."""
    vocab_size = 600
    logits = np.full(vocab_size, -30.0, dtype=np.float32)
    random = np.random.default_rng(8)
    logits[random.choice(vocab_size, 24, replace=False)] = random.standard_normal(24) * 1.5
    params = SamplingParams(**fields, seed=0)
    kept = reference.sample_row(logits, params, [], [], [], 0).kept
    weights = {token: math.exp(float(logits[token]) / params.temperature) for token in kept}
    total = sum(weights.values())
    states = [
        make_state(seed=seed % 100, index=seed // 1000, output=(0,) * (seed // 100 % 10), vocab_size=vocab_size, **fields)
        for seed in range(count)
    ]
    drawn = Counter(result.token_id for result in sample(np.broadcast_to(logits, (count, vocab_size)), states))
    assert {*drawn} <= {*kept}
    usual = [token for token in kept if weights[token] / total * count >= 5]
    chi_square = sum((drawn[token] - (e := weights[token] / total * count)) ** 2 / e for token in usual)
    freedom = len(usual) - 1
    assert chi_square < freedom + 4.0 * math.sqrt(2.0 * freedom) + 8.0  # beyond with a probability below 1e-4
