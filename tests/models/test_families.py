"""Every family against Transformers' stored logits, and through the engine against its stored continuation."""

from __future__ import annotations

import pytest

from tests.golden.derive_families import OUTPUT_LENGTH, SEED, load, prompt_of
from tests.models.backends import BACKENDS
from tests.models.driver import generate_twice, logits_of
from tests.models.families import FAMILIES
from tests.models.golden_values import TOLERANCE, logits_error
from tests.models.tiny import tiny_model

GOLDEN = load()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_in_chunks_and_greedy_ids_with_a_cached_prefix(name: str, backend: str) -> None:
    golden, ops = GOLDEN[name], BACKENDS[backend]()
    model = tiny_model(ops, FAMILIES[name].checkpoint(golden["shapes"], SEED))
    prompt = prompt_of(golden["prompt_seed"])
    for chunk in (64, 7):
        assert logits_error(logits_of(model, ops, prompt, chunk), golden) < TOLERANCE, chunk
    assert generate_twice(model, ops, prompt, OUTPUT_LENGTH) == [(golden["greedy"], 0), (golden["greedy"], 48)]
    ops.close()
