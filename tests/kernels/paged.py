"""Sequences in scattered blocks, and batches over them, for the attention tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.ops import Array, KVCache, Ops
from octavo.runner.batch import Batch

LAYERS, LAYER = 2, 1


@dataclass
class Paged:
    """Sequences of `lengths` tokens with random q, k and v, their blocks scattered over the pool."""

    lengths: list[int]
    heads: tuple[int, int, int]
    block_size: int
    seed: int = 0
    scale: float = 0.25
    qkv: list[Array] = field(init=False)
    tables: NDArray[np.int32] = field(init=False)
    num_blocks: int = field(init=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.seed)
        n, k, d = self.heads
        needed = [-(-length // self.block_size) for length in self.lengths]
        self.num_blocks = sum(needed) + 3
        ids = random.permutation(self.num_blocks)
        self.tables = np.full((len(self.lengths), max(needed) + 1), -1, np.int32)  # -1: must not be looked at
        for row, count in enumerate(needed):
            self.tables[row, :count], ids = ids[:count], ids[count:]
        self.qkv = [random.standard_normal((length, (n + 2 * k) * d), np.float32) for length in self.lengths]

    def cache(self, ops: Ops, dtype: np.dtype) -> KVCache:
        """A cache of `ops` that holds every sequence whole, and garbage in every slot after its end."""
        n, k, d = self.heads
        cache = ops.kv_cache(LAYERS, self.num_blocks, self.block_size, k, d, dtype)
        everywhere = np.arange(self.num_blocks * self.block_size, dtype=np.int64)
        garbage = np.full((len(everywhere), (n + 2 * k) * d), np.inf, np.float32)
        ops.write_cache(garbage, cache, LAYER, self._slots_only(everywhere), self.heads)
        for sequence, rows in enumerate(self.qkv):
            ops.write_cache(rows, cache, LAYER, self._slots_only(self.slots(sequence)), self.heads)
        return cache

    def slots(self, sequence: int) -> NDArray[np.int64]:
        positions = np.arange(self.lengths[sequence])
        blocks = self.tables[sequence, positions // self.block_size].astype(np.int64)
        return blocks * self.block_size + positions % self.block_size

    def attend(self, ops: Ops, cache: KVCache, ranges: list[tuple[int, int, int]], **scoring: Any) -> Array:
        """Attention of tokens [start, end) of sequences, back to back: ranges of (sequence, start, end). With a window, the
        blocks before it are gone."""
        counts = [end - start for _, start, end in ranges]
        nothing32, nothing64 = np.zeros(0, np.int32), np.zeros(0, np.int64)
        tables = self.tables[[sequence for sequence, _, _ in ranges]]
        if scoring.get("window"):
            for row, (_, start, _) in enumerate(ranges):
                tables[row, : max(0, start - scoring["window"] + 1) // self.block_size] = -1
        batch = Batch(
            token_ids=nothing32,
            positions=nothing32,
            slot_mapping=nothing64,
            query_starts=np.cumsum([0, *counts]).astype(np.int32),
            seq_lens=np.array([end for _, _, end in ranges], np.int32),
            block_tables=tables,
            logits_rows=nothing32,
        )
        rows = np.concatenate([self.qkv[sequence][start:end] for sequence, start, end in ranges])
        return ops.attention(rows, cache, LAYER, batch, self.heads, self.scale, **scoring)

    @staticmethod
    def _slots_only(slots: NDArray[np.int64]) -> Batch:
        nothing = np.zeros(0, np.int32)
        return Batch(nothing, nothing, slots, nothing, nothing, nothing.reshape(0, 0), nothing)


def rotate(
    ops: Ops,
    qkv: Array,
    table: Array,
    positions: NDArray[np.int32],
    heads: tuple[int, int, int],
    dtype: np.dtype,
    *,
    interleaved: bool = False,
) -> KVCache:
    """Rotate the q and k heads of qkv [t, ..] in place; gives the cache of one layer that has taken k and v in its first t
    slots."""
    tokens = len(qkv)
    cache = ops.kv_cache(1, max(1, -(-tokens // 16)), 16, heads[1], heads[2], dtype)
    nothing = np.zeros(0, np.int32)
    slots = np.arange(tokens, dtype=np.int64)
    batch = Batch(nothing, positions, slots, nothing, nothing, nothing.reshape(0, 0), nothing)
    ops.write_cache(qkv, cache, 0, batch, heads, lambda _: table, interleaved=interleaved)
    return cache
