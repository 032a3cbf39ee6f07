"""A small random model of each family and of what its configurations may say, for the golden tests and the live ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.models.golden_values import TOLERANCE
from tests.models.tiny import TinyCheckpoint

Tensors = dict[str, NDArray[Any]]
_SMALL = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "dtype": "float32",
}
_GPT2 = {
    "vocab_size": 160,
    "n_embd": 64,
    "n_layer": 3,
    "n_head": 4,
    "n_positions": 256,
    "n_inner": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "dtype": "float32",
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 2.0,
}
E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
SHORT_FACTORS, LONG_FACTORS = [1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 2.0, 2.5], [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]
LONGROPE = {"type": "longrope", "short_factor": SHORT_FACTORS, "long_factor": LONG_FACTORS}


@dataclass(frozen=True)
class Family:
    """One small model: config.json; and where Transformers has no class for it, the configuration of the one that it
    equals, how the tensors of that one are stored in its own files, and what it makes of them while loading."""

    config: dict[str, Any]
    reference: dict[str, Any] | None = None
    stored: Callable[[Tensors], Tensors] | None = None
    loaded: Callable[[Tensors], Tensors] | None = None

    @property
    def tolerance(self) -> float:
        """Of logits: beside packed weights activations become integers of 16 bits, in the reference they do not."""
        return 10 * TOLERANCE if "quantization_config" in self.config else TOLERANCE

    @property
    def has_experts(self) -> bool:
        """So that a small difference may make a token choose another one."""
        return "num_experts_per_tok" in self.config

    @property
    def reference_config(self) -> dict[str, Any]:
        """config.json of the model in Transformers."""
        return self.config if self.reference is None else self.reference

    def checkpoint(self, shapes: dict[str, Any], seed: int) -> TinyCheckpoint:
        """With random tensors of the reference's names and `shapes`."""
        tensors = random_tensors(shapes, seed)
        return TinyCheckpoint(self.config, tensors if self.stored is None else self.stored(tensors))


def random_tensors(shapes: dict[str, Any], seed: int) -> Tensors:
    """Large enough that every part of a model moves the logits; the same on every machine."""
    random = np.random.RandomState(seed)  # its numbers are the same in every numpy
    tensors = {name: (random.standard_normal(shapes[name]) * 0.15).astype(np.float32) for name in sorted(shapes)}
    for name, tensor in tensors.items():
        is_norm = "norm" in name or ".ln_" in name
        tensor += np.float32(is_norm and name.endswith("weight"))
    return tensors


def _config(architecture: str, model_type: str, **changes: Any) -> dict[str, Any]:
    config = {"architectures": [architecture], "model_type": model_type} | _SMALL | changes
    return {name: value for name, value in config.items() if value is not None}


def _experts(tensors: Tensors, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Tensors:
    """One by one, as files have them, and not stacked, as Transformers has them."""
    gate, up, down = names
    stored = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for name in [name for name in tensors if name.endswith(".experts.gate_up_proj")]:
        block = name.removesuffix(".gate_up_proj")
        for number, (gate_up, downs) in enumerate(zip(tensors[name], tensors[f"{block}.down_proj"], strict=True)):
            first, second = np.split(gate_up, 2)
            each = {f"{gate}.weight": first, f"{up}.weight": second, f"{down}.weight": downs}
            stored |= {f"{block}.{number}.{part}": np.ascontiguousarray(tensor) for part, tensor in each.items()}
    return stored


def _mixtral(tensors: Tensors) -> Tensors:
    return _renamed(_experts(tensors, ("w1", "w3", "w2")), {".mlp.": ".block_sparse_moe."})


def _mxfp4_codes(tensor: NDArray[Any]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """[experts, in, out] -> nearest floats of 4 bits [experts, out, in / 32, 32], and exponents [experts, out, in / 32]."""
    groups = tensor.transpose(0, 2, 1).reshape(*tensor.shape[::2], -1, 32)
    exponents = np.ceil(np.log2(np.abs(groups).max(axis=-1) / 6))
    scaled = groups / 2 ** exponents[..., None]
    codes = np.abs(np.abs(scaled)[..., None] - E2M1).argmin(axis=-1) + 8 * (scaled < 0)
    return codes.astype(np.uint8), (exponents + 127).astype(np.uint8)


def _mxfp4(tensors: Tensors) -> Tensors:
    """As gpt-oss is published."""
    stored = {name: tensor for name, tensor in tensors.items() if not name.endswith(("gate_up_proj", "down_proj"))}
    for name in tensors.keys() - stored.keys():
        codes, exponents = _mxfp4_codes(tensors[name])
        stored |= {f"{name}_blocks": codes[..., ::2] | codes[..., 1::2] << 4, f"{name}_scales": exponents}
    return stored


def _as_mxfp4(tensors: Tensors) -> Tensors:
    """What that stands for."""
    loaded = dict(tensors)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        codes, exponents = _mxfp4_codes(tensors[name])
        values = np.array([*E2M1, *(-each for each in E2M1)])[codes] * 2.0 ** (exponents[..., None].astype(int) - 127)
        loaded[name] = np.ascontiguousarray(values.reshape(*codes.shape[:2], -1).transpose(0, 2, 1).astype(np.float32))
    return loaded


def _deepseek_v3(tensors: Tensors) -> Tensors:
    """With the layer behind the last, which predicts a further token."""
    return _experts(tensors) | {f"model.layers.3.{name}.weight": np.zeros(3, np.float32) for name in ("enorm", "eh_proj")}


def _chatglm(tensors: Tensors) -> Tensors:
    """As ChatGLM3 stores what Transformers calls Glm."""
    names = {
        "model.embed_tokens": "transformer.embedding.word_embeddings",
        "model.norm": "transformer.encoder.final_layernorm",
        "lm_head": "transformer.output_layer",
        "model.layers": "transformer.encoder.layers",
        "self_attn.o_proj": "self_attention.dense",
        "mlp.gate_up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
    }
    fused = _joined(tensors, "self_attn.{}_proj", "self_attention.query_key_value")
    return _renamed(fused, names) | {"transformer.rotary_pos_emb.inv_freq": np.zeros(4, np.float32)}


def _baichuan(tensors: Tensors) -> Tensors:
    """As Baichuan stores what Transformers calls Llama."""
    return _joined(tensors, "self_attn.{}_proj", "self_attn.W_pack")


def _pythia(tensors: Tensors) -> Tensors:
    """As the files of Pythia have it, with the buffers that old ones carry."""
    buffer = {"gpt_neox.layers.0.attention.masked_bias": np.zeros(1, np.float32)}
    return _renamed(tensors, {"lm_head": "embed_out"}) | buffer


def _with_unit_head(tensors: Tensors) -> Tensors:
    """As Baichuan 2 uses its head."""
    head = tensors["lm_head.weight"]
    return tensors | {"lm_head.weight": head / np.linalg.norm(head, axis=1, keepdims=True)}


def _seeing(tensors: Tensors) -> Tensors:
    """As the files of Gemma 3 have it that see as well."""
    stored = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    return stored | {"vision_tower.vision_model.post_layernorm.bias": np.zeros(3, np.float32)}


def _internlm2(tensors: Tensors) -> Tensors:
    """As InternLM2 stores what Transformers calls Llama: 2 KV heads, each behind its 2 queries, of 16."""
    names = {
        "model.embed_tokens": "model.tok_embeddings",
        "lm_head": "output",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    stored = dict(tensors)
    for name in [name for name in tensors if ".q_proj." in name]:
        parts = [stored.pop(name.replace("q_proj", part)) for part in ("q_proj", "k_proj", "v_proj")]
        groups = [part.reshape(2, -1, 16, part.shape[-1]) for part in parts]
        joined = np.concatenate(groups, axis=1).reshape(-1, parts[0].shape[-1])
        stored[name.replace("self_attn.q_proj", "attention.wqkv")] = joined
    return _renamed(stored, names)


def _joined(tensors: Tensors, parts: str, whole: str) -> Tensors:
    stored = dict(tensors)
    for name in [name for name in tensors if parts.format("q") in name]:
        rows = [stored.pop(name.replace(parts.format("q"), parts.format(part))) for part in "qkv"]
        stored[name.replace(parts.format("q"), whole)] = np.concatenate(rows)
    return stored


def _renamed(tensors: Tensors, names: dict[str, str]) -> Tensors:
    stored = {}
    for name, tensor in tensors.items():
        for old, new in names.items():
            name = name.replace(old, new)
        stored[name] = tensor
    return stored


def _baichuan_config(architecture: str, llama: dict[str, Any]) -> dict[str, Any]:
    config = llama | {"architectures": [architecture], "model_type": "baichuan", "model_max_length": 256}
    return {name: value for name, value in config.items() if name not in ("max_position_embeddings", "num_key_value_heads")}


_LLAMA = _config("LlamaForCausalLM", "llama")
_QWEN2 = _config("Qwen2ForCausalLM", "qwen2")
_GEMMA = {"head_dim": 16, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
_GEMMA2 = _GEMMA | {"query_pre_attn_scalar": 24, "sliding_window": 20}
_GEMMA3_OF_SEEING = {name: value for name, value in (_SMALL | _GEMMA2).items() if name != "tie_word_embeddings"} | {
    "sliding_window": 20,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
_GLM = {"head_dim": 16, "partial_rotary_factor": 0.5, "attention_bias": True, "rms_norm_eps": 1e-5}
_CHATGLM = {
    "architectures": ["ChatGLMModel"],
    "model_type": "chatglm",
    "padded_vocab_size": 160,
    "hidden_size": 64,
    "ffn_hidden_size": 96,
    "num_layers": 3,
    "num_attention_heads": 4,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "kv_channels": 16,
    "seq_length": 256,
    "layernorm_epsilon": 1e-5,
    "add_qkv_bias": True,
    "add_bias_linear": False,
    "rmsnorm": True,
    "post_layer_norm": True,
    "rope_ratio": 50,
    "torch_dtype": "float32",
}
_BAICHUAN = _LLAMA | {"num_key_value_heads": 4, "rms_norm_eps": 1e-6}
_BAICHUAN2 = _BAICHUAN | {"vocab_size": 125696, "hidden_size": 16}
_WINDOWS = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1}
_MIXTRAL = {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 16}
_QWEN_MOE = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 40, "intermediate_size": 72}
_GPT_OSS = {
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "head_dim": 16,
    "sliding_window": 20,
    "rope_scaling": YARN | {"truncate": False},
}
_DEEPSEEK = {
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 6,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "num_key_value_heads": 4,
}
_DEEPSEEK_YARN = YARN | {"mscale": 1.0, "mscale_all_dim": 1.0}
_DEEPSEEK_V3 = _DEEPSEEK | {
    "q_lora_rank": 32,
    "n_group": 3,
    "topk_group": 2,
    "norm_topk_prob": True,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "num_nextn_predict_layers": 1,
}
FAMILIES: dict[str, Family] = {
    "llama_yarn": Family(_LLAMA | {"rope_parameters": YARN}),
    "llama_dynamic": Family(
        _LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "rope_theta": 5000.0, "tie_word_embeddings": True}
    ),
    "mistral": Family(_config("MistralForCausalLM", "mistral", sliding_window=None, head_dim=24)),
    "mistral_window": Family(_config("MistralForCausalLM", "mistral", sliding_window=20, head_dim=16)),
    "qwen2": Family(_QWEN2),
    "qwen2_tied_yarn": Family(_QWEN2 | {"tie_word_embeddings": True, "rope_scaling": YARN}),
    "qwen2_windows": Family(_QWEN2 | _WINDOWS),
    "qwen3": Family(_config("Qwen3ForCausalLM", "qwen3", head_dim=24, tie_word_embeddings=True)),
    "qwen3_windows_biases": Family(_config("Qwen3ForCausalLM", "qwen3", head_dim=16, attention_bias=True, **_WINDOWS)),
    "mixtral": Family(_config("MixtralForCausalLM", "mixtral", **_MIXTRAL), stored=_mixtral),
    "mixtral_window": Family(_config("MixtralForCausalLM", "mixtral", **_MIXTRAL, sliding_window=20), stored=_mixtral),
    "qwen2_moe": Family(
        _config("Qwen2MoeForCausalLM", "qwen2_moe", **_QWEN_MOE, shared_expert_intermediate_size=56), stored=_experts
    ),
    "qwen2_moe_some_layers": Family(
        _config(
            "Qwen2MoeForCausalLM",
            "qwen2_moe",
            **_QWEN_MOE,
            shared_expert_intermediate_size=80,
            norm_topk_prob=True,
            decoder_sparse_step=2,
            qkv_bias=False,
            use_sliding_window=True,
            sliding_window=20,
        ),
        stored=_experts,
    ),
    "qwen3_moe": Family(
        _config("Qwen3MoeForCausalLM", "qwen3_moe", **_QWEN_MOE, head_dim=24, norm_topk_prob=True), stored=_experts
    ),
    "qwen3_moe_some_layers": Family(
        _config(
            "Qwen3MoeForCausalLM",
            "qwen3_moe",
            **_QWEN_MOE,
            head_dim=16,
            mlp_only_layers=[1],
            attention_bias=True,
            use_sliding_window=True,
            sliding_window=20,
        ),
        stored=_experts,
    ),
    "gpt_oss": Family(_config("GptOssForCausalLM", "gpt_oss", **_GPT_OSS)),
    "gpt_oss_mxfp4": Family(
        _config("GptOssForCausalLM", "gpt_oss", **_GPT_OSS, quantization_config={"quant_method": "mxfp4"}),
        _config("GptOssForCausalLM", "gpt_oss", **_GPT_OSS),
        _mxfp4,
        _as_mxfp4,
    ),
    "deepseek_v2_lite": Family(
        _config("DeepseekV2ForCausalLM", "deepseek_v2", **_DEEPSEEK, topk_method="greedy") | {"q_lora_rank": None},
        stored=_experts,
    ),
    "deepseek_v2": Family(
        _config(
            "DeepseekV2ForCausalLM",
            "deepseek_v2",
            **_DEEPSEEK,
            q_lora_rank=20,
            topk_method="group_limited_greedy",
            n_group=3,
            topk_group=2,
            rope_scaling=YARN | {"mscale": 0.7, "mscale_all_dim": 0.9},
        ),
        stored=_experts,
    ),
    "deepseek_v3": Family(
        _config("DeepseekV3ForCausalLM", "deepseek_v3", **_DEEPSEEK_V3, rope_scaling=_DEEPSEEK_YARN), stored=_deepseek_v3
    ),
    "deepseek_v3_plain": Family(
        _config(
            "DeepseekV3ForCausalLM",
            "deepseek_v3",
            **_DEEPSEEK_V3 | {"norm_topk_prob": False, "n_group": 1, "topk_group": 1, "rope_interleave": False},
            attention_bias=True,
        ),
        stored=_experts,
    ),
    "gemma": Family(_config("GemmaForCausalLM", "gemma", **_GEMMA)),
    "gemma2": Family(_config("Gemma2ForCausalLM", "gemma2", **_GEMMA2)),
    "gemma3": Family(
        _config(
            "Gemma3ForCausalLM",
            "gemma3_text",
            **(_GEMMA2 | {"sliding_window_pattern": 3, "rope_local_base_freq": 1000.0, "rope_theta": 20000.0}),
        )
    ),
    "gemma3_linear": Family(
        _config(
            "Gemma3ForCausalLM",
            "gemma3_text",
            **_GEMMA2,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 20000.0, "factor": 8.0},
            },
        )
    ),
    "gemma3_text_of_seeing": Family(
        {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": _GEMMA3_OF_SEEING},
        _config("Gemma3ForCausalLM", "gemma3_text", **_GEMMA3_OF_SEEING),
        _seeing,
    ),
    "phi3": Family(_config("Phi3ForCausalLM", "phi3", sliding_window=20)),
    "phi3_longrope": Family(_config("Phi3ForCausalLM", "phi3", rope_scaling=LONGROPE, original_max_position_embeddings=256)),
    "phi3_longrope_partial": Family(
        _config(
            "Phi3ForCausalLM",
            "phi3",
            head_dim=16,
            rope_scaling=LONGROPE | {"short_factor": SHORT_FACTORS[:6], "long_factor": LONG_FACTORS[:6]},
            original_max_position_embeddings=48,
            partial_rotary_factor=0.75,
        )
    ),
    "granite": Family(
        _config(
            "GraniteForCausalLM",
            "granite",
            embedding_multiplier=12.0,
            residual_multiplier=0.22,
            rms_norm_eps=1e-2,
            attention_multiplier=0.015625,
            logits_scaling=8.0,
            tie_word_embeddings=True,
        )
    ),
    "smollm3": Family(
        _config("SmolLM3ForCausalLM", "smollm3", no_rope_layers=[1, 0, 1], tie_word_embeddings=True, rope_theta=5000.0)
    ),
    "smollm3_interval": Family(_config("SmolLM3ForCausalLM", "smollm3", no_rope_layer_interval=2, attention_bias=True)),
    "olmo2": Family(_config("Olmo2ForCausalLM", "olmo2")),
    "glm": Family(_config("GlmForCausalLM", "glm", **_GLM)),
    "glm4": Family(_config("Glm4ForCausalLM", "glm4", **_GLM)),
    "chatglm": Family(_CHATGLM, _config("GlmForCausalLM", "glm", **_GLM, rope_theta=500000.0), _chatglm),
    "starcoder2": Family(_config("Starcoder2ForCausalLM", "starcoder2", sliding_window=20, tie_word_embeddings=True)),
    "gpt_neox": Family(
        _config("GPTNeoXForCausalLM", "gpt_neox", num_key_value_heads=None, rotary_pct=0.5, rotary_emb_base=5000),
        stored=_pythia,
    ),
    "gpt_neox_serial": Family(
        _config("GPTNeoXForCausalLM", "gpt_neox", num_key_value_heads=None, use_parallel_residual=False)
    ),
    "gpt2": Family({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"} | _GPT2),
    "opt": Family(
        _config(
            "OPTForCausalLM", "opt", num_key_value_heads=None, ffn_dim=96, word_embed_proj_dim=64, tie_word_embeddings=True
        )
    ),
    "opt_350m": Family(
        _config(
            "OPTForCausalLM",
            "opt",
            num_key_value_heads=None,
            ffn_dim=96,
            word_embed_proj_dim=32,
            do_layer_norm_before=False,
            tie_word_embeddings=True,
        )
    ),
    "internlm2": Family(
        _config("InternLM2ForCausalLM", "internlm2", bias=False, rope_theta=20000.0),
        _LLAMA | {"rope_theta": 20000.0},
        _internlm2,
    ),
    "internlm2_dynamic": Family(
        _config("InternLM2ForCausalLM", "internlm2", bias=False, rope_scaling={"type": "dynamic", "factor": 2.0}),
        _LLAMA | {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        _internlm2,
    ),
    "baichuan": Family(_baichuan_config("BaiChuanForCausalLM", _BAICHUAN), _BAICHUAN, _baichuan),
    "baichuan2": Family(_baichuan_config("BaichuanForCausalLM", _BAICHUAN2), _BAICHUAN2, _baichuan, _with_unit_head),
}
