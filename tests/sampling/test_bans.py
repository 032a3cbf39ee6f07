"""What may not be drawn: by a grammar's mask, allowed_token_ids, bad_words and min_tokens; and logprobs of other kinds."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.plan import RowResult
from octavo.engine.request import Request
from octavo.sampling.logits import forbidden
from octavo.sampling.logprobs import FLOOR
from octavo.sampling.params import SamplingParams
from octavo.sampling.sampler import MASKED, sample
from octavo.sampling.state import SamplingState

EOS = [2]


class Mask:
    """In a matcher's place."""

    def __init__(self, allowed: set[int] | None, error: str | None = None) -> None:
        self.error = error
        self.mask = None if allowed is None else sum(1 << token for token in allowed).to_bytes(4, "little")


def draw(
    logits: list[float],
    output: tuple[int, ...] = (),
    mask: Mask | None = None,
    bad_words: list[list[int]] | None = None,
    mode: str = "raw_logprobs",
    **fields: Any,
) -> RowResult:
    params = SamplingParams(**{"temperature": 0.0, "seed": 1, "max_tokens": None, **fields})
    request = Request("r", [4, 5], params, 0.0, EOS, bad_words_token_ids=bad_words or [])
    state = SamplingState(request, 0, output, len(logits), mask)  # type: ignore[arg-type]
    return sample(np.array([logits], np.float32), [state], mode)[0]


RISING = [float(token) for token in range(10)]


def test_the_mask_decides() -> None:
    assert draw(RISING).token_id == 9
    assert draw(RISING, mask=Mask({1, 3, 7})).token_id == 7
    assert draw(RISING, mask=Mask(None)).token_id == 9
    assert draw(RISING, mask=Mask({1, 3}), logit_bias={9: 100.0}).token_id == 3
    assert draw(RISING, mask=Mask(set())).error == MASKED
    assert draw(RISING, mask=Mask({1}, error="the grammar cannot be followed")).error == "the grammar cannot be followed"


@given(st.sets(st.integers(0, 40)), st.integers(1, 60))
def test_a_mask_is_one_bit_for_each_token(allowed: set[int], vocab_size: int) -> None:
    mask = sum(1 << token for token in allowed).to_bytes(6, "little")
    assert np.flatnonzero(~forbidden(mask, vocab_size)).tolist() == sorted(t for t in allowed if t < vocab_size)


def test_before_min_tokens_the_text_ends_only_where_it_must() -> None:
    assert draw([0.0, 1.0, 9.0, 3.0], mask=Mask({1, 2}), min_tokens=3).token_id == 1
    assert draw([0.0, 1.0, 9.0, 3.0], mask=Mask({2}), min_tokens=3).token_id == 2
    assert draw([0.0, 1.0, 9.0, 3.0], allowed_token_ids=[2], min_tokens=3).error == MASKED


def test_allowed_token_ids() -> None:
    assert draw(RISING, allowed_token_ids=[3, 5, 5, 1]).token_id == 5
    assert draw(RISING, allowed_token_ids=[3, 5], mask=Mask({3, 9})).token_id == 3
    seeds = range(200)
    assert {draw([1.0] * 10, allowed_token_ids=[4, 8], temperature=2.0, seed=seed).token_id for seed in seeds} == {4, 8}


@pytest.mark.parametrize(
    ("words", "output", "expected"),
    [
        ([[9]], (), 8),
        ([[9], [8]], (), 7),
        ([[1, 9]], (), 9),
        ([[1, 9]], (1,), 8),
        ([[1, 9]], (1, 1), 8),
        ([[1, 9]], (9, 1), 8),
        ([[1, 9]], (1, 9), 9),
        ([[7, 1, 9]], (1,), 9),
        ([[7, 1, 9]], (3, 7, 1), 8),
        ([[7, 1, 9], [1, 8]], (3, 7, 1), 7),
    ],
)
def test_a_bad_word_is_not_completed(words: list[list[int]], output: tuple[int, ...], expected: int) -> None:
    assert draw(RISING, output, bad_words=words).token_id == expected


def kinds(mode: str, **fields: Any) -> dict[int, float]:
    result = draw([3.0, 2.0, 1.0, -math.inf], mode=mode, logprobs=4, **fields)
    assert result.logprobs is not None
    return dict(zip(result.logprobs.token_ids, result.logprobs.logprobs, strict=True))


def test_c86_raw_logprobs_do_not_depend_on_the_parameters() -> None:
    expected = kinds("raw_logprobs")
    assert sum(math.exp(value) for value in expected.values()) == pytest.approx(1.0)
    for fields in ({"temperature": 0.5}, {"temperature": 2.0, "top_p": 0.9}, {"temperature": 1.0, "top_k": 1}):
        assert kinds("raw_logprobs", **fields) == expected


def test_c86_processed_logprobs_are_those_of_the_draw() -> None:
    for temperature in (0.5, 1.0, 2.0):
        total = sum(math.exp(value / temperature) for value in (3.0, 2.0, 1.0))
        values = kinds("processed_logprobs", temperature=temperature)
        for token, logit in enumerate((3.0, 2.0, 1.0)):
            assert values[token] == pytest.approx(logit / temperature - math.log(total), abs=1e-5)
    assert kinds("processed_logprobs", temperature=1.0, top_k=1) == {0: 0.0, 1: FLOOR, 2: FLOOR, 3: FLOOR}
    assert kinds("processed_logprobs", logit_bias={1: 100.0})[1] == pytest.approx(0.0)


def test_the_logits_themselves() -> None:
    assert kinds("raw_logits", temperature=0.5) == {0: 3.0, 1: 2.0, 2: 1.0, 3: FLOOR}
    assert kinds("processed_logits", temperature=0.5, top_k=2) == {0: 6.0, 1: 4.0, 2: FLOOR, 3: FLOOR}


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"])
def test_c83_masked_tokens_have_finite_logprobs(mode: str) -> None:
    values = kinds(mode, mask=Mask({1}), logit_bias={0: -100.0})
    assert all(math.isfinite(value) for value in values.values())


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids is not None and empty!"),
        ({"allowed_token_ids": ["a"]}, "allowed_token_ids must contain only integers"),
        ({"allowed_token_ids": 5}, "allowed_token_ids must be a list of integers"),
        ({"bad_words": ["a"] * 257}, "bad_words can hold at most 256 words, got 257."),
        ({"bad_words": ["a", " "]}, "bad_words must contain only texts that are not blank, got ' ' at 1."),
        ({"bad_words": ["a" * 257]}, "a bad word can have at most 256 characters, got 257 at index 0."),
        ({"bad_words": "word"}, "bad_words must be a list of strings"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs must be StructuredOutputsParams, got dict."),
    ],
)
def test_what_is_wrong_is_told(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match="^" + text.replace("(", r"\(")):
        SamplingParams(**fields)
