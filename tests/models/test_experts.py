"""Families with experts and with latents: their bits, their size, and quantized."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.numpy.ops import NumpyOps
from octavo.kernels.ops import Quantization
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.models.sizes import block_bytes, weights_bytes
from octavo.weights.checkpoint import Weights
from tests.golden.derive_families import SEED, load, prompt_of
from tests.models.backends import BACKENDS
from tests.models.driver import logits_of
from tests.models.families import FAMILIES
from tests.models.test_sizes import DTYPES, loaded_bytes
from tests.models.tiny import TinyCheckpoint

SHAPES = {name: golden["shapes"] for name, golden in load().items()}
NAMES = ["mixtral", "qwen2_moe", "gpt_oss_mxfp4", "deepseek_v2_lite", "deepseek_v3"]
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def checkpoint_of(name: str) -> TinyCheckpoint:
    return FAMILIES[name].checkpoint(SHAPES[name], SEED)


def logits(name: str, ops: Any, dtype: np.dtype[Any], chunk: int, quantization: Quantization | None = None) -> np.ndarray:
    checkpoint = checkpoint_of(name)
    weights = Weights(checkpoint, dtype, ops, quantization=quantization)
    return logits_of(build_model(read_model_config(checkpoint), weights, ops), ops, prompt_of(1), chunk)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_chunks(name: str, dtype: np.dtype[Any]) -> None:
    ops = CpuOps()
    whole = logits(name, ops, dtype, 64)
    for chunk in (1, 7):
        assert np.array_equal(logits(name, ops, dtype, chunk), whole), chunk
    ops.close()


@pytest.mark.parametrize("name", NAMES)
def test_experts_are_quantized_as_other_projections(name: str) -> None:
    """Close to the same rounding by the reference, and not what is not rounded."""
    ops, eight = CpuOps(), Quantization(8)
    rounded, plain = logits(name, ops, BFLOAT16, 64, eight), logits(name, ops, BFLOAT16, 64)
    reference = logits(name, NumpyOps(), BFLOAT16, 64, eight)
    size = np.abs(reference).max()
    assert 1e-4 * size < np.abs(rounded - plain).max()
    assert np.median(np.abs(rounded - reference).max(axis=1)) < 2e-2 * size, "a row may choose another expert"
    ops.close()


@pytest.mark.parametrize("quantization", [None, Quantization(8)], ids=str)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_they_are_said_to_take(
    backend: str, name: str, quantization: Quantization | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops, checkpoint = BACKENDS[backend](), checkpoint_of(name)
    counted = weights_bytes(read_model_config(checkpoint), checkpoint, BFLOAT16, ops, quantization)
    assert counted == loaded_bytes(checkpoint, BFLOAT16, ops, quantization, monkeypatch)


def test_the_cache_holds_latents() -> None:
    """24 numbers and 8 rotated ones for a token and layer, twice."""
    model, ops = read_model_config(checkpoint_of("deepseek_v3")), NumpyOps()
    assert block_bytes(model, 16, np.dtype(np.float32), ops) == 2 * 3 * (24 + 8) * 16 * 4
