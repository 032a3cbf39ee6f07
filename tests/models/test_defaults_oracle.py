"""What a family's config.json leaves out, against what Transformers takes for it."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.models.config import ModelConfig, read_model_config
from tests.models.tiny import TinyCheckpoint

pytestmark = pytest.mark.oracle

SIZES = {
    "vocab_size": 512,
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 64,
    "intermediate_size": 64,
}
GPT2_SIZES = {"vocab_size": 512, "n_embd": 4096, "n_layer": 32, "n_head": 64}
TYPES = {
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gpt_neox",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "GemmaForCausalLM": "gemma",
    "Glm4ForCausalLM": "glm4",
    "GlmForCausalLM": "glm",
    "GptOssForCausalLM": "gpt_oss",
    "GraniteForCausalLM": "granite",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "OPTForCausalLM": "opt",
    "Olmo2ForCausalLM": "olmo2",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "SmolLM3ForCausalLM": "smollm3",
    "Starcoder2ForCausalLM": "starcoder2",
}
EPSILONS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")


def ours(architecture: str, **more: Any) -> ModelConfig:
    sizes = GPT2_SIZES if architecture == "GPT2LMHeadModel" else SIZES
    return read_model_config(TinyCheckpoint({"architectures": [architecture], **sizes, **more}, {}))


def theirs(architecture: str, **more: Any) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    sizes = GPT2_SIZES if architecture == "GPT2LMHeadModel" else SIZES
    return CONFIG_MAPPING[TYPES[architecture]](**sizes, **more)


@pytest.mark.parametrize("architecture", TYPES)
def test_sizes_norms_and_ties(architecture: str) -> None:
    found, expected = ours(architecture), theirs(architecture)
    assert found.max_position_embeddings == expected.max_position_embeddings
    assert found.tie_word_embeddings == expected.tie_word_embeddings
    epsilon = next((getattr(expected, name) for name in EPSILONS if hasattr(expected, name)), 1e-5)  # OPT: of torch
    assert found.norm_epsilon == epsilon
    has_latents = hasattr(expected, "kv_lora_rank")  # of which one stands for all heads
    assert found.num_kv_heads == (getattr(expected, "num_key_value_heads", None) or 64) or has_latents
    assert found.head_dim == (getattr(expected, "head_dim", None) or 64) or has_latents


@pytest.mark.parametrize("architecture", TYPES)
@pytest.mark.parametrize("is_asked", [False, True])
def test_windows(architecture: str, is_asked: bool) -> None:
    more: dict[str, Any] = {"use_sliding_window": True, "sliding_window": 24} if is_asked else {}
    expected = theirs(architecture, **more)
    window = (expected.sliding_window or None) if hasattr(theirs(architecture), "sliding_window") else None
    types = getattr(expected, "layer_types", None) or ["sliding_attention"] * SIZES["num_hidden_layers"]
    windows = tuple(window if kind == "sliding_attention" else None for kind in types)
    assert ours(architecture, **more).layer_windows == windows


@pytest.mark.parametrize("architecture", [name for name in TYPES if name not in ("GPT2LMHeadModel", "OPTForCausalLM")])
def test_rotations(architecture: str) -> None:
    found, expected = ours(architecture), theirs(architecture).rope_parameters
    local = expected.get("sliding_attention")
    assert_same(found.rope, expected.get("full_attention", expected))
    assert (found.local_rope is None) == (local is None)
    if local is not None:
        assert_same(found.local_rope or {}, local)


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """beta_fast, beta_slow and partial_rotary_factor may be left out where they are the usual ones."""
    usual = {"beta_fast": 32.0, "beta_slow": 1.0, "partial_rotary_factor": 1.0}
    assert usual | found == usual | expected
