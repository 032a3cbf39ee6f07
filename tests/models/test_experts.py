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
from octavo.models.sizes import block_bytes
from octavo.weights.checkpoint import Weights
from tests.golden.derive_families import SEED, load, prompt_of
from tests.models.driver import logits_of
from tests.models.families import FAMILIES
from tests.models.tiny import TinyCheckpoint

SHAPES = {name: golden["shapes"] for name, golden in load().items()}
NAMES = ["mixtral", "qwen2_moe", "gpt_oss_mxfp4", "deepseek_v2_lite", "deepseek_v3"]
FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)


def checkpoint_of(name: str) -> TinyCheckpoint:
    return FAMILIES[name].checkpoint(SHAPES[name], SEED)


def logits(name: str, ops: Any, dtype: np.dtype[Any], chunk: int, quantization: Quantization | None = None) -> np.ndarray:
    checkpoint = checkpoint_of(name)
    weights = Weights(checkpoint, dtype, ops, quantization=quantization)
    return logits_of(build_model(read_model_config(checkpoint), weights, ops), ops, prompt_of(1), chunk)


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_bits_do_not_depend_on_chunks(name: str, dtype: np.dtype[Any]) -> None:
    ops = CpuOps()
    whole = logits(name, ops, dtype, 64)
    for chunk in (1, 7):
        assert np.array_equal(logits(name, ops, dtype, chunk), whole), chunk
    ops.close()


@pytest.mark.parametrize("name", NAMES)
def test_rounded_experts_and_bfloat16_change_little(name: str) -> None:
    """As of other families, but that a row may choose another expert."""
    ops = CpuOps(1)
    plain = logits(name, ops, FLOAT32, 64)
    for dtype, quantization in ((FLOAT32, Quantization(8)), (BFLOAT16, None)):
        rounded = logits(name, ops, dtype, 64, quantization)
        errors = np.abs(rounded - plain).max(axis=1) / np.abs(plain).max()
        assert 1e-4 < np.median(errors) < 0.05, dtype
    ops.close()


def test_the_cache_holds_latents() -> None:
    """32 numbers and 8 rotated ones for a token and layer, twice."""
    model, ops = read_model_config(checkpoint_of("deepseek_v3")), NumpyOps()
    assert block_bytes(model, 16, np.dtype(np.float32), ops) == 2 * 3 * (32 + 8) * 16 * 4
