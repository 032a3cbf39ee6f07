"""The paged cache in the native library's memory."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.buffers import INT32, UINT8, address, cache_dtype_code
from octavo.kernels.cpu.library import failure, last_failure, library_digest


class NativeCache:
    """K and V of all layers in the library's own layout (`KVCache` of octavo.kernels.ops). Memory is given back by
    `close`, or with the object."""

    def __init__(
        self,
        library: CDLL,
        context: int | None,
        isa: str,
        layers: int,
        blocks: int,
        block_size: int,
        kv_heads: int,
        head_size: int,
        dtype: np.dtype[Any],
    ) -> None:
        self.library = library
        self._isa = isa
        self.pointer: int | None = None
        self.layers = layers
        self.num_blocks = blocks
        self.block_size = block_size
        self.kv_heads = kv_heads
        self.head_size = head_size
        self.dtype = np.dtype(dtype)
        self._shape = context, layers, blocks, block_size, kv_heads, head_size, cache_dtype_code(dtype)
        self._open()
        self.nbytes: int = library.octavo_cache_bytes(self.pointer)
        self.block_bytes: int = library.octavo_cache_block_bytes(self.pointer)

    def _open(self) -> None:
        self.pointer = self.library.octavo_cache_new(*self._shape)
        if self.pointer is None:
            raise last_failure()

    @property
    def layout(self) -> str:
        """The shape of a block, and whose kernels compute what is in it: bits differ between instruction sets, and may
        between builds."""
        shape = f"{self.layers}x{self.block_size}x{self.kv_heads}x{self.head_size} {self.dtype}"
        return f"cpu {self._isa} {library_digest()} {shape}"

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, all layers, from the first to the second of each pair, in order. IndexError for a block that
        does not exist; nothing is copied then."""
        if not pairs:
            return
        flat = np.array(pairs, dtype=np.int32).reshape(-1)
        status = self.library.octavo_cache_copy(self.pointer, address(flat, INT32), len(pairs))
        if status:
            raise failure(status)

    def release(self) -> None:
        """Take new memory, none of it touched, in place of the old."""
        self.close()
        self._open()

    def swap_out(self, moves: Sequence[tuple[int, int]], host: NDArray[np.uint8]) -> None:
        """Copy whole blocks, all layers, to slots of `host` [slots, block_bytes]: pairs of (block, slot). IndexError for
        one that does not exist; nothing is copied then."""
        self._swap(self.library.octavo_cache_swap_out, moves, host)

    def swap_in(self, moves: Sequence[tuple[int, int]], host: NDArray[np.uint8]) -> None:
        """Copy slots of `host` to whole blocks: pairs of (slot, block). IndexError as for `swap_out`."""
        self._swap(self.library.octavo_cache_swap_in, moves, host)

    def _swap(self, function: Any, moves: Sequence[tuple[int, int]], host: NDArray[np.uint8]) -> None:
        if not moves:
            return
        if host.shape[1:] != (self.block_bytes,):
            raise ValueError(f"expected slots of {self.block_bytes} bytes, got shape {host.shape}")
        flat = np.array(moves, dtype=np.int32).reshape(-1)
        status = function(self.pointer, address(flat, INT32), len(moves), address(host, UINT8), len(host))
        if status:
            raise failure(status)

    def close(self) -> None:
        """Give the memory back; any later use is a ValueError."""
        if self.pointer is not None:
            self.library.octavo_cache_free(self.pointer)
            self.pointer = None

    def __del__(self) -> None:
        self.close()
