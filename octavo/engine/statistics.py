"""The engine's counters and gauges, gathered from the parts that count."""

from __future__ import annotations

import msgspec

from octavo.engine.preparation import Preparation
from octavo.engine.request import EngineStats
from octavo.engine.scheduler import Scheduler
from octavo.engine.swap import SwapManager


def collect_stats(
    counters: EngineStats, scheduler: Scheduler, preparation: Preparation, swap: SwapManager | None
) -> EngineStats:
    """`counters`, which the engine keeps itself, and beside them what the others know as of now."""
    pool = scheduler.pool
    stats = msgspec.structs.replace(
        counters,
        num_running=len(scheduler.running),
        num_waiting=len(scheduler.waiting) + preparation.num_sequences,
        num_blocks=pool.num_blocks,
        num_free_blocks=pool.num_free,
        num_preemptions=scheduler.num_preemptions,
        num_swap_preemptions=scheduler.num_swap_preemptions,
        num_evicted_blocks=pool.num_evictions,
        num_copied_blocks=scheduler.num_copied_blocks,
        prefix_cache_queries=scheduler.num_queried_tokens,
        prefix_cache_hits=scheduler.num_cached_tokens,
    )
    if swap is not None:
        stats.num_swapped_out_blocks = swap.num_swapped_out
        stats.num_swapped_in_blocks = swap.num_swapped_in
        stats.num_host_blocks = swap.host.num_slots
        stats.num_used_host_blocks = len(swap.host)
        stats.external_cache_queries = scheduler.num_queried_tokens - scheduler.num_cached_tokens
        stats.external_cache_hits = scheduler.num_fetched_tokens
    return stats
