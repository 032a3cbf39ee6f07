"""What families call the keys of config.json, and what they leave out of it."""

from __future__ import annotations

from typing import Any

_LARGEST = 1.7e308  # that a float holds; infinity and nan are not below it
# The name that the rest of Octavo uses -> what others use, the first found of which counts.
ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("n_embd",),
    "intermediate_size": ("ffn_dim", "n_inner", "ffn_hidden_size"),
    "num_hidden_layers": ("n_layer", "num_layers"),
    "num_attention_heads": ("n_head",),
    "num_key_value_heads": ("multi_query_group_num", "num_kv_heads"),
    "head_dim": ("kv_channels",),
    "vocab_size": ("padded_vocab_size",),
    "max_position_embeddings": ("n_positions", "seq_length", "model_max_length"),
    "rms_norm_eps": ("layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon", "norm_eps"),
    "hidden_act": ("hidden_activation", "activation_function"),
    "rope_theta": ("rotary_emb_base",),
    "partial_rotary_factor": ("rotary_pct",),
}
# Values that Transformers gives a family where its config.json has none; those of Llama are in `octavo.models.config`.
_LAYER_NORM: dict[str, Any] = {"rms_norm_eps": 1e-5}
_CHATGLM: dict[str, Any] = {"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5}
_GLM: dict[str, Any] = {
    "rms_norm_eps": 1.5625e-07,
    "partial_rotary_factor": 0.5,
    "attention_bias": True,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "max_position_embeddings": 131072,
}
_QWEN: dict[str, Any] = {"num_key_value_heads": 32, "max_position_embeddings": 32768, "max_window_layers": 28}
_QWEN_MOE: dict[str, Any] = _QWEN | {"num_key_value_heads": 16, "decoder_sparse_step": 1, "mlp_only_layers": []}
_GEMMA: dict[str, Any] = {
    "tie_word_embeddings": True,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
}
_GEMMA3: dict[str, Any] = _GEMMA | {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "rope_theta": 1000000.0,
    "rope_local_base_freq": 10000.0,
}
DEFAULTS: dict[str, dict[str, Any]] = {
    "ChatGLMForConditionalGeneration": _CHATGLM,
    "ChatGLMModel": _CHATGLM,
    "DeepseekV2ForCausalLM": {"topk_method": "greedy"},
    "DeepseekV3ForCausalLM": {
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "first_k_dense_replace": 3,
        "routed_scaling_factor": 2.5,
        "max_position_embeddings": 4096,
    },
    "GemmaForCausalLM": _GEMMA,
    "Gemma2ForCausalLM": _GEMMA | {"num_key_value_heads": 4, "sliding_window": 4096, "query_pre_attn_scalar": 256},
    "Gemma3ForCausalLM": _GEMMA3,
    "Gemma3ForConditionalGeneration": _GEMMA3,
    "GlmForCausalLM": _GLM,
    "Glm4ForCausalLM": _GLM,
    "GPT2LMHeadModel": _LAYER_NORM
    | {"tie_word_embeddings": True, "hidden_act": "gelu_new", "max_position_embeddings": 1024},
    "GPTNeoXForCausalLM": _LAYER_NORM | {"partial_rotary_factor": 0.25, "hidden_act": "gelu", "attention_bias": True},
    "GptOssForCausalLM": {
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "sliding_window": 128,
        "max_position_embeddings": 131072,
        "rope_theta": 150000.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    "MistralForCausalLM": {"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072},
    "MixtralForCausalLM": {
        "rms_norm_eps": 1e-5,
        "num_key_value_heads": 8,
        "rope_theta": 1000000.0,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 131072,
    },
    "Olmo2ForCausalLM": {"rms_norm_eps": 1e-5},
    "OPTForCausalLM": _LAYER_NORM | {"tie_word_embeddings": True, "hidden_act": "relu"},
    "Phi3ForCausalLM": {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096},
    "Qwen2ForCausalLM": _QWEN,
    "Qwen2MoeForCausalLM": _QWEN_MOE,
    "Qwen3ForCausalLM": _QWEN | {"head_dim": 128},
    "Qwen3MoeForCausalLM": _QWEN_MOE | {"num_key_value_heads": 4},
    "SmolLM3ForCausalLM": {
        "tie_word_embeddings": True,
        "num_key_value_heads": 4,
        "rope_theta": 2000000.0,
        "max_position_embeddings": 32768,
    },
    "Starcoder2ForCausalLM": _LAYER_NORM
    | {
        "tie_word_embeddings": True,
        "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh",
        "max_position_embeddings": 4096,
    },
}
# Of which null is a value: that there is no window, and that there are as many as heads.
_NULL_IS_A_VALUE = ("sliding_window", "num_key_value_heads")


def complete(raw: dict[str, Any], architecture: str) -> dict[str, Any]:
    """config.json with the usual name of every key that has another, and what the architecture leaves out. A missing key and
    null are the same, but for sliding_window and num_key_value_heads. Of a model that sees as well it is what describes the
    decoder."""
    text = raw.get("text_config")
    if isinstance(text, dict):
        of_both = {name: raw[name] for name in ("architectures", "eos_token_id") if name in raw}
        raw = raw | text | of_both
    found = dict(raw)
    for name, others in ALIASES.items():
        if found.get(name) is None:
            found[name] = next((raw[other] for other in others if raw.get(other) is not None), None)
    for name, value in DEFAULTS.get(architecture, {}).items():
        if found.get(name) is None and not (name in raw and name in _NULL_IS_A_VALUE):
            found[name] = value
    found |= _latent_head(found)
    return {name: value for name, value in found.items() if value is not None or name in raw}


def _latent_head(raw: dict[str, Any]) -> dict[str, Any]:
    """What stands for heads in the cache where all are made of one latent: it is the one KV head, with its rotated part."""
    latent, rotated = raw.get("kv_lora_rank"), raw.get("qk_rope_head_dim")
    if not (isinstance(latent, int) and isinstance(rotated, int) and is_whole(latent, 1) and is_whole(rotated, 1)):
        return {}
    size = latent + rotated
    return {"num_key_value_heads": 1, "head_dim": size, "partial_rotary_factor": rotated / size}


def stored_name(raw: dict[str, Any], name: str) -> str:
    """What config.json itself calls the key."""
    if raw.get(name) is not None:
        return name
    return next((other for other in ALIASES.get(name, ()) if raw.get(other) is not None), name)


# Larger numbers come from damaged files, and would be allocated before a tensor is looked at; of other sizes 2^31 - 1.
_MOST = {
    **dict.fromkeys(("num_hidden_layers", "num_local_experts", "num_experts", "n_routed_experts"), 2**16),
    **dict.fromkeys(("hidden_size", "head_dim"), 2**20),
}


def most_of(key: str) -> int:
    """The largest size that a key may have."""
    return _MOST.get(key, 2**31 - 1)


def at_most(key: str, value: Any) -> str:
    """What to say of the limit, where it is that which a value breaks."""
    return f" up to {most_of(key)}" if isinstance(value, int) and value > most_of(key) else ""


def is_whole(value: Any, least: int, most: int = 2**31 - 1) -> bool:
    """Whether it is an integer (true and false are none) from `least` to `most`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_positive(value: Any) -> bool:
    """Whether it is a finite number above 0."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < _LARGEST
