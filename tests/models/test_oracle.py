"""Live against Transformers: every position of a 512-token prompt however it is cut, greedy ids, and the golden values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.kernels.ops import Ops
from octavo.models.registry import Model
from tests.golden import derive_llama, derive_scores
from tests.golden.derive_llama import OUTPUT_LENGTH, TINY_SEED, load, tiny_prompt
from tests.models.backends import BACKENDS
from tests.models.driver import logits_of
from tests.models.golden_values import TOLERANCE
from tests.models.smollm2 import generate, load_model
from tests.models.tiny import VARIANTS, tiny_checkpoint, tiny_config, tiny_model
from tests.tools.write_safetensors import smollm2_directory

pytestmark = pytest.mark.oracle
GOLDEN = load()


def assert_same_logits(
    model: Model, ops: Ops, prompt: list[int], expected: np.ndarray, chunks: tuple[int, ...] = (512, 7, 1)
) -> None:
    for chunk in chunks:
        error = np.abs(logits_of(model, ops, prompt, chunk) - expected).max() / np.abs(expected).max()
        assert error < TOLERANCE, chunk


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_tiny_logits_at_every_position(variant: str, backend: str) -> None:
    from tests.golden.transformers_reference import reference_logits, tiny_reference

    ops, checkpoint = BACKENDS[backend](), tiny_checkpoint(tiny_config(**VARIANTS[variant]), TINY_SEED)
    expected = reference_logits(tiny_reference(checkpoint), tiny_prompt())
    assert_same_logits(tiny_model(ops, checkpoint), ops, tiny_prompt(), expected)
    ops.close()


@pytest.mark.parametrize(("source", "backend"), [("gguf", "numpy"), ("gguf", "cpu"), ("safetensors", "cpu")])
def test_smollm2_logits_at_every_position(smollm2: Path, source: str, backend: str) -> None:
    from tests.golden.transformers_reference import directory_reference, gguf_reference, reference_logits

    folder = smollm2_directory("float32")
    reference = gguf_reference(smollm2)[0] if source == "gguf" else directory_reference(folder)
    prompt, ops = GOLDEN["smollm2"]["prompt"], BACKENDS[backend]()
    model = load_model(smollm2 if source == "gguf" else folder, ops)
    chunks = (512, 100) if backend == "numpy" else (512, 7, 1)  # numpy reads all weights in float32 for each
    assert_same_logits(model, ops, prompt, reference_logits(reference, prompt), chunks)
    ops.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_smollm2_greedy_ids(smollm2: Path, backend: str) -> None:
    """Against the stored ids, which the next test derives again."""
    prompts, outputs = ([each[key] for each in GOLDEN["smollm2"]["greedy"]] for key in ("prompt", "output"))
    ops = BACKENDS[backend]()
    assert generate(load_model(smollm2, ops), ops, prompts, OUTPUT_LENGTH) == outputs
    ops.close()


def test_golden_values_are_what_transformers_says(smollm2: Path) -> None:
    assert_close(derive_llama.derive(smollm2), GOLDEN)


def assert_close(found: Any, stored: Any) -> None:
    """Equal, but for the last digits of numbers with a fraction."""
    if isinstance(stored, dict):
        assert found.keys() == stored.keys()
        for key, value in stored.items():
            assert_close(found[key], value)
    elif isinstance(stored, list):
        assert len(found) == len(stored)
        for one, other in zip(found, stored, strict=True):
            assert_close(one, other)
    elif isinstance(stored, float):
        assert found == pytest.approx(stored, abs=1e-3)
    else:
        assert found == stored


def test_the_stored_scores_are_still_what_transformers_says(smollm2: Path) -> None:
    """What lm-eval is to find (tests/clients/test_lm_eval.py)."""
    derived, stored = derive_scores.derive(smollm2), derive_scores.load()
    for now, then in zip(derived, stored, strict=True):
        assert [score["logprob"] for score in now] == pytest.approx([score["logprob"] for score in then], abs=2e-4)
        assert [score["is_greedy"] for score in now] == [score["is_greedy"] for score in then]
