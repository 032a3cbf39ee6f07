"""The KV cache's blocks: which are free, what those still hold, and how many block tables hold each of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from octavo.cache.prefix_index import IntegrityError, PrefixIndex
from octavo.cache.reach import Reach

__all__ = ["BlockPool", "IntegrityError"]


class BlockPool:
    """`num_blocks` blocks of `block_size` tokens, each either held (reference count above 0) or free (in the list). A free
    block whose content the index knows is cached: a prompt that begins with it may take it back.

    The free list is doubly linked through two arrays, so that any block can leave it at once; entry `num_blocks` is the
    list's head and tail in one. Blocks are taken from the front:

        front  [ empty: released last first ]  [ cached: released first first, a table's last block before its first ]

    So what was touched last is used again first, content is given up only when there is nothing else, the least recently
    used first, and a block never before those that can only be found through it.
    """

    def __init__(self, num_blocks: int, block_size: int, window: int | None = None) -> None:
        """`window`: as in `Reach`."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.reach = Reach(block_size, window)
        self.num_free = num_blocks
        self.num_cached = 0
        self.num_evictions = 0  # cached blocks that were overwritten
        self.on_eviction: Callable[[int, bytes], None] | None = None  # told the block and its digest, before it is used
        self.index = PrefixIndex(self.reach)
        self._ref_counts = [0] * num_blocks
        self._next = [*range(1, num_blocks + 1), 0]  # _next[i] follows i; the head is entry num_blocks
        self._previous = [num_blocks, *range(num_blocks)]

    @property
    def num_held(self) -> int:
        """Blocks with a reference count above 0."""
        return self.num_blocks - self.num_free

    def counts(self) -> dict[str, int]:
        """Free (without content), cached and held blocks, and the total of these."""
        return {
            "free": self.num_free - self.num_cached,
            "cached": self.num_cached,
            "held": self.num_held,
            "total": self.num_blocks,
        }

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
            if block_id in self.index:
                self._evict(block_id)
            self._ref_counts[block_id] = 1
            blocks.append(block_id)
        return blocks

    def share(self, block_ids: Iterable[int]) -> None:
        """One more block table holds these blocks, which are held already or cached."""
        for block_id in block_ids:
            if not self._ref_counts[block_id]:
                if block_id not in self.index:
                    raise IntegrityError(f"block {block_id} is free and cannot be shared")
                self._unlink(block_id)
            self._ref_counts[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """One block table less holds these blocks, which are in the order of their tokens; those that nobody holds any more
        are free at once."""
        for block_id in reversed(block_ids):
            if not self._ref_counts[block_id]:
                raise IntegrityError(f"block {block_id} is free and cannot be released")
            self._ref_counts[block_id] -= 1
            if not self._ref_counts[block_id]:
                self._free(block_id)

    def publish(self, block_id: int, digest: bytes) -> None:
        """A held block is full, and from now on found by its digest."""
        if not self._ref_counts[block_id]:
            raise IntegrityError(f"block {block_id} is free and has no content")
        self.index.add(block_id, digest)

    def forget(self, block_ids: Iterable[int]) -> None:
        """These blocks, which are held, are not found any more, if they were."""
        for block_id in block_ids:
            if not self._ref_counts[block_id]:
                raise IntegrityError(f"block {block_id} is free and cannot be forgotten")
            if block_id in self.index:
                self.index.remove(block_id)

    def forget_contents(self) -> None:
        """No block that was written before is found any more; those that are held stay so."""
        cached = [block_id for block_id in self._walk_free_list() if block_id in self.index]
        for block_id in cached:
            self._unlink(block_id)
        self.index.clear()
        for block_id in cached:
            self._link_first(block_id)

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """IntegrityError unless each block is either free or held by exactly as many of `tables` (all there are) as its
        reference count says, no table holds a block twice, the free list is whole, with the cached blocks last, and the
        index agrees with itself. Cost: the size of the pool."""
        held: Counter[int] = Counter()
        for table in tables:
            if len(set(table)) != len(table):
                raise IntegrityError(f"a block table holds a block twice: {list(table)}")
            held.update(table)
        free = set(self._walk_free_list())
        for block_id, count in enumerate(self._ref_counts):
            if count != held[block_id]:
                raise IntegrityError(f"block {block_id} has reference count {count}, but {held[block_id]} tables hold it")
            if (count == 0) != (block_id in free):
                raise IntegrityError(f"block {block_id} has reference count {count} and is {'' if count else 'not '}free")
        self._check_cached()

    def _check_cached(self) -> None:
        is_cached = [block_id in self.index for block_id in self._walk_free_list()]
        if sum(is_cached) != self.num_cached or is_cached != sorted(is_cached):
            raise IntegrityError(f"{self.num_cached} free blocks are counted as cached; in the list they are {is_cached}")
        self.index.check_integrity()

    def _walk_free_list(self) -> Iterator[int]:
        """The free blocks, the next to be taken first. IntegrityError if the list is broken."""
        count, last, block_id = 0, self.num_blocks, self._next[self.num_blocks]
        while block_id != self.num_blocks:
            count += 1
            if count > self.num_free or self._previous[block_id] != last:
                raise IntegrityError(f"the free list is broken at block {block_id}")
            yield block_id
            last, block_id = block_id, self._next[block_id]
        if count != self.num_free or self._previous[self.num_blocks] != last:
            raise IntegrityError(f"the free list holds {count} blocks, {self.num_free} are counted")

    def _evict(self, block_id: int) -> None:
        digest = self.index.remove(block_id)
        self.num_evictions += 1
        if self.on_eviction is not None:
            self.on_eviction(block_id, digest)

    def _free(self, block_id: int) -> None:
        """Nobody holds the block any more. Of blocks with the same content one is enough to keep; it takes the place that
        this one would have had."""
        if block_id not in self.index:
            self._link_first(block_id)
            return
        twin = self.index.twin(block_id)
        if twin is None:
            self._link_last(block_id)
            return
        self.index.remove(block_id)
        self._link_first(block_id)
        if not self._ref_counts[twin]:
            self._unlink(twin)
            self._link_last(twin)

    def _link_first(self, block_id: int) -> None:
        """An empty block becomes the next to be taken."""
        self._link(block_id, self.num_blocks)

    def _link_last(self, block_id: int) -> None:
        """A block with content becomes the last to be taken."""
        self._link(block_id, self._previous[self.num_blocks])
        self.num_cached += 1

    def _link(self, block_id: int, previous: int) -> None:
        following = self._next[previous]
        self._next[previous], self._previous[block_id] = block_id, previous
        self._next[block_id], self._previous[following] = following, block_id
        self.num_free += 1

    def _unlink(self, block_id: int) -> None:
        previous, following = self._previous[block_id], self._next[block_id]
        self._next[previous], self._previous[following] = following, previous
        self.num_free -= 1
        self.num_cached -= block_id in self.index
