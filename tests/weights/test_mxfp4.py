"""MXFP4 in files: read byte for byte, kept packed, and exactly what it stands for."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.config import EngineConfig
from octavo.engine.planning import plan_model
from octavo.errors import ConfigError, LoadError
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.numpy.ops import NumpyOps
from octavo.kernels.packed import PackedTensor
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.models.sizes import weights_bytes
from octavo.weights.checkpoint import Weights
from octavo.weights.loader import open_checkpoint
from octavo.weights.mxfp4 import mxfp4_tensor
from tests.golden.derive_families import SEED, load, prompt_of
from tests.models.backends import BACKENDS
from tests.models.driver import logits_of
from tests.models.families import FAMILIES
from tests.models.golden_values import TOLERANCE, logits_error
from tests.models.tiny import TinyCheckpoint

GOLDEN = load()["gpt_oss_mxfp4"]
DOWN = "model.layers.0.mlp.experts.down_proj"
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def small() -> TinyCheckpoint:
    return FAMILIES["gpt_oss_mxfp4"].checkpoint(GOLDEN["shapes"], SEED)


def written(folder: Path) -> Path:
    checkpoint = small()
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in checkpoint.tensors.items()}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(checkpoint.hf_config))
    return folder


def by_the_book(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """One number after the other: a table times a power of two, the lower half of a byte first."""
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = [*magnitudes, *(-each for each in magnitudes)]
    rows = []
    for row, exponents in zip(blocks.tolist(), scales.tolist(), strict=True):
        groups = zip(row, exponents, strict=True)
        halves = [(half, e) for group, e in groups for byte in group for half in (byte % 16, byte // 16)]
        rows.append([values[half] * 2.0 ** (e - 127) for half, e in halves])
    return np.array(rows)


def test_a_directory_as_it_is_published(tmp_path: Path) -> None:
    opened, ops = open_checkpoint(written(tmp_path)), CpuOps(1)
    assert opened.quantization_method == "mxfp4"
    model = build_model(read_model_config(opened), Weights(opened, np.dtype(np.float32), ops), ops)
    assert logits_error(logits_of(model, ops, prompt_of(GOLDEN["prompt_seed"]), 64), GOLDEN) < TOLERANCE
    ops.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_code_and_exponent(backend: str) -> None:
    """All that float32 reaches: what a backend stores is exactly that."""
    random, ops = np.random.default_rng(1), BACKENDS[backend]()
    blocks, scales = random.integers(0, 256, (255, 3, 16), np.uint8), random.integers(0, 250, (255, 3), np.uint8)
    blocks[:, 0], scales[:, 0] = np.arange(16), np.minimum(np.arange(255), 252)
    blocks[:, 1, 0] = np.arange(255)
    expected = by_the_book(blocks, scales)
    packed = mxfp4_tensor("scales", blocks, scales)
    assert np.array_equal(packed.dequantized(), expected)
    assert np.array_equal(ops.embedding(np.arange(255, dtype=np.int32), ops.linear_weight([packed])), expected)
    ops.close()


def test_experts_stay_packed(tmp_path: Path) -> None:
    """The matrices that a family takes, and what they take: 4.5 bits a number, of which bfloat16 has 16."""
    checkpoint, ops = small(), CpuOps(1)
    weights = Weights(checkpoint, BFLOAT16, ops, activation_bits=8)
    found = list(weights.take_matrices(DOWN, (5, 64, 96)))
    tensors = checkpoint.tensors
    for matrix, blocks, scales in zip(found, tensors[f"{DOWN}_blocks"], tensors[f"{DOWN}_scales"], strict=True):
        assert isinstance(matrix, PackedTensor)
        assert matrix.packing.activation_bits == 8
        assert np.array_equal(matrix.dequantized(), by_the_book(blocks, scales))
        assert np.array_equal(matrix[::2].dequantized(), by_the_book(blocks[::2], scales[::2]))
    experts = {"gpt_oss": 0, "gpt_oss_mxfp4": 0}
    for name in experts:
        stored = FAMILIES[name].checkpoint(load()[name]["shapes"], SEED)
        experts[name] = weights_bytes(read_model_config(stored), stored, BFLOAT16, ops)
    saved = 3 * 5 * 3 * 64 * 96 * (16 - 4.5) / 8  # layers, experts, matrices
    assert experts["gpt_oss"] - experts["gpt_oss_mxfp4"] == pytest.approx(saved, rel=0.02)
    ops.close()


def test_logits_are_those_of_the_unpacked_model() -> None:
    family, ops, logits = FAMILIES["gpt_oss_mxfp4"], CpuOps(1), []
    packed = small()
    plain = {name: tensor for name, tensor in packed.tensors.items() if not name.endswith(("_blocks", "_scales"))}
    for name in [name.removesuffix("_blocks") for name in packed.tensors if name.endswith("_blocks")]:
        pairs = zip(packed.tensors[f"{name}_blocks"], packed.tensors[f"{name}_scales"], strict=True)
        plain[name] = np.stack([by_the_book(*pair).T for pair in pairs]).astype(np.float32)
    for checkpoint in (packed, TinyCheckpoint(family.reference_config, plain)):
        weights = Weights(checkpoint, np.dtype(np.float32), ops)
        logits.append(logits_of(build_model(read_model_config(checkpoint), weights, ops), ops, prompt_of(1), 64))
    difference = np.abs(logits[0] - logits[1]).max() / np.abs(logits[1]).max()
    assert 0 < difference < 1e-3  # activations are of 16 bits
    ops.close()


def test_activations_of_8_bits_matter_most_where_they_choose_another_expert(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two experts of almost the same score: such a token's logits are another model's. With the experts that 16 bits chose
    it is as near as the other tokens."""
    chosen: list[np.ndarray] = []
    original = NumpyOps.experts

    def watched(self: NumpyOps, x: np.ndarray, routing: np.ndarray, *rest: Any) -> np.ndarray:
        chosen.append(routing.copy())
        return original(self, x, routing, *rest)

    def logits(bits: int, experts: Callable[..., np.ndarray]) -> np.ndarray:
        monkeypatch.setattr(NumpyOps, "experts", experts)
        ops, checkpoint = NumpyOps(), small()
        weights = Weights(checkpoint, np.dtype(np.float32), ops, activation_bits=bits)
        return logits_of(build_model(read_model_config(checkpoint), weights, ops), ops, prompt_of(1), 64)

    fine, coarse = logits(16, watched), logits(8, watched)
    first, second = chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]
    earlier = iter(first)
    led = logits(8, lambda self, x, routing, *rest: original(self, x, next(earlier), *rest))
    moved = np.any([((one > 0) != (two > 0)).any(axis=1) for one, two in zip(first, second, strict=True)], axis=0)
    errors, led_errors = (np.abs(each - fine).max(axis=1) / np.abs(fine).max() for each in (coarse, led))
    assert 0 < moved.sum() < 4
    assert errors[moved].max() > 0.1
    assert errors[~moved].max() < 0.04
    assert led_errors.max() < 0.04


def test_another_quantization_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path)
    config = EngineConfig(model=str(path), max_model_len=64, kv_cache_memory_bytes=4 << 20)
    assert plan_model(config, path).quantization is None
    with pytest.raises(ConfigError, match=r"--quantization int8 was given, but \S+ is quantized with mxfp4"):
        plan_model(EngineConfig(model=str(path), max_model_len=64, quantization="int8"), path)


def test_what_is_no_mxfp4_is_refused() -> None:
    checkpoint = small()
    scales = checkpoint.tensors[f"{DOWN}_scales"]
    for changed, words in (
        (scales[:, :-1], r"down_proj_scales has shape \[5, 63, 3\], but the configuration needs \[5, 64, 3\]"),
        (np.full_like(scales, 255), f"tensor {DOWN}_scales holds scales that are no numbers"),
    ):
        checkpoint.tensors[f"{DOWN}_scales"] = changed
        with pytest.raises(LoadError, match=words):
            build_model(read_model_config(checkpoint), Weights(checkpoint, np.dtype(np.float32), NumpyOps()), NumpyOps())
