"""The reference KV cache: one plain array for the keys of all layers and blocks, one for the values."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.kernels.ops import Array

_FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
_FLOAT8_LARGEST = np.float32(448)
_INT8_LARGEST = np.float32(127)


def _untouched(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros in memory of their own, of which a page is taken when it is written. numpy's come from the allocator, which may
    reuse freed memory and clear it at once. MemoryError as there."""
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"{nbytes} bytes for a KV cache: {error}") from None
    array: NDArray[Any] = np.ndarray(shape, dtype, memory)
    return array


class _Stored:
    """One of keys and values: [layers, blocks, block size, KV heads, head size] of the cache's dtype; an int8 one has
    float32 scales [layers, blocks, block size, KV heads]."""

    def __init__(self, shape: tuple[int, int, int, int, int], dtype: np.dtype[Any]) -> None:
        self.values = _untouched(shape, dtype)
        self.scales = _untouched(shape[:-1], np.dtype(np.float32)) if dtype == np.int8 else None
        self.nbytes = self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    def write(self, layer: int, blocks: NDArray[np.int64], offsets: NDArray[np.int64], x: Array) -> None:
        if self.scales is not None:
            x, scales = _to_int8(x)
            self.scales[layer, blocks, offsets] = scales
        elif self.values.dtype == _FLOAT8:
            x = np.clip(x, -_FLOAT8_LARGEST, _FLOAT8_LARGEST)
        self.values[layer, blocks, offsets] = x

    def read(self, layer: int, blocks: NDArray[np.int32]) -> Array:
        """[blocks * block size, k, d] as float32."""
        values: Array = self.values[layer, blocks].astype(np.float32)
        if self.scales is not None:
            values *= self.scales[layer, blocks][..., None]
        flat: Array = values.reshape(-1, *values.shape[2:])
        return flat

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        self.values[:, targets] = self.values[:, sources]
        if self.scales is not None:
            self.scales[:, targets] = self.scales[:, sources]

    def arrays(self) -> list[NDArray[Any]]:
        return [self.values] if self.scales is None else [self.values, self.scales]


class NumpyKVCache:
    """`octavo.kernels.ops.KVCache` in numpy arrays."""

    def __init__(self, shape: tuple[int, int, int, int, int], dtype: np.dtype[Any]) -> None:
        """shape: layers, blocks, block size, KV heads, head size."""
        self.num_blocks = shape[1]
        self.block_size = shape[2]
        self._shape, self._dtype = shape, dtype
        self._keys = _Stored(shape, dtype)
        self._values = _Stored(shape, dtype)
        self.nbytes = self._keys.nbytes + self._values.nbytes
        self.block_bytes = self.nbytes // self.num_blocks
        self.layout = f"numpy {shape[0]}x{shape[2]}x{shape[3]}x{shape[4]} {dtype}"

    def write(self, layer: int, slots: NDArray[np.int64], keys: Array, values: Array) -> None:
        """Round [t, k, d] keys and values to the cache's dtype and store them in the slots [t]."""
        blocks, offsets = slots // self.block_size, slots % self.block_size
        self._keys.write(layer, blocks, offsets, keys)
        self._values.write(layer, blocks, offsets, values)

    def read(self, layer: int, block_table: NDArray[np.int32], first_block: int, length: int) -> tuple[Array, Array]:
        """Keys and values [.., k, d] of one sequence as float32: positions first_block * block size to `length`."""
        blocks = block_table[first_block : -(-length // self.block_size)]
        count = length - first_block * self.block_size
        return self._keys.read(layer, blocks)[:count], self._values.read(layer, blocks)[:count]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, all layers, from the first to the second of each pair."""
        if pairs:
            sources, targets = (list(ids) for ids in zip(*pairs, strict=True))
            self._keys.copy_blocks(sources, targets)
            self._values.copy_blocks(sources, targets)

    def release(self) -> None:
        """Take new memory, none of it touched, in place of the old."""
        self.close()
        self._keys, self._values = _Stored(self._shape, self._dtype), _Stored(self._shape, self._dtype)

    def swap_out(self, moves: Sequence[tuple[int, int]], host: NDArray[np.uint8]) -> None:
        """Copy whole blocks, all layers, to slots of `host` [slots, block_bytes]: pairs of (block, slot)."""
        for block, slot in moves:
            parts = [array[:, block].reshape(-1).view(np.uint8) for array in self._arrays()]
            host[slot] = np.concatenate(parts)

    def swap_in(self, moves: Sequence[tuple[int, int]], host: NDArray[np.uint8]) -> None:
        """Copy slots of `host` to whole blocks: pairs of (slot, block)."""
        for slot, block in moves:
            start = 0
            for array in self._arrays():
                part = array[:, block]
                part[:] = host[slot, start : start + part.nbytes].view(array.dtype).reshape(part.shape)
                start += part.nbytes

    def _arrays(self) -> list[NDArray[Any]]:
        """All that holds blocks, each [layers, blocks, ..]."""
        return [*self._keys.arrays(), *self._values.arrays()]

    def close(self) -> None:
        """Give the memory back."""
        self._keys = self._values = _Stored((0, 0, 0, 0, 0), self._dtype)


def _to_int8(x: Array) -> tuple[NDArray[Any], Array]:
    """[t, k, d] as whole numbers from -127 to 127, and their scales [t, k]: NaN where something is not finite."""
    with np.errstate(invalid="ignore"):
        poison = (x * np.float32(0)).sum(axis=-1)
    scales: Array = np.abs(x).max(axis=-1) / _INT8_LARGEST + poison
    usable = np.isfinite(scales) & (scales != 0)
    quotients = np.rint(np.where(usable[..., None], x, np.float32(0)) / np.where(usable, scales, np.float32(1))[..., None])
    return np.clip(quotients, -_INT8_LARGEST, _INT8_LARGEST).astype(np.int8), scales
