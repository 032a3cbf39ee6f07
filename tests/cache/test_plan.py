"""The memory arithmetic: exact numbers for a model that is easy to reckon, and errors whose advice works."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.plan import GIB, MemoryPlan, Sizes, in_words, plan_memory, resolve_limits
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
MIB = 1 << 20


def plan(
    usable: int = GIB, weights: int = MIB, activations: int = 2 * MIB, model: ModelConfig = MODEL, **options: object
) -> MemoryPlan:
    config = EngineConfig(**options)
    sizes = Sizes(weights, config.block_size * PER_TOKEN, activations)
    return plan_memory(config, resolve_limits(config, model), sizes, usable)


def test_what_is_left_becomes_blocks() -> None:
    result = plan(usable=10 * MIB)
    assert result.num_blocks == (9 * MIB - 3 * MIB) // (16 * PER_TOKEN)
    assert result.kv_cache == result.num_blocks * 16 * PER_TOKEN
    assert result.num_tokens == result.num_blocks * 16
    assert result.requests_of(1024) == result.num_blocks / 64
    assert result.requests_of(1000) == result.num_blocks / 63


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


@pytest.mark.parametrize(
    ("rope", "usual", "longest"),
    [
        ({"rope_type": "linear", "factor": 4.0}, 1024, 4096),
        ({"rope_type": "dynamic", "factor": 2.0}, 1024, 2048),
        ({"rope_type": "yarn", "factor": 4.0}, 4096, 4096),
        ({"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64}, 1024, 1024),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048, 2048),
        ({"rope_type": "llama3", "factor": 8.0}, 1024, 1024),
    ],
)
def test_a_scaled_rotation_reaches_further(rope: dict[str, Any], usual: int, longest: int) -> None:
    model = replace(MODEL, rope={"rope_theta": 10000.0} | rope)
    assert resolve_limits(EngineConfig(), model).max_model_len == usual
    assert resolve_limits(EngineConfig(max_model_len=longest), model).max_model_len == longest
    with pytest.raises(ConfigError, match=f"{longest + 1} is more than the model's {longest} positions .max_position"):
        resolve_limits(EngineConfig(max_model_len=longest + 1), model)


@given(st.integers(1, 100), st.sampled_from([16, 32, 48]))
def test_auto_takes_the_longest_that_fits(num_blocks: int, block_size: int) -> None:
    auto = plan(max_model_len=-1, num_gpu_blocks_override=num_blocks, block_size=block_size)
    longest = auto.limits.max_model_len
    assert longest == min(1024, num_blocks * block_size)
    assert plan(max_model_len=longest, num_gpu_blocks_override=num_blocks, block_size=block_size).num_blocks == num_blocks
    if longest < 1024:
        with pytest.raises(ConfigError, match=f"max seq len \\({longest + 1}\\)"):
            plan(max_model_len=longest + 1, num_gpu_blocks_override=num_blocks, block_size=block_size)


def test_auto_stays_within_a_step_where_prompts_are_not_cut() -> None:
    whole = {"max_model_len": -1, "enable_chunked_prefill": False}
    assert plan(max_num_batched_tokens=300, **whole).limits.max_model_len == 300
    assert plan(**whole).limits.max_model_len == 1024
    assert plan(max_model_len=-1, max_num_batched_tokens=300).limits.max_model_len == 1024


def test_auto_needs_one_block() -> None:
    with pytest.raises(ConfigError, match="No available memory for the cache blocks"):
        plan(usable=3 * MIB, max_model_len=-1)
    with pytest.raises(ConfigError, match="what works: --kv-cache-memory-bytes"):
        plan(kv_cache_memory_bytes=10, max_model_len=-1)


def test_a_block_that_is_too_large_is_named() -> None:
    with pytest.raises(ConfigError, match=r"Decrease --block-size \(a block of 65536 tokens takes 16\.0 MiB\), or decrease"):
        plan(usable=10 * MIB, block_size=65536)
    with pytest.raises(ConfigError, match="Free memory, take a smaller model, or decrease"):
        plan(usable=10 * MIB, weights=16 * MIB, block_size=65536)


def test_too_small_a_cache_for_one_request_names_both_numbers_and_what_works() -> None:
    with pytest.raises(ConfigError) as caught:
        plan(num_gpu_blocks_override=20)
    assert caught.value.message == (
        "The model's max seq len (1024) is larger than the maximum number of tokens that can be stored in KV cache (320). "
        "Try increasing gpu_memory_utilization or decreasing max_model_len. A request of 1024 tokens needs 0.2 MiB, and the "
        "cache has 81,920 bytes; what works: --max-model-len 320 or --num-gpu-blocks-override 64."
    )
    assert plan(num_gpu_blocks_override=64).num_tokens == 1024
    assert plan(num_gpu_blocks_override=20, max_model_len=320).num_tokens == 320
    with pytest.raises(ConfigError, match=f"what works: --kv-cache-memory-bytes {1024 * PER_TOKEN}"):
        plan(kv_cache_memory_bytes=1000)


ADVICE = {
    "memory_utilization": r"(?:--memory-utilization to|--gpu-memory-utilization) (\d\.\d\d)",
    "max_model_len": r"--max-model-len (\d+)",
}


@given(st.integers(0, 400 * MIB), st.integers(0, 300 * MIB), st.sampled_from([0.05, 0.3, 0.9]))
def test_the_advice_works_and_the_budget_is_kept(usable: int, weights: int, utilization: float) -> None:
    given: dict[str, object] = {"memory_utilization": utilization}
    try:
        results = [plan(usable, weights, **given)]
    except ConfigError as error:
        advised = {name: re.search(pattern, error.message) for name, pattern in ADVICE.items()}
        values = {name: float(found[1]) for name, found in advised.items() if found}
        results = [plan(usable, weights, **{**given, name: value}) for name, value in values.items()]
    assert results or smallest_need(weights) > usable
    for result in results:
        assert result.fixed + result.kv_cache <= result.budget
        assert result.num_tokens >= result.limits.max_model_len


def smallest_need(weights: int) -> int:
    """Bytes that weights, activations and one longest request take."""
    return weights + 2 * MIB + 1024 * PER_TOKEN


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
    with pytest.raises(ConfigError):
        plan(**{name: int(most[1]) + 1 for name in option})


def test_sizes_in_words() -> None:
    assert [in_words(size) for size in (0, 99_999, 100_000, 50 * MIB, 24 * GIB)] == [
        "0 bytes",
        "99,999 bytes",
        "0.1 MiB",
        "50.0 MiB",
        "24.00 GiB",
    ]


SWAP = {"preemption_mode": "swap"}


def test_swap_space_is_taken_from_what_the_cache_would_have() -> None:
    without = plan(usable=8 * GIB, max_num_seqs=100_000)
    assert without.swap_space == 0
    given = plan(usable=8 * GIB, max_num_seqs=100_000, swap_space=1.5, **SWAP)
    assert given.swap_space == 1.5 * GIB
    assert abs(without.kv_cache - given.kv_cache - 1.5 * GIB) < 16 * PER_TOKEN
    small = plan(usable=8 * GIB, max_num_seqs=100_000, **SWAP)
    assert 0.24 < small.swap_space / (0.9 * 8 * GIB) <= 0.25
    assert plan(usable=80 * GIB, **SWAP).swap_space == 4 * GIB
    assert small.fixed + small.kv_cache <= small.budget


@pytest.mark.parametrize("cache", [{}, {"kv_cache_memory_bytes": 512 * MIB}, {"num_gpu_blocks_override": 70}])
def test_too_much_swap_space_is_refused_with_both_numbers_and_the_most_that_works(cache: dict[str, int]) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(usable=4 * GIB, swap_space=40, **SWAP, **cache)
    pattern = r"--swap-space 40 asks for 40\.00 GiB, but of \d\.\d\d GiB .* leave (\d\.\d+) GiB: --swap-space (\S+) or less"
    found = re.search(pattern, caught.value.message)
    assert found is not None
    most = float(found[2])
    assert abs(most - float(found[1])) < 0.02
    result = plan(usable=4 * GIB, swap_space=most, **SWAP, **cache)
    assert result.num_tokens >= 1024
    with pytest.raises(ConfigError, match="Too large swap space"):
        plan(usable=4 * GIB, swap_space=most + 0.02, **SWAP, **cache)


def test_where_nothing_is_left_for_swap_the_mode_is_named() -> None:
    with pytest.raises(ConfigError, match="--preemption-mode recompute, which needs none, works"):
        plan(usable=GIB, num_gpu_blocks_override=GIB // (16 * PER_TOKEN) - 800, swap_space=1, **SWAP)
    tight = plan(usable=GIB, num_gpu_blocks_override=GIB // (16 * PER_TOKEN) - 800, **SWAP)
    assert tight.swap_space < MIB


WINDOWED = replace(MODEL, max_position_embeddings=100_000, windows=(100, 60, 100, 100))


def test_a_window_bounds_what_a_request_holds() -> None:
    """100 keys lie before a query in 7 blocks of 16, and 64 tokens of a step in 5."""
    result = plan(model=WINDOWED, max_num_batched_tokens=64, num_gpu_blocks_override=60)
    assert result.limits.max_model_len == 100_000
    assert result.requests_of(100_000) == result.requests_of(200) == 60 / (7 + 5)
    assert result.requests_of(80) == 60 / 5
    assert plan(model=WINDOWED, max_num_batched_tokens=64, max_num_seqs=4, usable=64 * GIB).num_blocks == 4 * (7 + 5)
    longest = plan(model=WINDOWED, max_num_batched_tokens=64, num_gpu_blocks_override=12, max_model_len=-1)
    assert longest.limits.max_model_len == 100_000


def test_a_cache_without_room_for_the_window_and_a_step() -> None:
    options = {"model": WINDOWED, "num_gpu_blocks_override": 11, "max_num_batched_tokens": 64}
    with pytest.raises(ConfigError, match=r"what works: --max-model-len 176 or --num-gpu-blocks-override 12\.") as caught:
        plan(**options)
    assert caught.value.parameter == "max_model_len"
    assert plan(**options | {"max_model_len": 176}).num_blocks == 11
    assert plan(**options | {"num_gpu_blocks_override": 12}).num_blocks == 12
    assert plan(**options | {"max_model_len": -1}).limits.max_model_len == 176


def test_layers_without_a_window_need_everything() -> None:
    result = plan(model=replace(WINDOWED, windows=(100, None, 100, 100)), num_gpu_blocks_override=6250)
    assert result.requests_of(100_000) == 1
