"""From llama.cpp's names to Hugging Face's: one `GGUFFamily` per `general.architecture`.

A new family is one more entry of `FAMILIES`, with what differs from Llama.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

_LLAMA_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "blk.{}.attn_norm": "model.layers.{}.input_layernorm",
    "blk.{}.attn_q": "model.layers.{}.self_attn.q_proj",
    "blk.{}.attn_k": "model.layers.{}.self_attn.k_proj",
    "blk.{}.attn_v": "model.layers.{}.self_attn.v_proj",
    "blk.{}.attn_output": "model.layers.{}.self_attn.o_proj",
    "blk.{}.ffn_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_gate": "model.layers.{}.mlp.gate_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.up_proj",
    "blk.{}.ffn_down": "model.layers.{}.mlp.down_proj",
    "blk.{}.attn_rot_embd": "model.layers.{}.self_attn.rotary_emb.inv_freq",
}
_QWEN3_TENSORS = _LLAMA_TENSORS | {
    "blk.{}.attn_q_norm": "model.layers.{}.self_attn.q_norm",
    "blk.{}.attn_k_norm": "model.layers.{}.self_attn.k_norm",
}
_GEMMA2_TENSORS = _QWEN3_TENSORS | {
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.ffn_norm": "model.layers.{}.pre_feedforward_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
_PHI3_TENSORS = _LLAMA_TENSORS | {
    "blk.{}.attn_qkv": "model.layers.{}.self_attn.qkv_proj",
    "blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj",
}
_OLMO2_TENSORS = _QWEN3_TENSORS | {
    "blk.{}.post_attention_norm": "model.layers.{}.post_attention_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_feedforward_layernorm",
}
_GLM4_TENSORS = _LLAMA_TENSORS | {
    "blk.{}.post_attention_norm": "model.layers.{}.post_self_attn_layernorm",
    "blk.{}.post_ffw_norm": "model.layers.{}.post_mlp_layernorm",
    "blk.{}.ffn_up": "model.layers.{}.mlp.gate_up_proj",
}
_STARCODER2_TENSORS = _LLAMA_TENSORS | {
    "blk.{}.ffn_up": "model.layers.{}.mlp.c_fc",
    "blk.{}.ffn_down": "model.layers.{}.mlp.c_proj",
}
_LLAMA_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "vocab_size": "vocab_size",
}
_GEMMA2_KEYS = _LLAMA_KEYS | {
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
_GEMMA3_KEYS = _GEMMA2_KEYS | {
    "rope.freq_base_swa": "rope_local_base_freq",  # of newer files; the others have the usual one
    "attention.sliding_window_pattern": "sliding_window_pattern",
}
_GRANITE_KEYS = _LLAMA_KEYS | {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}
_STARCODER2_KEYS = _LLAMA_KEYS | {"attention.layer_norm_epsilon": "norm_epsilon"}
_SAMPLING_KEYS = {
    "general.sampling.temp": "temperature",
    "general.sampling.top_k": "top_k",
    "general.sampling.top_p": "top_p",
    "general.sampling.min_p": "min_p",
    "general.sampling.penalty_repeat": "repetition_penalty",
}
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_LAYER = re.compile(r"^blk\.(\d+)\.")


@dataclass(frozen=True)
class GGUFFamily:
    """How one `general.architecture` maps. Tensor names are without `.weight`/`.bias`, `{}` is the layer's number;
    keys are without the `<architecture>.` prefix."""

    architecture: str  # Hugging Face's class name
    model_type: str
    tensors: dict[str, str] = field(default_factory=lambda: _LLAMA_TENSORS)
    keys: dict[str, str] = field(default_factory=lambda: _LLAMA_KEYS)
    # tensors whose rows llama.cpp reorders for its interleaved rotary -> the key with their number of heads
    permuted: dict[str, str] = field(default_factory=dict)
    norm_offset: float = 0.0  # what llama.cpp adds to the weights of norms
    # layers of the one model whose scores are scaled by hidden_size / heads instead of the head's size, which no key says
    scaled_by_width: int | None = None
    constants: dict[str, Any] = field(default_factory=dict)  # keys of config.json that no metadata have

    def tensor_name(self, name: str) -> str | None:
        """Hugging Face's name of a tensor, None if the family has none for it."""
        stem, _, kind = name.rpartition(".")
        layer = _LAYER.match(name)
        pattern = _LAYER.sub("blk.{}.", stem)
        found = self.tensors.get(pattern)
        if found is None or kind not in ("weight", "bias"):
            return None
        suffix = "" if found.endswith("inv_freq") else f".{kind}"
        return found.format(layer[1] if layer else "") + suffix

    def permuted_heads_key(self, name: str) -> str | None:
        """The `hf_config` key of the number of heads by which the tensor's rows are permuted, None if they are not."""
        return self.permuted.get(_LAYER.sub("blk.{}.", name.rpartition(".")[0]))


_PERMUTED = {"blk.{}.attn_q": "num_attention_heads", "blk.{}.attn_k": "num_key_value_heads"}
FAMILIES = {
    "llama": GGUFFamily(
        "LlamaForCausalLM",
        "llama",
        permuted=_PERMUTED,
    ),
    "qwen2": GGUFFamily("Qwen2ForCausalLM", "qwen2"),
    "qwen3": GGUFFamily("Qwen3ForCausalLM", "qwen3", _QWEN3_TENSORS),
    "gemma": GGUFFamily("GemmaForCausalLM", "gemma", norm_offset=1.0),
    "gemma2": GGUFFamily("Gemma2ForCausalLM", "gemma2", _GEMMA2_TENSORS, _GEMMA2_KEYS, norm_offset=1.0, scaled_by_width=46),
    "gemma3": GGUFFamily(
        "Gemma3ForCausalLM",
        "gemma3_text",
        _GEMMA2_TENSORS,
        _GEMMA3_KEYS,
        norm_offset=1.0,
        scaled_by_width=62,
        constants={"rope_local_base_freq": 10000.0},
    ),
    "phi3": GGUFFamily("Phi3ForCausalLM", "phi3", _PHI3_TENSORS),
    "granite": GGUFFamily("GraniteForCausalLM", "granite", keys=_GRANITE_KEYS, permuted=_PERMUTED),
    "smollm3": GGUFFamily("SmolLM3ForCausalLM", "smollm3", permuted=_PERMUTED),
    "olmo2": GGUFFamily("Olmo2ForCausalLM", "olmo2", _OLMO2_TENSORS),
    "glm4": GGUFFamily("Glm4ForCausalLM", "glm4", _GLM4_TENSORS),
    "starcoder2": GGUFFamily("Starcoder2ForCausalLM", "starcoder2", _STARCODER2_TENSORS, _STARCODER2_KEYS),
}


def hugging_face_config(family: GGUFFamily, metadata: dict[str, Any]) -> dict[str, Any]:
    """config.json's keys from the metadata. What the tensors alone tell (vocabulary, tied head) is not in it."""
    prefix = metadata["general.architecture"]
    config: dict[str, Any] = {"architectures": [family.architecture], "model_type": family.model_type} | family.constants
    for key, name in family.keys.items():
        if f"{prefix}.{key}" in metadata:
            config[name] = metadata[f"{prefix}.{key}"]
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    rotated, heads = metadata.get(f"{prefix}.rope.dimension_count"), config.get("num_attention_heads")
    if isinstance(rotated, int) and isinstance(heads, int) and heads > 0:
        head_dim = config.get("head_dim", config.get("hidden_size", 0) // heads)
        if rotated != head_dim > 0:
            config["partial_rotary_factor"] = rotated / head_dim
    if config.get("sliding_window") == 0:
        del config["sliding_window"]
    if family.scaled_by_width is not None:
        widest = config.get("num_hidden_layers") == family.scaled_by_width
        config["query_pre_attn_scalar"] = config.get("hidden_size", 0) // (heads or 1) if widest else config.get("head_dim")
    scaling = _rope_scaling(prefix, metadata)
    if scaling:
        config["rope_scaling"] = scaling
    for name in ("bos_token_id", "eos_token_id", "padding_token_id"):
        if f"tokenizer.ggml.{name}" in metadata:
            config[name.replace("padding", "pad")] = metadata[f"tokenizer.ggml.{name}"]
    config["torch_dtype"] = "bfloat16"
    return config


def generation_config(metadata: dict[str, Any]) -> dict[str, Any]:
    """generation_config.json's keys: every id that ends a turn, and the sampling defaults that newer files carry."""
    config = {name: metadata[key] for key, name in _SAMPLING_KEYS.items() if key in metadata}
    eos = [metadata[f"tokenizer.ggml.{name}"] for name in _EOS_KEYS if f"tokenizer.ggml.{name}" in metadata]
    if eos:
        config["eos_token_id"] = list(dict.fromkeys(eos))
    return config


def _rope_scaling(prefix: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """rope_scaling in config.json's spelling; `{}` for none. Older files have only `rope.scale_linear`."""
    linear = metadata.get(f"{prefix}.rope.scale_linear")
    kind = metadata.get(f"{prefix}.rope.scaling.type", "linear" if linear else "none")
    if kind == "none":
        return {}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": metadata.get(f"{prefix}.rope.scaling.factor", linear)}
    names = {
        "attn_factor": "attention_factor",
        "yarn_beta_fast": "beta_fast",
        "yarn_beta_slow": "beta_slow",
    }
    for key, name in names.items():
        if f"{prefix}.rope.scaling.{key}" in metadata:
            scaling[name] = metadata[f"{prefix}.rope.scaling.{key}"]
    factor = scaling["factor"]
    if kind == "yarn" and "attention_factor" in scaling and isinstance(factor, int | float) and factor > 1:
        scaling["attention_factor"] *= 1 + 0.1 * math.log(factor)  # llama.cpp's comes on top of the usual one
    return scaling
