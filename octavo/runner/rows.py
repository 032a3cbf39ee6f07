"""The permanent rows of the running sequences, and the flat batch gathered from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
from numpy.typing import NDArray

from octavo.engine.plan import NewRow, ScheduledRow
from octavo.errors import ConfigError
from octavo.runner.batch import Batch
from octavo.sampling.state import SamplingState


@dataclass(slots=True)
class StepRows:
    """A step's s scheduled rows as columns, in the order of the plan."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]
    samples: NDArray[np.bool_]
    is_plain: bool  # each row computes one token and draws the next: what most steps are

    @classmethod
    def of(cls, scheduled: Sequence[ScheduledRow]) -> StepRows:
        """s >= 1."""
        counts = [each.num_tokens for each in scheduled]
        samples = [each.sample for each in scheduled]
        return cls(
            np.array([each.row for each in scheduled], np.int64),
            np.array([each.start for each in scheduled], np.int64),
            np.array(counts, np.int64),
            np.array(samples, np.bool_),
            counts.count(1) == len(counts) and False not in samples,
        )

    @property
    def computes(self) -> NDArray[np.bool_]:
        """Which rows have tokens to compute; the others are forks of the row before them."""
        return self.counts > 0

    @property
    def ends(self) -> NDArray[np.int64]:
        """Positions after the last token of each."""
        return self.starts + self.counts

    @property
    def query_ends(self) -> NDArray[np.int64]:
        """Tokens of the flat batch after the last token of each."""
        return np.cumsum(self.counts)


class Rows:
    """State of up to `max_num_seqs` sequences, one row each from admission to its end.

    The arrays are as large as they can ever get, but the operating system hands out their pages as sequences grow into
    them: a row costs what its longest sequence so far took.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        """ConfigError where the system has no addresses for so much."""
        self.block_size = block_size
        try:
            self.token_ids = np.zeros((max_num_seqs, max_model_len), np.int32)
            self.block_tables = np.zeros((max_num_seqs, -(-max_model_len // block_size)), np.int32)
        except (MemoryError, ValueError):  # numpy counts no further than 2^63 bytes
            raise ConfigError(
                f"--max-model-len {max_model_len} times --max-num-seqs {max_num_seqs} are too many tokens to keep; lower one"
            ) from None
        self.num_tokens = np.zeros(max_num_seqs, np.int64)  # prompt and output
        self.num_blocks = np.zeros(max_num_seqs, np.int64)
        self.num_scored = np.zeros(max_num_seqs, np.int64)  # leading positions whose next token's logprobs are wanted
        self._numbers = np.arange(max_num_seqs + 1, dtype=np.int32)
        self._states: list[SamplingState | None] = [None] * max_num_seqs

    def add(self, new: NewRow, state: SamplingState | None) -> None:
        """Fill a row with a sequence's tokens; `state` is None where nothing is drawn. Its blocks come with its first
        `ScheduledRow`."""
        prompt, output = new.request.prompt_token_ids, new.output_token_ids
        length = len(prompt) + len(output)
        self.token_ids[new.row, : len(prompt)] = prompt
        self.token_ids[new.row, len(prompt) : length] = output
        self.num_tokens[new.row] = length
        self.num_blocks[new.row] = 0
        self.num_scored[new.row] = _scored_positions(new)
        self._states[new.row] = state

    def free(self, row: int) -> None:
        """Forget a sequence."""
        self.num_tokens[row] = 0
        self._states[row] = None

    def state(self, row: int) -> SamplingState:
        """The sampling state of a taken row."""
        return self.states([row])[0]

    def states(self, rows: Sequence[int]) -> list[SamplingState]:
        """The sampling states of taken rows."""
        states = [self._states[row] for row in rows]
        if None in states:
            raise RuntimeError(f"row {rows[states.index(None)]} is free")
        return cast("list[SamplingState]", states)

    def tokens(self, row: int, start: int, count: int) -> NDArray[np.int32]:
        """The row's token ids at [start, start + count)."""
        return self.token_ids[row, start : start + count]

    def append_blocks(self, row: int, block_ids: Sequence[int], *, replaces_last: bool = False) -> None:
        """Extend a row's block table, from its last block on if that was copied."""
        first = self.num_blocks[row] - replaces_last
        last = first + len(block_ids)
        self.block_tables[row, first:last] = block_ids
        self.num_blocks[row] = last

    def append_tokens(self, rows: NDArray[np.int64], token_ids: NDArray[np.int64]) -> None:
        """One more token for each row, none where it is negative; one at max_model_len ends with this step and needs no
        place for it."""
        places = self.num_tokens[rows]
        if token_ids.min(initial=0) < 0 or places.max(initial=0) >= self.token_ids.shape[1]:
            fits = (places < self.token_ids.shape[1]) & (token_ids >= 0)
            rows, places, token_ids = rows[fits], places[fits], token_ids[fits]
        self.token_ids[rows, places] = token_ids
        self.num_tokens[rows] = places + 1

    def check(self, step: StepRows) -> None:
        """RuntimeError when a plan asks for tokens that a row does not have, or has no blocks for: computing it all the
        same would write into other sequences' blocks."""
        if step.is_plain and self._fits_plainly(step):
            return
        ends, known, room = step.ends, self.num_tokens[step.rows], self.num_blocks[step.rows] * self.block_size
        bad = (ends > known) | (ends > room) | (step.samples & (ends != known)) | (step.counts < ~step.samples)
        if not step.computes.all():
            is_like_the_one_before = (np.roll(ends, 1) == ends) & np.roll(step.samples, 1)
            is_like_the_one_before[0] = False
            bad |= ~step.computes & ~is_like_the_one_before
        if bad.any():
            i = int(bad.argmax())
            raise RuntimeError(
                f"plan for row {step.rows[i]}: tokens {step.starts[i]} to {ends[i]}, sample {step.samples[i]}, "
                f"but it has {known[i]} tokens and blocks for {room[i]}"
            )

    def _fits_plainly(self, step: StepRows) -> bool:
        ends, room = step.starts + 1, self.num_blocks[step.rows] * self.block_size
        return bool(((ends == self.num_tokens[step.rows]) & (ends <= room)).all())

    def scored_counts(self, step: StepRows) -> NDArray[np.int64]:
        """[s] how many of each row's tokens, from its first, have the next prompt token's logprobs asked for."""
        counts: NDArray[np.int64] = np.clip(self.num_scored[step.rows] - step.starts, 0, step.counts)
        return counts

    def plain_batch(self, step: StepRows) -> Batch:
        """`batch` of a step that is plain: every row has one token, whose logits are wanted."""
        rows, starts = step.rows, step.starts
        blocks, offsets = np.divmod(starts, self.block_size)
        widest = int(blocks.max()) + 1
        return Batch(
            token_ids=self.token_ids[rows, starts],
            positions=starts.astype(np.int32),
            slot_mapping=self.block_tables[rows, blocks].astype(np.int64) * self.block_size + offsets,
            query_starts=self._numbers[: len(rows) + 1],
            seq_lens=(starts + 1).astype(np.int32),
            block_tables=self.block_tables[rows, :widest],
            logits_rows=self._numbers[: len(rows)],
        )

    def batch(self, step: StepRows, scored_counts: NDArray[np.int64]) -> Batch:
        """Gather the step's sequences, back to back. `logits_rows`: first the tokens after which one is sampled (for a fork,
        the last of the row before it, once more), then the scored ones, each in the order of the step."""
        ends, query_ends = step.ends, step.query_ends
        row_of = np.repeat(step.rows, step.counts)  # [t]
        positions = _ranges(step.starts, step.counts)  # [t]
        blocks, offsets = np.divmod(positions, self.block_size)
        widest = -(-int(ends.max()) // self.block_size)
        scored = _ranges(query_ends - step.counts, scored_counts)
        computed = np.flatnonzero(step.computes)
        return Batch(
            token_ids=self.token_ids[row_of, positions],
            positions=positions.astype(np.int32),
            slot_mapping=self.block_tables[row_of, blocks].astype(np.int64) * self.block_size + offsets,
            query_starts=np.concatenate([[0], query_ends[computed]]).astype(np.int32),
            seq_lens=ends[computed].astype(np.int32),
            block_tables=self.block_tables[step.rows[computed], :widest],
            logits_rows=np.concatenate([query_ends[step.samples] - 1, scored]).astype(np.int32),
        )


def _ranges(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """start, start + 1, ... (count of them) for each pair, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) + np.repeat(starts - ends + counts, counts)


def _scored_positions(new: NewRow) -> int:
    """Prompt logprobs belong to the request and come before its first output token: the first of n gives them, and not
    again when it is recomputed after a preemption that came later than that."""
    wanted = new.request.params.prompt_logprobs is not None and new.index == 0 and not new.output_token_ids
    return len(new.request.prompt_token_ids) - 1 if wanted else 0
