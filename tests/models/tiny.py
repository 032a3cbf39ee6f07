"""Small random Llamas, the same on every machine, for tests and for the script that derives their golden values."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.ops import Ops
from octavo.models.config import read_model_config
from octavo.models.registry import Model, build_model
from octavo.weights.checkpoint import StoredProjection, Weights

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head_dim_not_hidden_over_heads": {"head_dim": 20},
    "llama3_rope": {"rope_parameters": LLAMA3_ROPE},
    "linear_rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}},
    "one_kv_head": {"num_key_value_heads": 1, "num_attention_heads": 6, "hidden_size": 48, "head_dim": 8},
    "no_shared_kv_heads": {"num_key_value_heads": 4},
}


def tiny_config(**changes: Any) -> dict[str, Any]:
    """config.json of a Llama with 2 layers and 160 tokens."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 160,
        "hidden_size": 64,
        "intermediate_size": 112,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
    }
    return config | changes


class TinyCheckpoint:
    """`octavo.weights.checkpoint.Checkpoint` in memory."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> None:
        self.path = Path("tiny")
        self.dtype = "float32"
        self.quantization_method = None
        self.hf_config = config
        self.generation_config: dict[str, Any] = {}
        self.tensors = tensors

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    def nbytes(self, name: str) -> int:
        return self.tensors[name].nbytes

    def read(self, name: str, dtype: np.dtype[Any], ops: Ops) -> NDArray[Any]:
        return self.tensors[name].astype(dtype, copy=False)

    def release(self, names: Iterable[str]) -> None:
        pass

    def projection(self, name: str) -> StoredProjection | None:
        return None


def tiny_checkpoint(config: dict[str, Any], seed: int = 0) -> TinyCheckpoint:
    """Random weights, large enough that every part of the model moves the logits."""
    random = np.random.RandomState(seed)  # its numbers are the same in every numpy
    shapes = tiny_shapes(config)
    tensors = {name: (random.standard_normal(shape) * 0.15).astype(np.float32) for name, shape in shapes.items()}
    for name, tensor in tensors.items():
        tensor += np.float32("norm" in name)
    return TinyCheckpoint(config, tensors)


def tiny_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Hugging Face's names and shapes."""
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    linears = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        shapes |= {f"{layer}.{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        for name, shape in linears.items():
            shapes[f"{layer}.{name}.weight"] = shape
            if config["mlp_bias" if name.startswith("mlp") else "attention_bias"]:
                shapes[f"{layer}.{name}.bias"] = shape[:1]
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def tiny_model(ops: Ops, checkpoint: TinyCheckpoint) -> Model:
    """Load it in float32."""
    return build_model(read_model_config(checkpoint), Weights(checkpoint, np.dtype(np.float32), ops), ops)
