"""The arithmetic of memory, before any of it is used: weights, activations, and how many KV blocks are left for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.models.config import ModelConfig

GIB = 1 << 30
DEFAULT_BATCHED_TOKENS = 2048
_LOGITS_COPIES = 3  # the model's, edited, and sorted or as probabilities


@dataclass(frozen=True)
class Limits:
    """The engine's limits, with the defaults filled in."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True)
class MemoryPlan:
    """What goes where, in bytes."""

    usable: int  # of the machine or its cgroup
    budget: int  # what memory_utilization allows of it
    weights: int
    activations: int
    bytes_per_token: int  # of KV cache, all layers
    block_size: int
    num_blocks: int
    limits: Limits

    @property
    def num_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_blocks * self.block_size

    @property
    def kv_cache(self) -> int:
        """Bytes of the whole KV cache, which are reserved, and touched only as blocks are written."""
        return self.num_tokens * self.bytes_per_token

    @property
    def num_full_requests(self) -> float:
        """How many requests of max_model_len fit at once."""
        return self.num_tokens / self.limits.max_model_len


def resolve_limits(config: EngineConfig, model: ModelConfig) -> Limits:
    """ConfigError for a max_model_len that the model does not reach."""
    longest = model.max_position_embeddings
    max_model_len = config.max_model_len or longest
    if max_model_len > longest:
        raise ConfigError(
            f"--max-model-len {max_model_len} is more than the model's {longest} positions (max_position_embeddings); "
            f"{longest} or less works"
        )
    default = DEFAULT_BATCHED_TOKENS if config.enable_chunked_prefill else max(DEFAULT_BATCHED_TOKENS, max_model_len)
    return Limits(max_model_len, config.max_num_seqs, config.max_num_batched_tokens or default)


def kv_bytes_per_token(model: ModelConfig, itemsize: int) -> int:
    """Bytes of keys and values of one token in all layers."""
    return 2 * model.num_layers * model.num_kv_heads * model.head_dim * itemsize


def activation_bytes(model: ModelConfig, limits: Limits) -> int:
    """An upper estimate of what a step needs beside weights and cache; activations and logits are float32."""
    heads = 2 * model.num_heads + 2 * model.num_kv_heads  # q, k, v and the attention's output
    per_token = 4 * model.hidden_size + heads * model.head_dim + 3 * model.intermediate_size
    logits = limits.max_num_seqs * model.vocab_size * _LOGITS_COPIES
    return 4 * (limits.max_num_batched_tokens * per_token + logits)


def plan_memory(config: EngineConfig, model: ModelConfig, *, weights: int, itemsize: int, usable: int) -> MemoryPlan:
    """Divide `usable` bytes. `itemsize` is that of the KV cache's dtype, `weights` their bytes as they will be in memory.

    ConfigError, with the numbers and the values that would work, if nothing is left for the cache, if more is asked for
    than there is, or if a request of max_model_len would not fit.
    """
    limits = resolve_limits(config, model)
    plan = MemoryPlan(
        usable=usable,
        budget=int(usable * config.memory_utilization),
        weights=weights,
        activations=activation_bytes(model, limits),
        bytes_per_token=kv_bytes_per_token(model, itemsize),
        block_size=config.block_size,
        num_blocks=0,
        limits=limits,
    )
    plan = replace(plan, num_blocks=_num_blocks(config, plan))
    _check_longest_request_fits(config, plan)
    return plan


def _num_blocks(config: EngineConfig, plan: MemoryPlan) -> int:
    bytes_per_block = plan.bytes_per_token * plan.block_size
    if config.num_gpu_blocks_override is not None:
        wanted, flag = config.num_gpu_blocks_override, "--num-gpu-blocks-override"
        _check_affordable(plan, wanted * bytes_per_block, f"{flag} {wanted}", bytes_per_block, flag)
        return wanted
    if config.kv_cache_memory_bytes is not None:
        size, flag = config.kv_cache_memory_bytes, "--kv-cache-memory-bytes"
        _check_affordable(plan, size, f"{flag} {size}", 1, flag)
        return size // bytes_per_block
    left = plan.budget - plan.weights - plan.activations
    if left < bytes_per_block:
        raise ConfigError(_nothing_left(config, plan))
    most = plan.limits.max_num_seqs * math.ceil(plan.limits.max_model_len / plan.block_size)  # more could never be used
    return min(left // bytes_per_block, most)


def _check_affordable(plan: MemoryPlan, size: int, wanted: str, unit: int, flag: str) -> None:
    left = plan.usable - plan.weights - plan.activations
    if size <= left:
        return
    advice = f"{flag} {left // unit} or less works" if left >= unit else "there is no room for any"
    raise ConfigError(
        f"{wanted} asks for {_gib(size)} of KV cache, but of {_gib(plan.usable)} usable memory weights "
        f"({_gib(plan.weights)}) and activations ({_gib(plan.activations)}) leave {_gib(max(0, left))}: {advice}"
    )


def _nothing_left(config: EngineConfig, plan: MemoryPlan) -> str:
    advice = (
        f"Increase --memory-utilization to {share}"
        if (share := _share_for_longest(plan)) is not None
        else "Free memory, take a smaller model"
    )
    return (
        f"No available memory for the cache blocks: --memory-utilization {config.memory_utilization} of "
        f"{_gib(plan.usable)} is {_gib(plan.budget)}, and weights take {_gib(plan.weights)}, activations "
        f"{_gib(plan.activations)}. {advice}, or decrease --max-num-batched-tokens or --max-num-seqs."
    )


def _check_longest_request_fits(config: EngineConfig, plan: MemoryPlan) -> None:
    longest = plan.limits.max_model_len
    if plan.num_tokens >= longest:
        return
    ways = [f"decrease --max-model-len to {plan.num_tokens}"] if plan.num_tokens > 1 else []
    if config.num_gpu_blocks_override is not None:
        ways.append(f"increase --num-gpu-blocks-override to {math.ceil(longest / plan.block_size)}")
    elif config.kv_cache_memory_bytes is not None:
        ways.append(f"increase --kv-cache-memory-bytes to {_longest_request(plan)}")
    elif (share := _share_for_longest(plan)) is not None:
        ways.append(f"increase --memory-utilization to {share}")
    raise ConfigError(
        f"The model's max seq len ({longest}) is larger than the maximum number of tokens that can be stored in KV cache "
        f"({plan.num_tokens}): a request of that length needs {_gib(_longest_request(plan))}, and the cache has "
        f"{_gib(plan.kv_cache)}. Try to {' or '.join(ways)}."
    )


def _longest_request(plan: MemoryPlan) -> int:
    """Bytes of KV cache of a request of max_model_len."""
    return math.ceil(plan.limits.max_model_len / plan.block_size) * plan.block_size * plan.bytes_per_token


def _share_for_longest(plan: MemoryPlan) -> str | None:
    """The memory_utilization, rounded up to what can be typed, with which the longest request fits; None if none does."""
    share = math.ceil(100 * (plan.weights + plan.activations + _longest_request(plan)) / plan.usable)
    return f"{share / 100:.2f}" if share <= 100 else None


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB" if size >= GIB / 10 else f"{size / (1 << 20):.1f} MiB"
