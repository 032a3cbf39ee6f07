"""Slots of host memory for the contents of KV blocks, and their moves."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from octavo.engine.plan import BlockMoves
from octavo.kernels.ops import KVCache


class HostMemory:
    """`num_slots` slots for blocks of a cache. The memory is reserved, and touched only as slots are filled."""

    def __init__(self, cache: KVCache, num_slots: int) -> None:
        self.num_slots = num_slots
        self.block_bytes = cache.block_bytes
        self._cache = cache
        self._slots = np.empty((num_slots, cache.block_bytes), np.uint8)
        self._mover = ThreadPoolExecutor(1, "octavo-mover")

    def slot(self, number: int) -> memoryview:
        """The bytes of a slot, to read and to write."""
        return memoryview(self._slots[number])

    def move(self, moves: BlockMoves) -> None:
        """First all that go out, then all that come in. IndexError for a block or slot that does not exist."""
        self._cache.swap_out(moves.outs, self._slots)
        self._cache.swap_in(moves.ins, self._slots)

    def move_meanwhile(self, moves: BlockMoves) -> Future[None]:
        """`move`, on a thread of its own."""
        return self._mover.submit(self.move, moves)

    def seconds_per_block(self) -> float:
        """What moving one block takes, one way: measured with a few, before anything is in the cache."""
        count = min(8, self._cache.num_blocks, self.num_slots)
        moves = [(number, number) for number in range(count)]
        self._cache.swap_out(moves, self._slots)  # touches the slots,
        self._cache.swap_in(moves, self._slots)  # and these the blocks
        begin = time.perf_counter()
        self._cache.swap_out(moves, self._slots)
        return (time.perf_counter() - begin) / count

    def release(self) -> None:
        """Take new memory, none of it touched, in place of the old: nothing in it is needed any more."""
        self._slots = np.empty_like(self._slots)

    def close(self) -> None:
        """Give the memory back."""
        self._mover.shutdown()
        self._slots = np.empty((0, 0), np.uint8)
