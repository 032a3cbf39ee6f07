"""EngineConfig checks its values, each refusal in one line that names the flag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.config import OPTIONS, EngineConfig
from octavo.errors import ConfigError, StartupError
from octavo.options.configure import from_keywords

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"block_size": 20}, "--block-size must be a multiple of 16, got 20"),
    (
        {"quantization_group_size": 48},
        "--quantization-group-size must be a multiple of 32 between 32 and 128, got 48",
    ),
    ({"quantization_group_size": 64}, "--quantization-group-size has no meaning without --quantization int4"),
    (
        {"quantization": "fp8", "quantization_activations": "int8"},
        "--quantization-activations has no meaning with --quantization fp8; it is for int8 and int4",
    ),
    ({"block_size": 0}, "--block-size must be a multiple of 16, got 0"),
    ({"dtype": "int8"}, "--dtype must be one of auto, bfloat16, float16, float32, got int8"),
    ({"memory_utilization": 0}, "--memory-utilization must be above 0 and at most 1, got 0.0"),
    ({"memory_utilization": 1.01}, "--memory-utilization must be above 0 and at most 1, got 1.01"),
    ({"memory_utilization": float("nan")}, "--memory-utilization must be above 0 and at most 1, got nan"),
    ({"port": 65536}, "--port must be between 0 and 65535, got 65536"),
    ({"max_num_seqs": 0}, "--max-num-seqs must be at least 1, got 0"),
    ({"max_num_seqs": True}, "--max-num-seqs takes a whole number, got True"),
    ({"max_num_seqs": None}, "--max-num-seqs takes a whole number, got None"),
    ({"max_model_len": 1.5}, "--max-model-len takes a whole number, got 1.5"),
    ({"enforce_eager": 1}, "--enforce-eager takes true or false, got 1"),
    ({"max_logprobs": -2}, "--max-logprobs must be at least -1, got -2"),
    ({"host": ""}, "--host must not be empty"),
    ({"api_key": ("a", "")}, "--api-key must not hold an empty text"),
    ({"served_model_name": 5}, "--served-model-name takes text, got 5"),
    (
        {"metrics_prefix": "9:"},
        "--metrics-prefix must be letters, digits, _ and : and not begin with a digit, got '9:'",
    ),
    (
        {"shutdown_timeout": float("inf")},
        "--shutdown-timeout must be a finite number, got inf",
    ),
    ({"max_itl_ms": float("inf")}, "--max-itl-ms must be a finite number, got inf"),
    ({"max_itl_ms": 0.5}, "--max-itl-ms must be at least 1, got 0.5"),
    *(
        (
            {name: 64, "enable_chunked_prefill": False},
            f"--{name.replace('_', '-')} cuts prompts into chunks, which --no-enable-chunked-prefill forbids; leave one out",
        )
        for name in ("max_itl_ms", "long_prefill_token_threshold")
    ),
    (
        {"max_num_batched_tokens": 8, "max_num_seqs": 9},
        "--max-num-batched-tokens (8) must not be smaller than --max-num-seqs (9)",
    ),
    (
        {"max_num_batched_tokens": 512, "max_model_len": 1024, "enable_chunked_prefill": False},
        "--max-num-batched-tokens (512) must not be smaller than --max-model-len (1024) with --no-enable-chunked-prefill",
    ),
    (
        {"kv_cache_memory_bytes": 10**9, "num_gpu_blocks_override": 10},
        "--kv-cache-memory-bytes and --num-gpu-blocks-override both set the size of the KV cache; give one",
    ),
    (
        {"skip_tokenizer_init": True, "chat_template": "x"},
        "--skip-tokenizer-init leaves no use for --tokenizer and --chat-template; leave them out",
    ),
    ({"cpu_threads": 2000}, "--cpu-threads must be between 1 and 1024, got 2000"),
    ({"model": "\udcff"}, "--model must be valid Unicode, got '\\udcff'"),
    ({"api_key": ("a", "\udcff")}, "--api-key must be valid Unicode, got '\\udcff'"),
    (
        {"backend": "numpy", "cpu_isa": "avx2"},
        "--cpu-isa chooses among the native kernels; it has no meaning with --backend numpy",
    ),
    (
        {"preemption_mode": "swap", "enable_prefix_caching": False},
        "--preemption-mode swap finds blocks through the prefix cache; leave out --no-enable-prefix-caching, "
        "or take recompute",
    ),
    (
        {"preemption_mode": "auto", "swap_space": 0.0},
        "--swap-space must be above 0 with --preemption-mode auto, got 0",
    ),
    (
        {"kv_offload_dir": "/somewhere"},
        "--kv-offload-dir has no use with --preemption-mode recompute; add --preemption-mode auto",
    ),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_refused_values(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**options)
    assert str(caught.value) == message
    assert isinstance(caught.value, StartupError)


def test_values_are_brought_to_one_form() -> None:
    config = EngineConfig(
        model=Path("a") / "b",  # type: ignore[arg-type]
        dtype="half",
        memory_utilization=1,
        api_key=["one", "two"],  # type: ignore[arg-type]
        served_model_name="name",  # type: ignore[arg-type]
    )
    assert (config.model, config.dtype, config.memory_utilization) == ("a/b", "float16", 1.0)
    assert (config.api_key, config.served_model_name) == (("one", "two"), ("name",))


def test_few_tokens_a_step_are_fine_while_the_number_of_sequences_was_not_chosen() -> None:
    assert EngineConfig(max_num_batched_tokens=7).max_num_batched_tokens == 7


def test_the_defaults_that_users_of_vllm_count_on() -> None:
    config = EngineConfig()
    assert (config.max_num_seqs, config.max_num_batched_tokens, config.block_size) == (256, None, 16)
    assert (config.memory_utilization, config.max_logprobs, config.port) == (0.9, 20, 8000)


def test_every_option_has_one_line_of_help_and_a_known_group() -> None:
    for option in OPTIONS.values():
        assert option.help
        assert "\n" not in option.help
        assert option.metadata["group"] in ("model", "engine", "server")


def test_keywords_take_both_names_of_the_memory_share_and_vllm_values_that_change_nothing() -> None:
    assert from_keywords({"gpu_memory_utilization": 0.5}) == from_keywords({"memory_utilization": 0.5})
    neutral = {
        "tensor_parallel_size": 1,
        "quantization": None,
        "hf_overrides": {},
        "cpu_offload_gb": 0.0,
        "enable_lora": False,
    }
    assert from_keywords({"model": "m", **neutral}) == EngineConfig(model="m")


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"max_model_length": 5}, "unknown option max_model_length; did you mean max_model_len?"),
        ({"zzzz": 5}, "unknown option zzzz"),
        ({"port": 5}, "port is an option of the HTTP server, which LLM does not have"),
        ({"seed": 2**63}, "--seed must be between -2^63 and 2^63 - 1, got 9223372036854775808"),
        ({"tensor_parallel_size": 2}, "tensor_parallel_size 2 is not supported by Octavo yet; leave it out or give 1"),
        ({"enable_lora": True}, "enable_lora is not supported by Octavo yet; leave it out"),
        (
            {"quantization": "bitsandbytes"},
            "--quantization must be one of int8, int4, fp8, awq, gptq, compressed-tensors, fbgemm_fp8, got bitsandbytes",
        ),
    ],
)
def test_refused_keywords(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_keywords(keywords)
    assert str(caught.value) == message
