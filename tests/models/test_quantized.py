"""SmolLM2 with quantized weights stays close to itself in float32."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.ops import Array, Quantization
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.text.tokenizer import load_tokenizer
from octavo.weights.checkpoint import Weights
from octavo.weights.loader import open_checkpoint
from tests.models.driver import logits_of

TEXT = Path(__file__).parent.parent.parent / "benchmarks" / "alice.txt"
TOKENS = 200


def log_probabilities(path: Path, ids: list[int], quantization: Quantization | None) -> NDArray[np.float64]:
    """[tokens, vocabulary], weights of bfloat16 where they are not quantized; of float32 for None."""
    ops, checkpoint = CpuOps(), open_checkpoint(path)
    dtype = np.dtype(np.float32 if quantization is None else ml_dtypes.bfloat16)
    weights = Weights(checkpoint, dtype, ops, quantization=quantization)
    logits: Array = logits_of(build_model(read_model_config(checkpoint), weights, ops), ops, ids, TOKENS)
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    result: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


@pytest.fixture(scope="module")
def reference(smollm2: Path) -> tuple[list[int], NDArray[np.float64]]:
    ids = load_tokenizer(smollm2).encode(TEXT.read_text(encoding="utf-8"))[:TOKENS]
    return ids, log_probabilities(smollm2, ids, None)


@pytest.mark.parametrize(
    ("quantization", "most"),
    [
        (Quantization(8), 0.006),
        (Quantization(8, activation_bits=8), 0.013),
        (Quantization(4, 32), 0.003),  # the file is of 4 bits in groups of 32 itself
        (Quantization(4, 32, 8), 0.008),
        (Quantization(8, is_float=True), 0.04),
    ],
    ids=str,
)
def test_divergence(
    smollm2: Path, reference: tuple[list[int], NDArray[np.float64]], quantization: Quantization, most: float
) -> None:
    """Nats per token over a short text; benchmarks/quality.py measures 4,000 tokens."""
    ids, expected = reference
    got = log_probabilities(smollm2, ids, quantization)
    divergence = float((np.exp(expected) * (expected - got)).sum(axis=1).mean())
    assert 0 < divergence < most
