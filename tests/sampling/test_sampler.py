"""The sampler against the plain reference, on rows that hypothesis makes up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from octavo.engine.request import Request
from octavo.sampling.exponential import BLOCK
from octavo.sampling.logits import edited, kept_tokens, largest
from octavo.sampling.logprobs import token_logprobs
from octavo.sampling.params import SamplingParams
from octavo.sampling.sampler import sample
from octavo.sampling.state import SamplingState
from tests.sampling import reference

EOS = [1, 2]
NEAR = 1e-6  # a decision nearer to its boundary than this may fall either way by rounding


def logit_rows(vocab_sizes: st.SearchStrategy[int]) -> st.SearchStrategy[np.ndarray]:
    """Rows drawn from few values (many ties), from any floats, and from a normal distribution."""
    few = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 3.0, -math.inf])
    floats = st.floats(-30, 30, width=32)

    def rows(size: int) -> st.SearchStrategy[np.ndarray]:
        listed = st.lists(st.one_of(few, floats) if size < 20 else few, min_size=size, max_size=size)
        normal = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).standard_normal(size) * 3)
        return st.one_of(listed, normal).map(lambda values: np.array(values, dtype=np.float32))

    return vocab_sizes.flatmap(rows)


sizes = st.one_of(st.integers(3, 12), st.sampled_from([64, 65, 200, 300, 1000]))
fields = st.fixed_dictionaries(
    {"seed": st.integers(-(2**63), 2**63 - 1).filter(lambda seed: seed != -1), "max_tokens": st.none()},
    optional={
        "temperature": st.sampled_from([0.0, 1e-4, 0.01, 0.3, 1.0, 2.0]) | st.floats(0, 2),
        "top_k": st.sampled_from([-1, 1, 2, 5, 50, 10**6]),
        "top_p": st.sampled_from([0.0, 1e-9, 0.3, 0.8, 0.99, 1.0]) | st.floats(0, 1),
        "min_p": st.sampled_from([0.0, 0.05, 0.5, 1.0]) | st.floats(0, 1),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.sampled_from([0.5, 1.0, 1.3, 1e-30, 1e30]),
        "logit_bias": st.dictionaries(st.integers(0, 2), st.floats(-100, 100)),
        "min_tokens": st.integers(0, 3),
        "stop_token_ids": st.lists(st.integers(0, 2), max_size=1),
        "logprobs": st.none() | st.integers(-1, 5),
    },
)
histories = st.lists(st.integers(0, 2), max_size=6)


@given(logit_rows(sizes), fields, histories, histories, st.integers(0, 3))
def test_tokens_equal_the_references(
    logits: np.ndarray, values: dict[str, Any], prompt: list[int], output: list[int], index: int
) -> None:
    params = SamplingParams(**values)
    expected = reference.sample_row(logits, params, prompt, output, EOS, index)
    assume(expected.margin > NEAR)
    before = logits.copy()
    state = SamplingState(Request("r", prompt, params, 0.0, EOS), index, output, logits.size)
    result = sample(logits[None], [state])[0]
    assert result.token_id == expected.token_id
    assert (result.error is None) == (result.token_id is not None)
    assert logits.tobytes() == before.tobytes()
    assert state.output_token_ids == output
    if result.token_id is not None and params.logprobs is not None:
        assert result.logprobs == token_logprobs(logits[None], [result.token_id], params.logprobs)[0]


@given(logit_rows(sizes), fields, histories, histories)
def test_kept_tokens_equal_the_references(
    logits: np.ndarray, values: dict[str, Any], prompt: list[int], output: list[int]
) -> None:
    params = SamplingParams(**values)
    assume(not params.is_greedy)
    expected = reference.sample_row(logits, params, prompt, output, EOS, 0)
    assume(expected.token_id is not None and expected.margin > NEAR)
    state = SamplingState(Request("r", prompt, params, 0.0, EOS), 0, output, logits.size)
    with np.errstate(over="ignore"):
        row = edited(logits, state)
        assert row.tolist() == reference.edit(logits, params, prompt, output, EOS)
        buffer = np.full(-(-logits.size // BLOCK) * BLOCK, np.nan, dtype=np.float32)
        ids, weights = kept_tokens(row, row.max(), params, buffer)
    assert ids.tolist() == expected.kept
    assert (weights > 0).all()


@given(logit_rows(st.sampled_from([3, 70, 1000])), st.integers(-1, 80), st.integers(0, 2))
def test_logprobs_equal_the_references(logits: np.ndarray, top: int, token: int) -> None:
    assume(np.isfinite(logits.max()))
    expected = reference.logprobs(logits)
    order = sorted(range(logits.size), key=lambda token: (-logits[token], token))
    result = token_logprobs(logits[None], [token], top)[0]
    assert result.token_ids == [token, *(order if top < 0 else order[:top])]
    assert np.allclose(result.logprobs, [expected[token] for token in result.token_ids], rtol=0, atol=1e-5)
    assert result.rank == 1 + sum(other > logits[token] for other in logits)  # exact: subtraction could make them equal
    assert all(-9999.0 <= logprob <= 0.0 for logprob in result.logprobs)


@given(logit_rows(sizes), st.integers(1, 1200))
def test_largest_takes_the_first_in_order(logits: np.ndarray, count: int) -> None:
    order = sorted(range(logits.size), key=lambda token: (-logits[token], token))
    assert largest(logits, count).tolist() == sorted(order[:count])


@given(st.lists(fields, min_size=2, max_size=6), st.integers(0, 2**32 - 1), st.randoms(use_true_random=False))
def test_a_row_does_not_depend_on_the_others(batch: list[dict[str, Any]], seed: int, shuffle: Any) -> None:
    """Bit for bit: alone, in a batch, in another order, and from memory of another alignment."""
    random = np.random.default_rng(seed)
    logits = (random.standard_normal((len(batch), 1003)) * 3).astype(np.float32)
    states = [
        SamplingState(Request("r", [1, 2], SamplingParams(**values), 0.0, EOS), index, [0, 2], 1003)
        for index, values in enumerate(batch)
    ]
    alone = [sample(logits[i : i + 1].copy(), [state])[0] for i, state in enumerate(states)]
    assert sample(logits, states) == alone
    order = list(range(len(batch)))
    shuffle.shuffle(order)
    assert sample(logits[order], [states[i] for i in order]) == [alone[i] for i in order]


def test_a_row_does_not_depend_on_the_others_at_a_real_vocabulary() -> None:
    random = np.random.default_rng(5)
    logits = (random.standard_normal((8, 49_152)) * 3).astype(np.float32)
    cases: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.1}, {"temperature": 0}]
    states = [
        SamplingState(Request("r", [5], SamplingParams(seed=i, logprobs=3, **cases[i % 5]), 0.0), 0, [], 49_152)
        for i in range(8)
    ]
    together = sample(logits, states)
    for i, state in enumerate(states):
        assert sample(logits[i : i + 1].copy(), [state])[0] == together[i]
        expected = reference.sample_row(logits[i], state.params, [5], [], [], 0)
        assert expected.margin < NEAR or together[i].token_id == expected.token_id
