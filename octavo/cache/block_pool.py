"""The KV cache's blocks: which are free, and how many block tables hold each of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence


class IntegrityError(RuntimeError):
    """The bookkeeping of the blocks contradicts itself: a fault of ours, never of a request."""


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, each either free (in the list) or held (reference count above 0).

    The free list is doubly linked through two arrays, so that any block can leave it at once; entry `num_blocks` is the
    list's head and tail in one. Blocks are taken from the front, and a released one goes back to the front: what was
    touched last is used again first, and a lightly used cache never touches most of its memory.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_free = num_blocks
        self._ref_counts = [0] * num_blocks
        self._next = [*range(1, num_blocks + 1), 0]  # _next[i] follows i; the head is entry num_blocks
        self._previous = [num_blocks, *range(num_blocks)]

    @property
    def num_held(self) -> int:
        """Blocks with a reference count above 0."""
        return self.num_blocks - self.num_free

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def ref_count(self, block_id: int) -> int:
        """How many block tables hold the block."""
        return self._ref_counts[block_id]

    def allocate(self, count: int) -> list[int]:
        """Take `count` free blocks, each with a reference count of 1. The caller has looked at `num_free` before."""
        if count > self.num_free:
            raise IntegrityError(f"{count} blocks wanted, {self.num_free} free")
        blocks = []
        for _ in range(count):
            block_id = self._next[self.num_blocks]
            self._unlink(block_id)
            self._ref_counts[block_id] = 1
            blocks.append(block_id)
        return blocks

    def share(self, block_ids: Iterable[int]) -> None:
        """One more block table holds these blocks, which are held already."""
        for block_id in block_ids:
            if not self._ref_counts[block_id]:
                raise IntegrityError(f"block {block_id} is free and cannot be shared")
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """One block table less holds these blocks; those that nobody holds any more are free at once."""
        for block_id in reversed(block_ids):
            if not self._ref_counts[block_id]:
                raise IntegrityError(f"block {block_id} is free and cannot be released")
            self._ref_counts[block_id] -= 1
            if not self._ref_counts[block_id]:
                self._link_first(block_id)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """IntegrityError unless each block is either free or held by exactly as many of `tables` (all there are) as its
        reference count says, no table holds a block twice, and the free list is whole. Cost: the size of the pool."""
        held: Counter[int] = Counter()
        for table in tables:
            if len(set(table)) != len(table):
                raise IntegrityError(f"a block table holds a block twice: {list(table)}")
            held.update(table)
        free = self._walk_free_list()
        for block_id, count in enumerate(self._ref_counts):
            if count != held[block_id]:
                raise IntegrityError(f"block {block_id} has reference count {count}, but {held[block_id]} tables hold it")
            if (count == 0) != (block_id in free):
                raise IntegrityError(f"block {block_id} has reference count {count} and is {'' if count else 'not '}free")

    def _walk_free_list(self) -> set[int]:
        free: set[int] = set()
        last, block_id = self.num_blocks, self._next[self.num_blocks]
        while block_id != self.num_blocks:
            if block_id in free or self._previous[block_id] != last:
                raise IntegrityError(f"the free list is broken at block {block_id}")
            free.add(block_id)
            last, block_id = block_id, self._next[block_id]
        if len(free) != self.num_free or self._previous[self.num_blocks] != last:
            raise IntegrityError(f"the free list holds {len(free)} blocks, {self.num_free} are counted")
        return free

    def _link_first(self, block_id: int) -> None:
        head = self.num_blocks
        first = self._next[head]
        self._next[head], self._previous[block_id] = block_id, head
        self._next[block_id], self._previous[first] = first, block_id
        self.num_free += 1

    def _unlink(self, block_id: int) -> None:
        previous, following = self._previous[block_id], self._next[block_id]
        self._next[previous], self._previous[following] = following, previous
        self.num_free -= 1
