"""From an `EngineConfig` to the places that KV blocks are swapped to."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import octavo
from octavo.cache.block_files import BlockFiles, LockedDirectory
from octavo.cache.block_pool import BlockPool
from octavo.cache.host_pool import HostPool
from octavo.cache.plan import GIB, MemoryPlan
from octavo.config import EngineConfig
from octavo.engine.planning import PlannedModel
from octavo.engine.preemption import PreemptionPolicy
from octavo.engine.swap import SwapManager
from octavo.kernels.ops import KVCache
from octavo.runner.host_memory import HostMemory
from octavo.weights.fingerprint import fingerprint
from octavo.weights.loader import packed_activation_bits

_BYTES_PER_STEP = 32 << 20  # moved back while a step computes: some 5 ms


def open_host_memory(plan: MemoryPlan, cache: KVCache) -> HostMemory | None:
    """Room for blocks of the cache; None if nothing is to be swapped, or not one block fits."""
    num_slots = plan.swap_space // cache.block_bytes
    return HostMemory(cache, num_slots) if num_slots else None


def open_directory(config: EngineConfig) -> LockedDirectory | None:
    """Where the files are to be, if there are to be any. ConfigError if that cannot be used."""
    return LockedDirectory(Path(config.kv_offload_dir).expanduser()) if config.kv_offload_dir is not None else None


def swap_factory(
    planned: PlannedModel, host: HostMemory, layout: str, directory: LockedDirectory | None
) -> Callable[[BlockPool], SwapManager]:
    """What makes the swap manager of an engine's pool. `layout` is the cache's."""
    config, plan = planned.config, planned.memory
    files = None
    if directory is not None:
        files = BlockFiles(
            directory,
            int(config.kv_offload_space * GIB),
            _identity(planned, layout),
            host.slot,
            reader=ThreadPoolExecutor(1, "octavo-reader"),
            writer=ThreadPoolExecutor(1, "octavo-writer"),
        )
    policy = PreemptionPolicy(config.preemption_mode, plan.block_size, host.seconds_per_block())
    blocks_per_step = max(1, _BYTES_PER_STEP // host.block_bytes)
    pool = HostPool(host.num_slots)
    return lambda block_pool: SwapManager(block_pool, pool, policy, blocks_per_step=blocks_per_step, files=files)


def _identity(planned: PlannedModel, layout: str) -> bytes:
    """Of everything, beside the tokens, that the content of a block depends on."""
    rounded = planned.quantization or f"as stored, activations of {packed_activation_bits(planned.config)} bits"
    weights = f"{fingerprint(planned.checkpoint.path)} {planned.dtype} {rounded}"
    parts = [octavo.__version__, layout, weights, repr(planned.model)]
    return sha256(json.dumps(parts).encode()).digest()
