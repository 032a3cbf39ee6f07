"""Which blocks hold a sequence's keys and values."""

from __future__ import annotations

from octavo.cache.block_pool import BlockPool


class BlockTable:
    """The blocks of one sequence in the order of its tokens. It grows at the end only, until all of it is released."""

    __slots__ = ("_pool", "block_ids")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.block_ids: list[int] = []

    def missing(self, num_tokens: int) -> int:
        """How many blocks must be added before the table can hold `num_tokens` tokens."""
        missing = self._pool.blocks_for(num_tokens) - len(self.block_ids)
        return missing if missing > 0 else 0

    def grow(self, num_tokens: int) -> list[int]:
        """Add the blocks that `num_tokens` tokens need, and return those added. The pool has them: see `missing`."""
        missing = self.missing(num_tokens)
        added = self._pool.allocate(missing) if missing else []
        self.block_ids += added
        return added

    def release(self) -> None:
        """Give all blocks back; the table is empty and can grow again."""
        self._pool.release(self.block_ids)
        self.block_ids = []
