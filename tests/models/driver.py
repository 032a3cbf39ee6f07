"""Runs a model: one sequence cut into steps without an engine, its blocks scattered over the cache; or by the engine."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.engine.engine import Engine
from octavo.engine.request import Request
from octavo.kernels.ops import Ops
from octavo.models.registry import Model
from octavo.runner.batch import Batch
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams

BLOCK_SIZE = 16


def logits_of(model: Model, ops: Ops, token_ids: Sequence[int], chunk: int) -> NDArray[np.float32]:
    """Logits [tokens, vocabulary] at every position of a prompt computed `chunk` tokens at a time."""
    config = model.config
    blocks = -(-len(token_ids) // BLOCK_SIZE)
    cache = ops.kv_cache(
        config.num_layers, 2 * blocks + 1, BLOCK_SIZE, config.num_kv_heads, config.head_dim, np.dtype(np.float32)
    )
    table = (np.random.RandomState(1).permutation(2 * blocks)[:blocks] + 1).astype(np.int32)
    parts = []
    for start in range(0, len(token_ids), chunk):
        batch = _step(np.asarray(token_ids, np.int32), start, min(start + chunk, len(token_ids)), table)
        parts.append(model.logits(model.forward(batch, cache)))
    cache.close()
    return np.concatenate(parts)


def generate_twice(model: Model, ops: Ops, prompt: list[int], count: int) -> list[tuple[list[int], int]]:
    """`count` greedy tokens after the prompt by the engine, which takes 24 tokens a step, past any EOS; and again, when the
    prompt's blocks are cached. With each: how many of its tokens were found in the cache."""
    config, longest = model.config, len(prompt) + count
    cache = ops.kv_cache(config.num_layers, 16, BLOCK_SIZE, config.num_kv_heads, config.head_dim, np.dtype(np.float32))
    runner = ModelRunner(model, ops, cache, max_num_seqs=2, max_model_len=longest)
    limits = {"max_num_seqs": 2, "max_num_batched_tokens": 24, "max_model_len": longest}
    engine = Engine(runner, block_size=BLOCK_SIZE, window=config.cache_window, **limits)
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    found = []
    for request_id in ("first", "second"):
        engine.add(Request(request_id, prompt, params, time.time()))
        deltas = []
        while engine.has_work:
            deltas += engine.step().deltas
        tokens = [token for delta in deltas for token in delta.token_ids]
        found.append((tokens, max(delta.num_cached_tokens for delta in deltas)))
    cache.close()
    return found


def _step(token_ids: NDArray[np.int32], start: int, end: int, table: NDArray[np.int32]) -> Batch:
    positions = np.arange(start, end)
    return Batch(
        token_ids=token_ids[start:end],
        positions=positions.astype(np.int32),
        slot_mapping=table[positions // BLOCK_SIZE].astype(np.int64) * BLOCK_SIZE + positions % BLOCK_SIZE,
        query_starts=np.array([0, end - start], np.int32),
        seq_lens=np.array([end], np.int32),
        block_tables=table[None, : -(-end // BLOCK_SIZE)],
        logits_rows=np.arange(end - start, dtype=np.int32),
    )
