"""The reference KV cache: one plain array for the keys of all layers and blocks, one for the values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.ops import Array


class NumpyKVCache:
    """`keys` and `values` are [layers, blocks, block size, KV heads, head size] of the cache's dtype."""

    def __init__(self, shape: tuple[int, int, int, int, int], dtype: np.dtype[Any]) -> None:
        self.num_blocks = shape[1]
        self.block_size = shape[2]
        self.keys = np.zeros(shape, dtype)
        self.values = np.zeros(shape, dtype)
        self.nbytes = self.keys.nbytes + self.values.nbytes

    def write(self, layer: int, slots: NDArray[np.int64], keys: Array, values: Array) -> None:
        """Round [t, k, d] keys and values to the cache's dtype and store them in the slots [t]."""
        blocks, offsets = slots // self.block_size, slots % self.block_size
        self.keys[layer, blocks, offsets] = keys
        self.values[layer, blocks, offsets] = values

    def read(self, layer: int, block_table: NDArray[np.int32], length: int) -> tuple[Array, Array]:
        """Gather the first `length` keys and values [length, k, d] of one sequence, as float32."""
        blocks = block_table[: -(-length // self.block_size)]
        return _gather(self.keys[layer], blocks, length), _gather(self.values[layer], blocks, length)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, all layers, from the first to the second of each pair."""
        if pairs:
            sources, targets = (list(ids) for ids in zip(*pairs, strict=True))
            self.keys[:, targets] = self.keys[:, sources]
            self.values[:, targets] = self.values[:, sources]

    def release(self) -> None:
        """Take new memory, none of it touched, in place of the old."""
        shape, dtype = self.keys.shape, self.keys.dtype
        self.keys = self.values = np.zeros(0, dtype)
        self.keys, self.values = np.zeros(shape, dtype), np.zeros(shape, dtype)

    def close(self) -> None:
        """Give the memory back."""
        self.keys = self.values = np.zeros(0, self.keys.dtype)


def _gather(stored: NDArray[Any], blocks: NDArray[np.int32], length: int) -> Array:
    gathered = stored[blocks]  # [b, block size, k, d]
    return gathered.reshape(-1, *gathered.shape[2:])[:length].astype(np.float32)
