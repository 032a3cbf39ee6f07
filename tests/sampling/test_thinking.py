"""`thinking_token_budget`: a reasoning block is closed when its tokens are used up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.request import Request, Thinking
from octavo.errors import ValidationError
from octavo.sampling.params import SamplingParams
from octavo.sampling.sampler import sample
from octavo.sampling.state import SamplingState
from octavo.sampling.thinking import ThinkingBudget

OPEN, CLOSE, MORE, SIZE = 7, 8, 9, 12


def answers(thinking: Thinking, logits: list[float], count: int, **fields: Any) -> list[int]:
    """Tokens drawn one after the other from the same logits."""
    params = SamplingParams(**{"temperature": 0.0, "seed": 3, "max_tokens": None, **fields})
    state = SamplingState(Request("r", [4], params, 0.0, [2], thinking=thinking), 0, [], SIZE)
    for _ in range(count):
        (result,) = sample(np.array([logits], np.float32), [state])
        assert result.token_id is not None
        state.append(result.token_id)
    return state.output_token_ids


def rising(best: int) -> list[float]:
    """Logits by which this token is the most likely one."""
    return [float(token == best) for token in range(SIZE)]


@pytest.mark.parametrize("budget", [0, 1, 3])
def test_the_block_is_closed_behind_its_budget(budget: int) -> None:
    drawn = answers(Thinking(budget, None, [CLOSE, MORE]), rising(5), 8)
    assert drawn == [*[5] * budget, CLOSE, MORE, *[5] * (6 - budget)]


@pytest.mark.parametrize(
    "fields",
    [{"temperature": 1.0}, {"allowed_token_ids": [5]}, {"min_tokens": 9, "max_tokens": 9}, {"logit_bias": {"8": -100}}],
)
def test_nothing_keeps_it_open(fields: Any) -> None:
    drawn = answers(Thinking(2, None, [CLOSE]), rising(5), 4, **fields)
    assert drawn[2] == CLOSE


def test_a_block_that_the_answer_opens_itself() -> None:
    budget = ThinkingBudget(Thinking(1, OPEN, [CLOSE]), [])
    assert budget.forced_id is None
    budget.append(OPEN)
    assert budget.forced_id is None
    budget.append(5)
    assert budget.forced_id == CLOSE
    budget.append(CLOSE)
    assert budget.forced_id is None
    budget.append(OPEN)  # text by now
    budget.append(5)
    assert budget.forced_id is None
    assert ThinkingBudget(Thinking(0, OPEN, [CLOSE]), [OPEN]).forced_id == CLOSE
    assert ThinkingBudget(Thinking(0, OPEN, [CLOSE]), [5, 5, OPEN]).forced_id is None


def test_a_block_that_ends_by_itself() -> None:
    assert ThinkingBudget(Thinking(3, None, [CLOSE, MORE]), [5, CLOSE, 5, 5, 5]).forced_id is None
    assert ThinkingBudget(Thinking(2, None, [CLOSE, MORE]), [5, CLOSE]).forced_id is None


@given(
    st.lists(st.integers(0, SIZE - 1), max_size=30),
    st.integers(0, 6),
    st.sampled_from([None, OPEN]),
    st.sampled_from([[CLOSE], [CLOSE, MORE, 3]]),
)
def test_no_block_is_longer_and_preemptions_change_nothing(
    wanted: list[int], most: int, opening: int | None, closing: list[int]
) -> None:
    thinking = Thinking(most, opening, closing)
    budget, drawn = ThinkingBudget(thinking, []), []
    for token in wanted:
        drawn.append(token if budget.forced_id is None else budget.forced_id)
        budget.append(drawn[-1])
        assert ThinkingBudget(thinking, drawn).forced_id == budget.forced_id
    start = 0 if opening is None else next((i + 1 for i, token in enumerate(drawn[:2]) if token == OPEN), len(drawn))
    end = drawn.index(CLOSE, start) if CLOSE in drawn[start:] else len(drawn)
    assert end - start <= most


@pytest.mark.parametrize("value", [-1, "x", 1.5])
def test_budgets_that_are_none(value: Any) -> None:
    with pytest.raises(ValidationError) as error:
        SamplingParams(thinking_token_budget=value)
    assert error.value.parameter == "thinking_token_budget"
