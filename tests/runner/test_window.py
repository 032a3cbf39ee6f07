"""A real model with a window in every layer: the same ids however few blocks there are, and however often it gives way."""

from __future__ import annotations

import time

import numpy as np

from octavo.cache.block_pool import BlockPool
from octavo.cache.host_pool import HostPool
from octavo.engine.engine import Engine
from octavo.engine.preemption import PreemptionPolicy
from octavo.engine.request import Request
from octavo.engine.swap import SwapManager
from octavo.kernels.cpu.ops import CpuOps
from octavo.models.registry import Model
from octavo.runner.host_memory import HostMemory
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams
from tests.golden.derive_families import SEED, load, prompt_of
from tests.models.families import FAMILIES
from tests.models.tiny import tiny_model

BLOCK_SIZE, LONGEST, COUNT = 16, 250, 150
PROMPTS = {"a": prompt_of(1), "b": prompt_of(2)[:37], "c": prompt_of(3) + prompt_of(4)[:30]}


def small() -> tuple[Model, CpuOps]:
    ops = CpuOps(2)
    return tiny_model(ops, FAMILIES["mistral_window"].checkpoint(load()["mistral_window"]["shapes"], SEED)), ops


def answers(num_blocks: int, *, slots: int = 0, batched: int = 24, sees_window: bool = True) -> dict[str, list[int]]:
    """Of all prompts at once. Every fortieth step the last of them gives way, and may find its blocks overwritten."""
    model, ops = small()
    config = model.config
    window = config.cache_window if sees_window else None
    cache = ops.kv_cache(config.num_layers, num_blocks, BLOCK_SIZE, *config.qkv_heads[1:], np.dtype(np.float32))
    host = HostMemory(cache, slots) if slots else None
    runner = ModelRunner(model, ops, cache, max_num_seqs=3, max_model_len=LONGEST, host=host)

    def swap(pool: BlockPool) -> SwapManager:
        return SwapManager(pool, HostPool(slots), PreemptionPolicy("swap", BLOCK_SIZE, 0.0), blocks_per_step=2)

    engine = Engine(
        runner,
        block_size=BLOCK_SIZE,
        max_num_seqs=3,
        max_num_batched_tokens=batched,
        max_model_len=LONGEST,
        window=window,
        swap=swap if slots else None,
    )
    params = SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True)
    for request_id, prompt in PROMPTS.items():
        engine.add(Request(request_id, prompt, params, time.time()))
    found: dict[str, list[int]] = {request_id: [] for request_id in PROMPTS}
    scheduler = engine._scheduler
    while engine.has_work:
        for delta in engine.step().deltas:
            found[delta.request_id] += delta.token_ids
        if engine.num_steps % 40 == 0 and scheduler.running:
            scheduler.preempt(scheduler.running.last)
        engine.check_integrity()
    assert engine.stats().num_preemptions > 2
    assert (engine.stats().num_swapped_in_blocks > 0) == (slots > 0)
    engine.close()
    return found


def test_ids_do_not_depend_on_blocks() -> None:
    assert small()[0].config.cache_window == 20
    everything = answers(64, sees_window=False)
    assert {len(found) for found in everything.values()} == {COUNT}
    for num_blocks, slots, batched in [(12, 0, 24), (6, 8, 24), (8, 12, 300), (3, 0, 24)]:
        assert answers(num_blocks, slots=slots, batched=batched) == everything, num_blocks
