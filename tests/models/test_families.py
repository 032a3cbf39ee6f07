"""Every family against Transformers' stored logits, and through the engine against its stored continuation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.ops import Quantization
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.weights.checkpoint import Weights
from tests.golden.derive_families import OUTPUT_LENGTH, SEED, load, prompt_of
from tests.models.backends import BACKENDS
from tests.models.driver import generate_twice, logits_of
from tests.models.families import FAMILIES
from tests.models.golden_values import logits_error
from tests.models.tiny import tiny_model

GOLDEN = load()
FLOAT32: np.dtype[Any] = np.dtype(np.float32)
BFLOAT16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_in_chunks_and_greedy_ids_with_a_cached_prefix(name: str, backend: str) -> None:
    golden, ops = GOLDEN[name], BACKENDS[backend]()
    model = tiny_model(ops, FAMILIES[name].checkpoint(golden["shapes"], SEED))
    prompt = prompt_of(golden["prompt_seed"])
    for chunk in (64, 7):
        assert logits_error(logits_of(model, ops, prompt, chunk), golden) < FAMILIES[name].tolerance, chunk
    assert generate_twice(model, ops, prompt, OUTPUT_LENGTH) == [(golden["greedy"], 0), (golden["greedy"], 48)]
    ops.close()


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.has_experts])
def test_rounded_weights_and_bfloat16_change_little(name: str) -> None:
    """The same layers over other formats: projections of int8, and weights and cache of bfloat16."""
    golden, ops = GOLDEN[name], CpuOps(1)
    checkpoint, prompt = FAMILIES[name].checkpoint(golden["shapes"], SEED), prompt_of(golden["prompt_seed"])
    for dtype, quantization in ((FLOAT32, Quantization(8)), (BFLOAT16, None)):
        weights = Weights(checkpoint, dtype, ops, quantization=quantization)
        model = build_model(read_model_config(checkpoint), weights, ops)
        assert logits_error(logits_of(model, ops, prompt, 64), golden) < 0.1, dtype
    ops.close()


def test_hidden_states_of_granite_are_not_divided_as_its_logits_are() -> None:
    golden, ops = GOLDEN["granite"], CpuOps(1)
    checkpoint, prompt = FAMILIES["granite"].checkpoint(golden["shapes"], SEED), prompt_of(golden["prompt_seed"])
    config = read_model_config(checkpoint)
    generates, embeds = (
        logits_of(build_model(replace(config, conversion=kind), Weights(checkpoint, FLOAT32, ops), ops), ops, prompt, 64)
        for kind in ("none", "embed")
    )
    assert config.raw["logits_scaling"] != 1.0
    np.testing.assert_allclose(embeds, generates * config.raw["logits_scaling"], rtol=1e-4, atol=1e-5)
    ops.close()
