"""Which blocks hold a sequence's keys and values."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cache.block_pool import BlockPool
from octavo.cache.reach import NO_BLOCK


class BlockTable:
    """The blocks of one sequence in the order of its tokens, for `num_tokens` tokens.

    It grows at the end only, until all of it is released. Blocks may be shared with other tables, and what is shared is
    never written: full blocks never are, and a last block that is not full is copied before the next token goes there.

    Where attention does not look back to the beginning, the first `num_gone` blocks were given back, or never taken, and
    NO_BLOCK is in their places.
    """

    __slots__ = ("_pool", "block_ids", "num_gone", "num_tokens", "was_forked")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.block_ids: list[int] = []
        self.num_gone = 0
        self.num_tokens = 0
        self.was_forked = False  # and not written since: others may hold its last block, which is not full

    @property
    def held_ids(self) -> list[int]:
        """Without those that are gone."""
        return self.block_ids[self.num_gone :]

    def missing(self, num_tokens: int) -> int:
        """How many blocks must be taken before the table can hold `num_tokens` tokens; a copy is one of them."""
        missing = self._pool.blocks_for(num_tokens) - len(self.block_ids) + (self.was_forked and self._must_copy)
        return missing if missing > 0 else 0

    def share(self, block_ids: Sequence[int]) -> None:
        """Begin an empty table with full blocks of others, or of nobody any more, that hold its first tokens; NO_BLOCK where
        they are not needed."""
        self.block_ids = list(block_ids)
        self.num_gone = self.block_ids.count(NO_BLOCK)
        self._pool.share(self.held_ids)
        self.num_tokens = len(block_ids) * self._pool.block_size

    def fork(self, other: BlockTable) -> None:
        """Begin the other, empty, table with all that this one holds."""
        other.share(self.block_ids)
        other.num_tokens = self.num_tokens
        self.was_forked = other.was_forked = self.num_tokens % self._pool.block_size != 0

    def copy_on_write(self) -> tuple[int, int] | None:
        """Call before the next token is written. If it would go to a shared block, that one is replaced by a new one: the
        two ids between which the content must be copied."""
        must_copy, self.was_forked = self.was_forked and self._must_copy, False
        if not must_copy:
            return None
        source = self.block_ids[-1]
        (target,) = self._pool.allocate(1)
        self._pool.release([source])
        self.block_ids[-1] = target
        return source, target

    def grow(self, num_tokens: int) -> list[int]:
        """Add the blocks that `num_tokens` tokens need, and return those added. The pool has them: see `missing`."""
        missing = self._pool.blocks_for(num_tokens) - len(self.block_ids)
        added = self._pool.allocate(missing) if missing > 0 else []
        self.block_ids += added
        self.num_tokens = max(num_tokens, self.num_tokens)
        return added

    def drop_unseen(self) -> None:
        """Give back the blocks that no token from the next one on looks at. Those stay that a sequence would need which goes
        on behind the last full block: so one that gives way finds all it wants if nothing was overwritten."""
        if self._pool.reach.window is None:
            return
        first = self._pool.reach.first_block(self.num_tokens)
        if first > self.num_gone:
            self._pool.release(self.block_ids[self.num_gone : first])
            self.block_ids[self.num_gone : first] = [NO_BLOCK] * (first - self.num_gone)
            self.num_gone = first

    def release(self) -> None:
        """Give all blocks back; the table is empty and can grow again."""
        self._pool.release(self.held_ids)
        self.block_ids = []
        self.num_gone = 0
        self.num_tokens = 0
        self.was_forked = False

    @property
    def _must_copy(self) -> bool:
        return self._pool.ref_count(self.block_ids[-1]) > 1
