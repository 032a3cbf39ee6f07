"""Every family live against Transformers, in float32: logits at 64 positions in one piece and in chunks, and 16 greedy ids
by the engine, with a prompt in chunks and with a cached prefix. And that the stored golden values are what it says."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.golden import derive_families
from tests.golden.derive_families import OUTPUT_LENGTH, SEED, load, prompt_of
from tests.models.backends import BACKENDS
from tests.models.driver import generate_twice, logits_of
from tests.models.families import FAMILIES
from tests.models.test_oracle import assert_close
from tests.models.tiny import tiny_model

pytestmark = pytest.mark.oracle
GOLDEN = load()


@cache
def derived(name: str) -> tuple[dict[str, Any], np.ndarray]:
    """What Transformers says now: the values that are stored, and all logits of the prompt."""
    return derive_families.derive_with_logits(FAMILIES[name])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_at_every_position_and_greedy_ids(name: str, backend: str) -> None:
    values, expected = derived(name)
    ops = BACKENDS[backend]()
    model = tiny_model(ops, FAMILIES[name].checkpoint(values["shapes"], SEED))
    prompt = prompt_of(values["prompt_seed"])
    for chunk in (64, 7):
        error = np.abs(logits_of(model, ops, prompt, chunk) - expected).max() / np.abs(expected).max()
        assert error < FAMILIES[name].tolerance, chunk
    assert generate_twice(model, ops, prompt, OUTPUT_LENGTH) == [(values["greedy"], 0), (values["greedy"], 48)]
    ops.close()


@pytest.mark.parametrize("name", FAMILIES)
def test_golden_values_are_what_transformers_says(name: str) -> None:
    assert_close(derived(name)[0], GOLDEN[name])
