"""What the scheduler tells the runner to do in one step, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import msgspec

from octavo.engine.request import Request, TokenLogprobs
from octavo.pooling.params import Pooled


@dataclass(slots=True)
class NewRow:
    """A sequence takes a row of the runner's state arrays (first admission, or again after a preemption)."""

    row: int
    request: Request
    index: int  # which of n
    output_token_ids: list[int]  # generated before a preemption; empty at first


class ScheduledRow(msgspec.Struct, gc=False):
    """Compute tokens [start, start + num_tokens) of the row's sequence.

    With `num_tokens` 0 the sequence is a fork of the one scheduled just before it, up to `start`: it has the same tokens
    and blocks, and draws its first token from the same logits.
    """

    row: int
    start: int
    num_tokens: int
    new_block_ids: list[int]  # appended to the row's block table before the step
    sample: bool  # the last token of the range is the newest one known: draw the next
    replaces_last: bool = False  # the first of new_block_ids takes the place of the table's last block, not the one behind


class BlockMoves(msgspec.Struct):
    """Whole blocks between the KV cache and slots of host memory: first all `outs`, then all `ins`."""

    outs: list[tuple[int, int]] = []  # (block, slot)
    ins: list[tuple[int, int]] = []  # (slot, block)

    def __bool__(self) -> bool:
        return bool(self.outs or self.ins)


class StepPlan(msgspec.Struct):
    """`freed_rows` first, then `new_rows`, then the computation. Differences only: the runner keeps the rest. Freeing a
    row that is free already does nothing (it happens after a failed step).

    `new_block_ids` of a row in `new_rows` is its whole block table. It may begin with blocks that hold the sequence's first
    tokens already, or that rows before it in `scheduled` write in this step: all writes to a layer come before its first
    read. Nobody else holds a block that a row writes, but for such rows behind it.

    The moves in `before` and then `block_copies` (source, target), in their order, happen before the step's first write.
    Those in `meanwhile` happen at any time between `before` and the end of the step, which writes none of their blocks and
    reads none that they write. A plan may have nothing but moves.
    """

    freed_rows: list[int] = []
    new_rows: list[NewRow] = []
    scheduled: list[ScheduledRow] = []
    block_copies: list[tuple[int, int]] = []
    before: BlockMoves = msgspec.field(default_factory=BlockMoves)
    meanwhile: BlockMoves = msgspec.field(default_factory=BlockMoves)

    def __bool__(self) -> bool:
        """Whether there is anything to execute."""
        return bool(self.scheduled or self.before or self.meanwhile)


class RowResult(msgspec.Struct, gc=False):
    """What the step gave for one scheduled row."""

    token_id: int | None = None  # when `sample` was set
    logprobs: TokenLogprobs | None = None
    error: str | None = None  # this row alone failed; its sequence ends, the others go on
    prompt_logprobs: list[TokenLogprobs] | None = (
        None  # for prompt positions start + 1 .. start + num_tokens (those < prompt length)
    )
    pooled: Pooled | None = None  # when `sample` was set for a pooling request


class Runner(Protocol):
    """Runs steps. `ModelRunner` is the real one; tests script one that emits prepared ids."""

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV cache."""

    def execute(self, plan: StepPlan) -> list[RowResult]:
        """One result per scheduled row, in order. Appends sampled tokens to its own rows."""

    def release_cache(self) -> None:
        """Give back the cache's memory until blocks are written again: nobody holds one, and none is to be found."""

    def close(self) -> None:
        """Give back weights and cache."""
