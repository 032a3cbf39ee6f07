"""The arithmetic of memory, before any of it is used: weights, activations, and how many KV blocks are left for.

What the weights and a block take is not reckoned here: the backend says it (`octavo.models.sizes`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.cache.reach import Reach
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.models.config import ModelConfig

GIB = 1 << 30
AUTO = -1  # max_model_len: the longest that fits
DEFAULT_BATCHED_TOKENS = 2048
_DEFAULT_SWAP_SPACE = 4 * GIB
_SMALLEST_BLOCK = 16  # tokens


@dataclass(frozen=True)
class Limits:
    """The engine's limits, with the defaults filled in."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    window: int | None = None  # as in `Reach`
    in_single_steps: bool = False  # a sequence holds blocks for one step only


@dataclass(frozen=True)
class Sizes:
    """Bytes that the backend needs for a model."""

    weights: int
    block: int  # of KV cache, all layers
    activations: int  # at most, in any step


@dataclass(frozen=True)
class MemoryPlan:
    """What goes where, in bytes."""

    usable: int  # of the machine or its cgroup
    budget: int  # what memory_utilization allows of it
    sizes: Sizes
    block_size: int
    num_blocks: int
    swap_space: int  # for blocks of preempted requests, touched only as they are swapped out
    limits: Limits

    @property
    def num_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.num_blocks * self.block_size

    @property
    def kv_cache(self) -> int:
        """Bytes of the whole KV cache, which are reserved, and touched only as blocks are written."""
        return self.num_blocks * self.sizes.block

    @property
    def fixed(self) -> int:
        """Bytes that are taken whatever the size of the cache."""
        return self.sizes.weights + self.sizes.activations + self.swap_space

    def requests_of(self, length: int) -> float:
        """How many requests of so many tokens the cache holds at once."""
        return self.num_blocks / self.blocks_for(length)

    def blocks_for(self, length: int) -> int:
        """The most blocks that a request of so many tokens ever holds."""
        return Reach(self.block_size, self.limits.window).most_blocks(length, self.limits.max_num_batched_tokens)


def resolve_limits(config: EngineConfig, model: ModelConfig) -> Limits:
    """ConfigError for a max_model_len that the model does not reach. For `auto` it is the longest that could be, which the
    plan may shorten."""
    longest, wanted = model.longest_context, config.max_model_len
    usual = model.max_length or model.usual_context
    if wanted is not None and wanted > longest:
        raise ConfigError(
            f"--max-model-len {wanted} is more than the model's {longest} positions ({model.context_keys}); "
            f"{longest} or less works",
            parameter="max_model_len",
        )
    batched = config.max_num_batched_tokens
    max_model_len = usual if wanted in (None, AUTO) else wanted
    if wanted == AUTO and batched is not None and not config.enable_chunked_prefill:
        max_model_len = min(usual, batched)  # a prompt must fit into a step
    default = DEFAULT_BATCHED_TOKENS if config.enable_chunked_prefill else max(DEFAULT_BATCHED_TOKENS, max_model_len)
    if model.is_encoder and batched is not None and batched < max_model_len:
        raise whole_prompts_needed(batched, max_model_len)
    return Limits(max_model_len, config.max_num_seqs, batched or default, model.cache_window, model.is_encoder)


def whole_prompts_needed(batched: int, max_model_len: int) -> ConfigError:
    """That an encoder cannot be given its longest prompt in one step."""
    return ConfigError(
        f"--max-num-batched-tokens {batched} is less than the longest prompt (--max-model-len {max_model_len}), which an "
        f"encoder computes in one step; --max-num-batched-tokens {max_model_len} works, or --max-model-len {batched}",
        parameter="max_num_batched_tokens",
    )


def plan_memory(config: EngineConfig, limits: Limits, sizes: Sizes, usable: int) -> MemoryPlan:
    """Divide `usable` bytes. ConfigError, with the numbers and the values that would work, if nothing is left for the
    cache, if more is asked for than there is, or if a request of max_model_len would not fit (`auto` is shortened)."""
    budget = int(usable * config.memory_utilization)
    plan = MemoryPlan(usable, budget, sizes, config.block_size, 0, 0, limits)
    plan = replace(plan, swap_space=_swap_space(config, plan))
    plan = replace(plan, num_blocks=_num_blocks(config, plan))
    if config.max_model_len == AUTO and 0 < plan.num_blocks < plan.blocks_for(limits.max_model_len):
        return replace(plan, limits=replace(limits, max_model_len=plan.num_tokens))
    _check_longest_request_fits(config, plan)
    return plan


def _swap_space(config: EngineConfig, plan: MemoryPlan) -> int:
    """What was asked for, if the cache has room beside it; without that at most a quarter of what is left."""
    if config.preemption_mode == "recompute":
        return 0
    total, cache = _smallest_cache(config, plan)
    room = max(0, total - plan.fixed - cache)
    if config.swap_space is None:
        return min(_DEFAULT_SWAP_SPACE, room // 4)
    wanted = int(config.swap_space * GIB)
    if wanted > room:
        most = math.floor(100 * room / GIB) / 100
        advice = f"--swap-space {most:g} or less" if most else "--preemption-mode recompute, which needs none,"
        raise ConfigError(
            f"Too large swap space: --swap-space {config.swap_space:g} asks for {in_words(wanted)}, but of "
            f"{in_words(total)} weights ({in_words(plan.sizes.weights)}), activations ({in_words(plan.sizes.activations)}) "
            f"and the smallest KV cache ({in_words(cache)}) leave {in_words(room)}: {advice} works",
            parameter="swap_space",
        )
    return wanted


def _smallest_cache(config: EngineConfig, plan: MemoryPlan) -> tuple[int, int]:
    """Of how many bytes in all, and how many the cache needs: those that were given, or those of one request."""
    if config.num_gpu_blocks_override is not None:
        return plan.usable, config.num_gpu_blocks_override * plan.sizes.block
    if config.kv_cache_memory_bytes is not None:
        return plan.usable, config.kv_cache_memory_bytes
    length = 1 if config.max_model_len == AUTO else plan.limits.max_model_len
    return plan.budget, plan.blocks_for(length) * plan.sizes.block


def _num_blocks(config: EngineConfig, plan: MemoryPlan) -> int:
    block = plan.sizes.block
    if config.num_gpu_blocks_override is not None:
        wanted, flag = config.num_gpu_blocks_override, "--num-gpu-blocks-override"
        _check_affordable(plan, wanted * block, f"{flag} {wanted}", block, flag)
        return wanted
    if config.kv_cache_memory_bytes is not None:
        size, flag = config.kv_cache_memory_bytes, "--kv-cache-memory-bytes"
        _check_affordable(plan, size, f"{flag} {size}", 1, flag)
        return size // block
    left = plan.budget - plan.fixed
    if left < block:
        raise ConfigError(_nothing_left(config, plan))
    return min(left // block, _most_blocks(plan))


def _most_blocks(plan: MemoryPlan) -> int:
    """More could never be used."""
    limits = plan.limits
    most = limits.max_num_seqs * plan.blocks_for(limits.max_model_len)
    if not limits.in_single_steps:
        return most
    return min(most, plan.blocks_for(limits.max_num_batched_tokens) + limits.max_num_seqs)


def _check_affordable(plan: MemoryPlan, size: int, wanted: str, unit: int, flag: str) -> None:
    left = plan.usable - plan.fixed
    if size <= left:
        return
    advice = f"{flag} {left // unit} or less works" if left >= unit else "there is no room for any"
    raise ConfigError(
        f"{wanted} asks for {in_words(size)} of KV cache, but of {in_words(plan.usable)} usable memory weights "
        f"({in_words(plan.sizes.weights)}), activations ({in_words(plan.sizes.activations)}) and swap space "
        f"({in_words(plan.swap_space)}) leave {in_words(max(0, left))}: {advice}"
    )


def _nothing_left(config: EngineConfig, plan: MemoryPlan) -> str:
    length = plan.limits.max_model_len if config.max_model_len != AUTO else 1
    share = _share_for(plan, length)
    if plan.fixed + plan.sizes.block // plan.block_size * _SMALLEST_BLOCK * -(-length // _SMALLEST_BLOCK) <= plan.budget:
        advice = f"Decrease --block-size (a block of {plan.block_size} tokens takes {in_words(plan.sizes.block)})"
    else:
        advice = f"Increase --memory-utilization to {share}" if share is not None else "Free memory, take a smaller model"
    return (
        f"No available memory for the cache blocks: --memory-utilization {config.memory_utilization} of "
        f"{in_words(plan.usable)} is {in_words(plan.budget)}, and weights take {in_words(plan.sizes.weights)}, activations "
        f"{in_words(plan.sizes.activations)}. {advice}, or decrease --max-num-batched-tokens or --max-num-seqs."
    )


def _check_longest_request_fits(config: EngineConfig, plan: MemoryPlan) -> None:
    """The first two sentences are vLLM's, for those who look for them."""
    longest = plan.limits.max_model_len
    if plan.num_blocks >= plan.blocks_for(longest):
        return
    needed = plan.blocks_for(longest) * plan.sizes.block
    ways = [f"--max-model-len {plan.num_tokens}"] if plan.num_tokens else []
    if config.num_gpu_blocks_override is not None:
        ways.append(f"--num-gpu-blocks-override {plan.blocks_for(longest)}")
    elif config.kv_cache_memory_bytes is not None:
        ways.append(f"--kv-cache-memory-bytes {needed}")
    elif (share := _share_for(plan, longest)) is not None:
        ways.append(f"--gpu-memory-utilization {share}")
    raise ConfigError(
        f"The model's max seq len ({longest}) is larger than the maximum number of tokens that can be stored in KV cache "
        f"({plan.num_tokens}). Try increasing gpu_memory_utilization or decreasing max_model_len. A request of {longest} "
        f"tokens needs {in_words(needed)}, and the cache has {in_words(plan.kv_cache)}; what works: {' or '.join(ways)}.",
        parameter="max_model_len",
    )


def _share_for(plan: MemoryPlan, length: int) -> str | None:
    """The memory_utilization, rounded up to what can be typed, with which a request of so many tokens fits; None if none
    does."""
    share = math.ceil(100 * (plan.fixed + plan.blocks_for(length) * plan.sizes.block) / max(1, plan.usable))
    return f"{share / 100:.2f}" if share <= 100 else None


def in_words(size: int) -> str:
    """Bytes as people read them."""
    if size >= GIB / 10:
        return f"{size / GIB:.2f} GiB"
    return f"{size / (1 << 20):.1f} MiB" if size >= 100_000 else f"{size:,} bytes"
