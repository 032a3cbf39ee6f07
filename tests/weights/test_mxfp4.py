"""MXFP4 in files: read byte for byte, and unpacked to exactly what it stands for."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.errors import LoadError
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.numpy.ops import NumpyOps
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.weights.checkpoint import Weights
from octavo.weights.loader import open_checkpoint
from octavo.weights.mxfp4 import unpack_mxfp4
from tests.golden.derive_families import SEED, load, prompt_of
from tests.models.driver import logits_of
from tests.models.families import FAMILIES
from tests.models.golden_values import TOLERANCE, logits_error
from tests.models.tiny import TinyCheckpoint

GOLDEN = load()["gpt_oss_mxfp4"]


def small() -> TinyCheckpoint:
    return FAMILIES["gpt_oss_mxfp4"].checkpoint(GOLDEN["shapes"], SEED)


def test_a_directory_as_it_is_published(tmp_path: Path) -> None:
    checkpoint, ops = small(), CpuOps(1)
    tensors = {name: np.ascontiguousarray(tensor) for name, tensor in checkpoint.tensors.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(checkpoint.hf_config))
    opened = open_checkpoint(tmp_path)
    model = build_model(read_model_config(opened), Weights(opened, np.dtype(np.float32), ops), ops)
    assert logits_error(logits_of(model, ops, prompt_of(GOLDEN["prompt_seed"]), 64), GOLDEN) < TOLERANCE
    ops.close()


def test_every_code_and_exponent() -> None:
    blocks = np.arange(256, dtype=np.uint8).reshape(1, 16, 16)
    scales = np.arange(120, 136, dtype=np.uint8).reshape(1, 16)
    unpacked = unpack_mxfp4(blocks, scales, np.dtype(np.float32))
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = [*magnitudes, *(-each for each in magnitudes)]
    pairs = [(values[byte % 16], values[byte // 16]) for byte in range(256)]  # the lower half first
    expected = np.array(pairs).reshape(16, 32) * 2.0 ** (scales.reshape(16, 1).astype(float) - 127)
    assert np.array_equal(unpacked, expected.reshape(1, 512))
    for dtype in (ml_dtypes.bfloat16, np.float16):
        assert np.array_equal(unpack_mxfp4(blocks, scales, np.dtype(dtype)).astype(np.float32), unpacked)


def test_what_is_no_mxfp4_is_refused() -> None:
    checkpoint = small()
    name = "model.layers.0.mlp.experts.down_proj_scales"
    checkpoint.tensors[name] = checkpoint.tensors[name][:, :-1]
    with pytest.raises(
        LoadError, match=r"down_proj_scales has shape \[5, 63, 3\], but the configuration needs \[5, 64, 3\]"
    ):
        build_model(read_model_config(checkpoint), Weights(checkpoint, np.dtype(np.float32), NumpyOps()), NumpyOps())
