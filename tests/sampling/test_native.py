"""The native sampler gives what the reference gives, to the last bit, in every instruction set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.request import Request, Thinking
from octavo.kernels.cpu.ops import CpuOps
from octavo.sampling.exponential import block_sums, exponential
from octavo.sampling.logprobs import token_logprobs
from octavo.sampling.params import SamplingParams
from octavo.sampling.sampler import MASKED, sample
from octavo.sampling.state import SamplingState
from tests.kernels.native import each_isa, native
from tests.sampling.test_sampler import EOS, fields, histories, logit_rows, sizes

SPECIAL = [-math.inf, math.inf, math.nan, 0.0, -0.0, 1e-40, 3e38, -3e38]


def make_state(values: dict[str, Any], size: int, prompt: list[int], output: list[int], index: int = 0) -> SamplingState:
    return SamplingState(Request("r", prompt, SamplingParams(**values), 0.0, EOS), index, output, size)


@each_isa
@given(logit_rows(sizes), st.lists(fields, min_size=1, max_size=5), histories, histories, st.integers(0, 3))
def test_tokens_and_logprobs_equal_the_references(
    isa: str, logits: np.ndarray, batch: list[dict[str, Any]], prompt: list[int], output: list[int], index: int
) -> None:
    rows = np.repeat(logits[None], len(batch), axis=0)
    rows[:, 0] += np.arange(len(batch), dtype=np.float32)
    states = [make_state(values, logits.size, prompt, output, index) for values in batch]
    before = rows.copy()
    assert native(isa).sample(rows, states) == sample(rows, states)
    assert rows.tobytes() == before.tobytes()


@dataclass
class StandInMatcher:
    """What the sampler looks at in a sequence's grammar."""

    mask: bytes | None
    error: str | None = None


matchers = st.none() | st.builds(
    StandInMatcher, st.none() | st.binary(min_size=1, max_size=130), st.sampled_from([None, None, "lost"])
)
bans = st.fixed_dictionaries(
    {},
    optional={
        "allowed_token_ids": st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True),
        "min_tokens": st.integers(0, 9),
    },
)


@each_isa
@given(
    logit_rows(sizes),
    fields,
    bans,
    matchers,
    histories,
    st.lists(st.lists(st.integers(0, 2), min_size=1), max_size=3),
    st.none() | st.builds(Thinking, st.integers(0, 4), st.none() | st.just(2), st.just([0, 1])),
)
def test_masks_and_bans_equal_the_references(
    isa: str,
    logits: np.ndarray,
    values: dict[str, Any],
    bans: dict[str, Any],
    matcher: StandInMatcher | None,
    output: list[int],
    bad_words: list[list[int]],
    thinking: Thinking | None,
) -> None:
    params = SamplingParams(**values, **{name: value for name, value in bans.items() if name not in values})
    request = Request("r", [], params, 0.0, EOS, bad_words_token_ids=bad_words, thinking=thinking)
    state = SamplingState(request, 0, output, logits.size, matcher)  # type: ignore[arg-type]
    assert native(isa).sample(logits[None], [state]) == sample(logits[None], [state])


@each_isa
@settings(max_examples=settings.default.max_examples // 4)
@given(st.integers(0, 2**32 - 1), st.lists(fields, min_size=3, max_size=3), st.floats(0.05, 6))
def test_they_equal_at_a_real_vocabulary(isa: str, seed: int, batch: list[dict[str, Any]], deviation: float) -> None:
    random = np.random.default_rng(seed)
    logits = (random.standard_normal((3, 9_003)) * deviation).astype(np.float32)
    history = random.integers(0, 9_003, 40).tolist()
    states = [make_state(values, 9_003 - i, history, history[:20]) for i, values in enumerate(batch)]
    assert native(isa).sample(logits, states) == sample(logits, states)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@given(logit_rows(sizes), st.lists(st.tuples(st.integers(0, 999), st.sampled_from(SPECIAL)), min_size=1, max_size=4))
def test_a_bad_row_fails_alone(temperature: float, logits: np.ndarray, spoils: list[tuple[int, float]]) -> None:
    good = np.arange(logits.size, dtype=np.float32) % 7
    rows = np.stack([good, logits, good])
    for place, value in spoils:
        rows[1, place % logits.size] = value
    states = [make_state({"temperature": temperature, "seed": i, "logprobs": 2}, logits.size, [], []) for i in range(3)]
    results, expected = native("auto").sample(rows, states), sample(rows, states)
    assert results == expected
    assert results[0].error is results[2].error is None


def test_a_row_that_has_no_seed_or_no_token_left_says_so() -> None:
    rows = np.zeros((3, 5), np.float32)
    rows[1], rows[2] = -np.inf, np.nan
    states = [make_state({"temperature": 1.0}, 5, [], []), *(make_state({"seed": 1}, 5, [], []) for _ in range(2))]
    errors = [result.error for result in native("auto").sample(rows, states)]
    assert errors == ["the request has no seed", MASKED, "the model's logits are not finite"]


@each_isa
@given(logit_rows(st.sampled_from([3, 70, 1000])), st.integers(-1, 80), st.integers(0, 2), st.sampled_from(SPECIAL))
def test_prompt_logprobs_equal_the_references(isa: str, logits: np.ndarray, top: int, token: int, value: float) -> None:
    rows = np.stack([logits, logits[::-1]])
    rows[1, 1] = value
    assert native(isa).token_logprobs(rows, [token, 0], top) == token_logprobs(rows, [token, 0], top)


def test_all_instruction_sets_and_threads_draw_the_same_tokens() -> None:
    random = np.random.default_rng(3)
    logits = (random.standard_normal((40, 5_000)) * 3).astype(np.float32)
    cases: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"top_k": 50}, {"min_p": 0.1}, {"temperature": 0}]
    states = [make_state({"seed": i, "logprobs": 3, **cases[i % 5]}, 5_000, [], []) for i in range(40)]
    one_thread = CpuOps(1).sample(logits, states)
    for isa in ("generic", "auto"):
        assert native(isa, 2).sample(logits, states) == one_thread
        assert [native(isa, 2).sample(logits[i : i + 1], states[i : i + 1])[0] for i in range(40)] == one_thread


def test_a_vocabulary_that_the_logits_do_not_have_is_refused() -> None:
    with pytest.raises(ValueError, match="vocabulary of 6"):
        native("auto").sample(np.zeros((1, 5), np.float32), [make_state({}, 6, [], [])])
    with pytest.raises(ValueError, match="1 rows of logits"):
        native("auto").sample(np.zeros((2, 5), np.float32), [make_state({}, 5, [], [])])
    with pytest.raises(IndexError, match="token 5"):
        native("auto").token_logprobs(np.zeros((1, 5), np.float32), [5], 0)


@given(st.lists(st.floats(-100, 0, width=32), min_size=1, max_size=600))
def test_the_written_exponential_is_one(values: list[float]) -> None:
    x = np.array([0.0, *values], np.float32)
    result = exponential(x)
    exact = np.exp(x.astype(np.float64))
    assert result[0] == 1.0
    assert (np.abs(result - exact) <= 3e-7 * exact + (x < -87) * 2.0**-125).all()
    padded = np.zeros(-(-x.size // 256) * 256, np.float32)
    padded[: x.size] = result
    assert np.isclose(block_sums(padded).sum(), math.fsum(result.tolist()), rtol=1e-14)
