"""What a family does not support stops the load with one line that names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.errors import LoadError
from octavo.kernels.numpy.ops import NumpyOps
from tests.golden.derive_families import SEED, load
from tests.models.families import FAMILIES, YARN
from tests.models.tiny import tiny_checkpoint, tiny_config, tiny_model

SHAPES = {name: values["shapes"] for name, values in load().items()}


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("qwen2", {"rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}}, "rope type 'mrope' is not supported"),
        (
            "qwen2",
            {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 2, 2]}},
            "rope type 'mrope' is not supported; supported: default, dynamic, factors, linear, llama3, longrope, yarn",
        ),
        (
            "qwen2",
            {"rope_scaling": {"rope_type": "yarn"}},
            r"factor of rope_scaling \(yarn\) must be a positive number, but is",
        ),
        (
            "qwen2",
            {"rope_scaling": YARN | {"factor": -1}},
            r"factor of rope_scaling \(yarn\) must be a positive number, but is",
        ),
        ("qwen2", {"rope_scaling": YARN | {"beta_fast": "x"}}, "beta_fast of the rope parameters must be a positive number"),
        ("qwen3", {"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "type 'linear_attention'"),
        ("qwen2", {"is_causal": False}, "is_causal false is not supported: decoders attend to what comes before a token"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention true is not supported: decoders"),
        (
            "llama_yarn",
            {"rope_parameters": YARN | {"rope_theta": 1.0}},
            "rope parameters contradict each other: yarn makes no",
        ),
        ("qwen2", {"rope_scaling": {"rope_type": "dynamic", "factor": 1e300}}, "contradict each other: dynamic makes no"),
        ("qwen3", {"layer_types": ["full_attention", [], {}]}, "layer_types .* must be a list with one type for each"),
        (
            "qwen3_windows_biases",
            {"max_window_layers": [1]},
            r"max_window_layers .* must be 0 or a positive integer, but is \[1\]",
        ),
        ("gemma2", {"sliding_window_pattern": "x"}, "sliding_window_pattern .* must be 0 or a positive integer, but is 'x'"),
        ("gemma2", {"sliding_window": 2**63}, "sliding_window .* must be a positive integer up to 2147483647, but is"),
        ("gemma2", {"attn_logit_softcapping": {}}, "attn_logit_softcapping .* must be a positive number, but is {}"),
        ("gpt2", {"activation_function": ["relu"]}, r"hidden_act \[.relu.\] is not supported; supported: silu, "),
        (
            "qwen2",
            {"num_hidden_layers": 10**9},
            "num_hidden_layers .* must be a positive integer up to 65536, but is 1000000000",
        ),
        ("qwen2", {"head_dim": 2**31}, "head_dim .* must be a positive integer up to 1048576, but is 2147483648"),
        ("qwen2_moe", {"num_experts": 10**30}, "num_experts .* must be a positive integer up to 65536, but is"),
        (
            "deepseek_v2",
            {"first_k_dense_replace": "x"},
            "first_k_dense_replace .* must be 0 or a positive integer, but is 'x'",
        ),
        ("deepseek_v3", {"num_nextn_predict_layers": 10**30}, "num_nextn_predict_layers .* must be 0 or a positive integer"),
        ("qwen3", {"attention_bias": 1}, "attention_bias in the model's configuration must be true or false, but is 1"),
        ("baichuan", {"hidden_size": 5120, "num_attention_heads": 40}, "Baichuan 13B has ALiBi positions, which are not"),
        ("mixtral", {"num_experts_per_tok": 6}, "contradicts itself: 6 of 5 experts cannot be chosen"),
        ("mixtral", {"num_local_experts": "x"}, "num_local_experts .* must be a positive integer, but is 'x'"),
        ("mixtral", {"num_local_experts": 4}, r"block_sparse_moe.gate.weight has shape \[5, 64\], but .* \[4, 64\]"),
        ("qwen2_moe", {"mlp_only_layers": 1}, "mlp_only_layers .* must be a list of layers, but is 1"),
        ("qwen3_moe", {"moe_intermediate_size": None}, "moe_intermediate_size .* must be a positive integer, but is None"),
        ("gpt_oss", {"swiglu_limit": 5.0}, "swiglu_limit 5.0 is not supported; supported: 7"),
        ("gpt_oss_mxfp4", {"intermediate_size": 64}, "gate_up_proj_bias has shape"),
        ("deepseek_v2", {"topk_method": "best"}, "topk_method 'best' is not supported; supported: greedy, group_limited"),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob true is not supported for DeepSeek-V2"),
        ("deepseek_v2", {"n_group": 4}, "contradicts itself: 6 experts do not make 4 groups"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "topk_method 'noaux_tc' with scoring_func 'softmax' is not supported"),
        ("deepseek_v3", {"kv_lora_rank": 20}, r"kv_a_proj_with_mqa.weight has shape \[40, 64\], but .* \[28, 64\]"),
        ("opt", {"word_embed_proj_dim": 32}, "has no tensor model.decoder.project_in.weight"),
        ("opt", {"word_embed_proj_dim": -1}, "word_embed_proj_dim .* must be a positive integer, but is -1"),
        ("gpt2", {"activation_function": "snake"}, "hidden_act 'snake' is not supported; supported: silu, "),
        ("smollm3", {"no_rope_layers": [1]}, "no_rope_layers .* must have 3 numbers, one a layer"),
        ("granite", {"residual_multiplier": 0}, "residual_multiplier .* must be a positive number, but is 0"),
        (
            "phi3_longrope",
            {"partial_rotary_factor": 0.5},
            "short_factor should have 4 numbers, one for each pair, but has 8",
        ),
        (
            "phi3",
            {"intermediate_size": 80},
            r"gate_up_proj.weight has shape \[192, 64\], but the configuration needs \[160, 64\]",
        ),
        ("gpt_neox", {"head_dim": 12}, r"query_key_value.weight has shape \[192, 64\], but .* for model"),
        ("chatglm", {"num_layers": 4}, "has no tensor transformer.encoder.layers.3.self_attention.query_key_value.weight"),
        ("gpt2", {"n_layer": 4}, "has no tensor transformer.h.3.attn.c_attn.weight"),
        ("internlm2", {"num_hidden_layers": 2}, "does not use tensors model.layers.2.attention.wo.weight, "),
    ],
)
def test_one_line(name: str, changes: dict[str, Any], message: str) -> None:
    checkpoint = FAMILIES[name].checkpoint(SHAPES[name], SEED)
    checkpoint.hf_config = checkpoint.hf_config | changes
    with pytest.raises(LoadError, match=message) as caught:
        tiny_model(NumpyOps(), checkpoint)
    assert "\n" not in str(caught.value)


def test_a_key_is_called_what_the_file_calls_it() -> None:
    checkpoint = FAMILIES["gpt2"].checkpoint(SHAPES["gpt2"], SEED)
    checkpoint.hf_config = checkpoint.hf_config | {"n_embd": -64}
    with pytest.raises(LoadError, match=r"n_embd in the model's configuration must be a positive integer, but is -64"):
        tiny_model(NumpyOps(), checkpoint)


def test_buffers_of_old_files_are_left_alone() -> None:
    checkpoint = FAMILIES["gpt2"].checkpoint(SHAPES["gpt2"], SEED)
    checkpoint.tensors["transformer.h.0.attn.bias"] = np.ones((1, 1, 256, 256), np.float32)
    bare = {name.removeprefix("transformer."): tensor for name, tensor in checkpoint.tensors.items()}
    tiny_model(NumpyOps(), checkpoint)
    checkpoint.tensors = bare
    tiny_model(NumpyOps(), checkpoint)


def test_views_are_found_through_each_other() -> None:
    """`model` is `old`, a layer's projection a part of another one there; what is stored besides is still refused."""
    from octavo.weights.checkpoint import Weights

    checkpoint = tiny_checkpoint(tiny_config())
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    checkpoint.tensors = {"old.0.both.weight": rows, "old.0.both.bias": rows[:, 0], "old.0.more.weight": rows}
    weights = Weights(checkpoint, np.dtype(np.float32), NumpyOps())
    weights.view("model", "old")
    layer = weights.scope("model.0")
    layer.split("both", {"first": 2, "second": 4})
    layer.view("third", "second", lambda stored: stored[::-1])
    np.testing.assert_array_equal(layer.take("first.weight", (2, 2)), rows[:2])
    np.testing.assert_array_equal(layer.take("second.bias", (4,)), rows[2:, 0])
    np.testing.assert_array_equal(layer.take("third.weight", (4, 2)), rows[2:][::-1])
    with pytest.raises(LoadError, match=r"old.0.both.weight has shape \[6, 2\], .* needs \[3, 2\] for model.0.first"):
        layer.take("first.weight", (3, 2))
    with pytest.raises(LoadError, match=r"old.0.both.weight has shape \[6, 2\], but the configuration needs \[5, 2\]"):
        layer.split("both", {"first": 2, "second": 3})
    with pytest.raises(LoadError, match=r"does not use tensor old.0.more.weight"):
        weights.finish()
