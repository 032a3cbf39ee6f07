"""The memory arithmetic: exact numbers for a model that is easy to reckon, and errors whose advice works."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.plan import GIB, MemoryPlan, activation_bytes, kv_bytes_per_token, plan_memory, resolve_limits
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.models.config import ModelConfig

MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=1000,
    hidden_size=64,
    intermediate_size=128,
    num_layers=4,
    num_heads=8,
    num_kv_heads=2,
    head_dim=8,
    max_position_embeddings=1024,
    norm_epsilon=1e-5,
    tie_word_embeddings=True,
    dtype="bfloat16",
    rope={"rope_theta": 10000.0, "rope_type": "default"},
)
PER_TOKEN = 2 * 4 * 2 * 8 * 2  # K and V, layers, KV heads, head size, bytes of bfloat16


def plan(usable: int = GIB, weights: int = 1 << 20, **options: object) -> MemoryPlan:
    return plan_memory(EngineConfig(**options), MODEL, weights=weights, itemsize=2, usable=usable)


def test_what_is_left_becomes_blocks() -> None:
    result = plan(usable=10 << 20, max_num_batched_tokens=512)
    per_token = 4 * 64 + (2 * 8 + 2 * 2) * 8 + 3 * 128
    activations = 4 * (512 * per_token + 3 * 256 * 1000)
    assert kv_bytes_per_token(MODEL, 2) == result.bytes_per_token == PER_TOKEN
    assert activation_bytes(MODEL, result.limits) == result.activations == activations
    assert result.num_blocks == (int(0.9 * (10 << 20)) - (1 << 20) - activations) // (16 * PER_TOKEN)
    assert result.num_full_requests == result.num_blocks * 16 / 1024
    assert result.kv_cache == result.num_blocks * 16 * PER_TOKEN


def test_no_more_blocks_than_all_sequences_together_can_use() -> None:
    assert plan(usable=64 * GIB, max_num_seqs=8).num_blocks == 8 * 64
    assert plan(usable=64 * GIB, max_num_seqs=8, max_model_len=100).num_blocks == 8 * 7


def test_blocks_and_bytes_can_be_given() -> None:
    assert plan(num_gpu_blocks_override=70).num_blocks == 70
    assert plan(kv_cache_memory_bytes=70 * 16 * PER_TOKEN + 5).num_blocks == 70
    assert plan(kv_cache_memory_bytes=70 * 32 * PER_TOKEN, block_size=32).num_blocks == 70


def test_defaults_of_the_limits() -> None:
    limits = resolve_limits(EngineConfig(), MODEL)
    assert (limits.max_model_len, limits.max_num_seqs, limits.max_num_batched_tokens) == (1024, 256, 2048)
    long = ModelConfig(**{**MODEL.__dict__, "max_position_embeddings": 5000})
    assert resolve_limits(EngineConfig(enable_chunked_prefill=False), long).max_num_batched_tokens == 5000
    assert resolve_limits(EngineConfig(max_num_batched_tokens=64), MODEL).max_num_batched_tokens == 64


def test_a_context_beyond_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="--max-model-len 1025 is more than the model's 1024 positions"):
        plan(max_model_len=1025)


def test_too_small_a_cache_for_one_request_names_both_numbers_and_what_works() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(num_gpu_blocks_override=20)
    assert caught.value.message == (
        "The model's max seq len (1024) is larger than the maximum number of tokens that can be stored in KV cache (320): a "
        "request of that length needs 0.2 MiB, and the cache has 0.1 MiB. Try to decrease --max-model-len to 320 or "
        "increase --num-gpu-blocks-override to 64."
    )
    assert plan(num_gpu_blocks_override=64).num_tokens == 1024
    assert plan(num_gpu_blocks_override=20, max_model_len=320).num_tokens == 320
    with pytest.raises(ConfigError, match=f"increase --kv-cache-memory-bytes to {1024 * PER_TOKEN}"):
        plan(kv_cache_memory_bytes=1000)


ADVICE = {
    "memory_utilization": r"[Ii]ncrease --memory-utilization to ([\d.]+)",
    "max_model_len": r"decrease --max-model-len to (\d+)",
}


@given(st.integers(1, 400 << 20), st.integers(0, 300 << 20), st.sampled_from([0.05, 0.3, 0.9]))
def test_the_advice_works_and_the_budget_is_kept(usable: int, weights: int, utilization: float) -> None:
    tries: list[dict[str, object]] = [{"memory_utilization": utilization}]
    results: list[MemoryPlan] = []
    for options in tries:
        try:
            results.append(plan(usable, weights, **options))
        except ConfigError as error:
            advised = {name: re.search(pattern, error.message) for name, pattern in ADVICE.items()}
            tries += [
                {**options, name: (int if name == "max_model_len" else float)(found[1])}
                for name, found in advised.items()
                if found and len(tries) == 1
            ]
    if len(tries) == 1 and not results:
        assert smallest_need(weights) > usable
    else:
        assert len(results) == len(tries[1:] or tries)  # all that was advised works
    for result in results:
        assert result.weights + result.activations + result.kv_cache <= result.budget
        assert result.num_tokens >= result.limits.max_model_len


def smallest_need(weights: int) -> int:
    """Bytes that weights, activations and one longest request take."""
    return weights + activation_bytes(MODEL, resolve_limits(EngineConfig(), MODEL)) + 1024 * PER_TOKEN


@pytest.mark.parametrize(
    ("option", "pattern"),
    [
        ({"kv_cache_memory_bytes": 4 * GIB}, r"--kv-cache-memory-bytes (\d+) or less works"),
        ({"num_gpu_blocks_override": 10_000_000}, r"--num-gpu-blocks-override (\d+) or less works"),
    ],
)
def test_more_than_there_is_is_refused_with_the_most_that_works(option: dict[str, int], pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"asks for [\d.]+ GiB of KV cache, but of 1\.00 GiB usable memory") as caught:
        plan(**option)
    most = re.search(pattern, caught.value.message)
    assert most is not None
    assert plan(**{name: int(most[1]) for name in option}).num_blocks > 0
