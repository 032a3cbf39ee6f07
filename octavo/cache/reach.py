"""How far back attention looks: where all layers of a model see a sliding window, the blocks before it are not needed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

NO_BLOCK = -1  # in a block table, where nothing is looked at any more


@dataclass(frozen=True)
class Reach:
    """Of the layer that looks back furthest. `window`: keys that a query sees, its own included; None: all."""

    block_size: int
    window: int | None = None

    @property
    def blocks_behind(self) -> int | None:
        """How many full blocks before its own block a query may look at; None: all. At least one, so that a prefix is
        always known by something."""
        return None if self.window is None else max(1, -(-(self.window - 1) // self.block_size))

    def first_block(self, position: int) -> int:
        """The first block that is kept for a query at `position`, wherever it lies in its block, and for those behind it."""
        behind = self.blocks_behind
        return 0 if behind is None else max(0, position // self.block_size - behind)

    def most_blocks(self, num_tokens: int, chunk: int) -> int:
        """The most blocks that a sequence of so many tokens ever holds, if no step computes more than `chunk` of them."""
        behind, blocks = self.blocks_behind, -(-num_tokens // self.block_size)
        return blocks if behind is None else min(blocks, behind + 1 + (chunk + self.block_size - 2) // self.block_size)

    def longest_chunk(self, num_blocks: int) -> int | None:
        """The most tokens of a step with which a sequence of any length gets along with so many blocks; None: there is no
        such number."""
        behind = self.blocks_behind
        if behind is None or num_blocks <= behind:
            return None
        return (num_blocks - behind - 1) * self.block_size + 1

    def longest_prefix(self, known: Iterable[bool]) -> int:
        """How many blocks of a sequence need not be computed, of which some are known: those that a query behind them would
        look at must be. No block is asked for that makes no difference."""
        longest = run = 0
        for count, is_known in enumerate(known, 1):
            run = run + 1 if is_known else 0
            if run == count or (self.blocks_behind is not None and run >= self.blocks_behind):
                longest = count
            elif self.blocks_behind is None:
                break
        return longest
