"""GGUF files of several families, written as llama.cpp's conversion writes them, by the gguf library."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf.constants import MODEL_ARCH

from octavo.kernels.ops import Ops
from octavo.models.config import read_model_config
from octavo.models.registry import Model, build_model
from octavo.weights.checkpoint import Weights
from octavo.weights.loader import open_checkpoint
from tests.golden.derive_families import SEED, load, prompt_of
from tests.models.backends import BACKENDS
from tests.models.driver import logits_of
from tests.models.families import FAMILIES
from tests.models.golden_values import TOLERANCE, logits_error
from tests.models.tiny import TinyCheckpoint, tiny_model

GOLDEN = load()
FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True)
class Conversion:
    """What llama.cpp does with a family beside renaming, and the keys that its files have beside those of all."""

    architecture: MODEL_ARCH
    norm_offset: float = 0.0
    is_permuted: bool = False  # rows of q and k, for a rotation of neighbours
    keys: dict[str, Any] = field(default_factory=dict)  # without the architecture's prefix
    config: dict[str, Any] = field(default_factory=dict)  # of config.json, where no file can say it otherwise


CONVERSIONS = {
    "qwen2": Conversion(MODEL_ARCH.QWEN2),
    "qwen2_tied_yarn": Conversion(
        MODEL_ARCH.QWEN2,
        keys={
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 64,
            "rope.scaling.yarn_beta_fast": 2.0,
        },
    ),
    "qwen3": Conversion(MODEL_ARCH.QWEN3),
    "granite": Conversion(
        MODEL_ARCH.GRANITE,
        is_permuted=True,
        keys={"attention.scale": 0.015625, "embedding_scale": 12.0, "residual_scale": 0.22, "logit_scale": 8.0},
    ),
    "smollm3": Conversion(MODEL_ARCH.SMOLLM3, is_permuted=True, config={"no_rope_layers": [1, 1, 1]}),  # of every 4
    "olmo2": Conversion(MODEL_ARCH.OLMO2),
    "glm4": Conversion(MODEL_ARCH.GLM4, keys={"rope.dimension_count": 8}),
    "starcoder2": Conversion(MODEL_ARCH.STARCODER2),
    "gemma": Conversion(MODEL_ARCH.GEMMA, 1.0),
    "gemma2": Conversion(
        MODEL_ARCH.GEMMA2,
        1.0,
        keys={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        config={"query_pre_attn_scalar": 16},  # llama.cpp takes the head's size
    ),
    "gemma3": Conversion(
        MODEL_ARCH.GEMMA3,
        1.0,
        config={"query_pre_attn_scalar": 16, "sliding_window_pattern": 6, "rope_local_base_freq": 10000.0},
    ),
    "gemma3 with newer keys": Conversion(
        MODEL_ARCH.GEMMA3,
        1.0,
        keys={"rope.freq_base_swa": 1000.0, "attention.sliding_window_pattern": 3},
        config={"query_pre_attn_scalar": 16},
    ),
    "phi3": Conversion(MODEL_ARCH.PHI3),
    "phi3_longrope_partial": Conversion(
        MODEL_ARCH.PHI3,
        keys={
            "rope.scaling.original_context_length": 48,
            "rope.scaling.attn_factor": math.sqrt(1 + math.log(256 / 48) / math.log(48)),
            "rope.dimension_count": 12,
        },
    ),
}


def write(path: Path, checkpoint: TinyCheckpoint, conversion: Conversion) -> Path:
    """The file, with the library's own names for tensors and keys."""
    config, name = read_model_config(checkpoint), gguf.MODEL_ARCH_NAMES[conversion.architecture]
    writer = gguf.GGUFWriter(path, name)
    writer.add_block_count(config.num_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    if conversion.architecture == MODEL_ARCH.STARCODER2:
        writer.add_layer_norm_eps(config.norm_epsilon)
    else:
        writer.add_layer_norm_rms_eps(config.norm_epsilon)
    writer.add_rope_freq_base(config.rope["rope_theta"])
    writer.add_sliding_window(config.raw.get("sliding_window") or 0)
    for key, value in conversion.keys.items():
        add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}[type(value)]
        add(f"{name}.{key}", value)
    names = gguf.get_tensor_name_map(conversion.architecture, config.num_layers)
    for tensor_name, tensor in checkpoint.tensors.items():
        renamed = names.get_name(tensor_name, (".weight", ".bias"))
        assert renamed is not None
        offset = conversion.norm_offset if tensor_name.endswith("norm.weight") else 0.0
        if conversion.is_permuted and tensor_name.endswith(("q_proj.weight", "k_proj.weight")):
            tensor = np.swapaxes(tensor.reshape(-1, 2, config.head_dim // 2, tensor.shape[1]), 1, 2).reshape(tensor.shape)
        writer.add_tensor(renamed, np.ascontiguousarray(tensor + np.float32(offset)))
    for kind in ("short", "long"):
        if (factors := config.rope.get(f"{kind}_factor")) is not None:
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def model_of(path: Path, ops: Ops) -> Model:
    checkpoint = open_checkpoint(path)
    return build_model(read_model_config(checkpoint), Weights(checkpoint, FLOAT32, ops), ops)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CONVERSIONS)
def test_a_gguf_file_is_the_same_model(name: str, backend: str, tmp_path: Path) -> None:
    family = name.split()[0]
    conversion, ops, golden = CONVERSIONS[name], BACKENDS[backend](), GOLDEN[family]
    checkpoint = FAMILIES[family].checkpoint(golden["shapes"], SEED)
    prompt, changes = prompt_of(golden["prompt_seed"]), conversion.config
    checkpoint.hf_config = checkpoint.hf_config | changes
    logits = logits_of(model_of(write(tmp_path / "m.gguf", checkpoint, conversion), ops), ops, prompt, 17)
    expected = logits_of(tiny_model(ops, checkpoint), ops, prompt, 17)
    assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()  # norms lose a bit by their offset
    if not changes:
        assert logits_error(logits, golden) < TOLERANCE
    ops.close()
