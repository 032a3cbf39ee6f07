"""config.json of published models, as far as it tells a family's shape: what is made of it."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig, read_model_config
from tests.models.tiny import TinyCheckpoint

PYTHIA = {
    "architectures": ["GPTNeoXForCausalLM"],
    "hidden_act": "gelu",
    "hidden_size": 768,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-05,
    "max_position_embeddings": 2048,
    "model_type": "gpt_neox",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "rotary_emb_base": 10000,
    "rotary_pct": 0.25,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_parallel_residual": True,
    "vocab_size": 50304,
    "eos_token_id": 0,
}
GPT2 = {
    "activation_function": "gelu_new",
    "architectures": ["GPT2LMHeadModel"],
    "eos_token_id": 50256,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}
GLM4 = {
    "architectures": ["ChatGLMModel"],
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "eos_token_id": [151329, 151336, 151338],
    "ffn_hidden_size": 13696,
    "hidden_size": 4096,
    "kv_channels": 128,
    "layernorm_epsilon": 1.5625e-07,
    "model_type": "chatglm",
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 32,
    "num_layers": 40,
    "padded_vocab_size": 151552,
    "rope_ratio": 500,
    "seq_length": 131072,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
PHI3_128K = {
    "architectures": ["Phi3ForCausalLM"],
    "eos_token_id": 32000,
    "hidden_act": "silu",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "model_type": "phi3",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {"long_factor": [1.5] * 48, "short_factor": [1.0] * 48, "type": "su"},
    "rope_theta": 10000.0,
    "sliding_window": 262144,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32064,
}
GEMMA3_4B = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "eos_token_id": [1, 106],
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "torch_dtype": "bfloat16",
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16},
}
OPT = {
    "activation_function": "relu",
    "architectures": ["OPTForCausalLM"],
    "do_layer_norm_before": True,
    "eos_token_id": 2,
    "ffn_dim": 3072,
    "hidden_size": 768,
    "max_position_embeddings": 2048,
    "model_type": "opt",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "torch_dtype": "float16",
    "vocab_size": 50272,
    "word_embed_proj_dim": 768,
}


MIXTRAL = {
    "architectures": ["MixtralForCausalLM"],
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 32768,
    "model_type": "mixtral",
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "rms_norm_eps": 1e-05,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 32000,
}
GPT_OSS_20B = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "eos_token_id": 200002,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "eos_token_id": 100001,
    "first_k_dense_replace": 1,
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "kv_lora_rank": 512,
    "max_position_embeddings": 163840,
    "model_type": "deepseek_v2",
    "moe_intermediate_size": 1408,
    "n_group": 1,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "norm_topk_prob": False,
    "num_attention_heads": 16,
    "num_experts_per_tok": 6,
    "num_hidden_layers": 27,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-06,
    "rope_scaling": {
        "beta_fast": 32,
        "beta_slow": 1,
        "factor": 40,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 10000,
    "routed_scaling_factor": 1.0,
    "scoring_func": "softmax",
    "topk_group": 1,
    "topk_method": "greedy",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 102400,
}


def read(config: dict[str, Any]) -> ModelConfig:
    return read_model_config(TinyCheckpoint(config, {}))


@pytest.mark.parametrize(
    ("config", "shape", "epsilon", "ties", "positions", "inner"),
    [
        (PYTHIA, (12, 12, 12, 64), 1e-5, False, 2048, 3072),
        (GPT2, (12, 12, 12, 64), 1e-5, True, 1024, 3072),
        (GLM4, (40, 32, 2, 128), 1.5625e-07, False, 131072, 13696),
        (PHI3_128K, (32, 32, 32, 96), 1e-5, False, 131072, 8192),
        (GEMMA3_4B, (34, 8, 4, 256), 1e-6, True, 131072, 10240),
        (OPT, (12, 12, 12, 64), 1e-5, True, 2048, 3072),
        (MIXTRAL, (32, 32, 8, 128), 1e-5, False, 32768, 14336),
        (GPT_OSS_20B, (24, 64, 8, 64), 1e-5, False, 131072, 2880),
        (DEEPSEEK_V2_LITE, (27, 16, 1, 576), 1e-6, False, 163840, 10944),
    ],
)
def test_shapes(
    config: dict[str, Any], shape: tuple[int, int, int, int], epsilon: float, ties: bool, positions: int, inner: int
) -> None:
    model = read(config)
    assert (model.num_layers, *model.qkv_heads) == shape
    assert (model.norm_epsilon, model.tie_word_embeddings) == (epsilon, ties)
    assert (model.max_position_embeddings, model.intermediate_size) == (positions, inner)


def test_what_the_rotation_is() -> None:
    assert read(PYTHIA).rope == {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.25}
    assert read(GLM4).rope["partial_rotary_factor"] == 0.5
    phi = read(PHI3_128K)
    assert (phi.rope["rope_type"], phi.rope["original_max_position_embeddings"]) == ("longrope", 4096)
    gemma = read(GEMMA3_4B)
    assert gemma.rope == {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}
    assert gemma.local_rope == {"rope_type": "default", "rope_theta": 10000.0}


def test_windows_vocabulary_and_ends() -> None:
    gemma = read(GEMMA3_4B)
    assert gemma.layer_windows == tuple(None if i % 6 == 5 else 1024 for i in range(34))
    assert (gemma.vocab_size, gemma.dtype, gemma.eos_token_ids) == (262208, "bfloat16", (1, 106))
    assert read(GLM4).vocab_size == 151552
    assert read(PHI3_128K).layer_windows == (262144,) * 32
    assert read(OPT).layer_windows == (None,) * 12
    assert read(MIXTRAL).layer_windows == (None,) * 32
    assert read(GPT_OSS_20B).layer_windows == (128, None) * 12
    assert (read(GPT_OSS_20B).cache_window, read(PHI3_128K).cache_window) == (None, 262144)


def test_the_rotated_part_of_a_latent() -> None:
    assert Rotary(read(DEEPSEEK_V2_LITE)).table(1).shape[1] == 64
