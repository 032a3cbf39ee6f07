"""The permanent rows of the running sequences, and the flat batch gathered from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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

    @classmethod
    def of(cls, scheduled: Sequence[ScheduledRow]) -> StepRows:
        """s >= 1."""
        return cls(
            np.array([each.row for each in scheduled], np.int64),
            np.array([each.start for each in scheduled], np.int64),
            np.array([each.num_tokens for each in scheduled], np.int64),
            np.array([each.sample for each in scheduled], np.bool_),
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


def is_plain(scheduled: Sequence[ScheduledRow]) -> bool:
    """Whether each row computes one token and draws the next: what most steps are."""
    return [each.num_tokens for each in scheduled].count(1) == len(scheduled) and False not in [
        each.sample for each in scheduled
    ]


class Rows:
    """State of up to `max_num_seqs` sequences, one row each from admission to its end.

    The arrays are as large as they can ever get, but the operating system hands out their pages as sequences grow into
    them: a row costs what its longest sequence so far took.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int, block_size: int) -> None:
        """ConfigError where the system has no addresses for so much."""
        self.block_size, self.max_model_len = block_size, max_model_len
        try:
            self.token_ids = np.zeros((max_num_seqs, max_model_len + 1), np.int32)  # the last one is never computed
            self.block_tables = np.zeros((max_num_seqs, -(-max_model_len // block_size)), np.int32)
        except (MemoryError, ValueError):  # numpy counts no further than 2^63 bytes
            raise ConfigError(
                f"--max-model-len {max_model_len} times --max-num-seqs {max_num_seqs} are too many tokens to keep; lower one"
            ) from None
        self._flat_token_ids, self._flat_block_tables = self.token_ids.reshape(-1), self.block_tables.reshape(-1)
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
        states = [state for row in rows if (state := self._states[row]) is not None]
        if len(states) < len(rows):
            raise RuntimeError(f"row {next(row for row in rows if self._states[row] is None)} is free")
        return states

    def tokens(self, row: int, start: int, count: int) -> NDArray[np.int32]:
        """The row's token ids at [start, start + count)."""
        return self.token_ids[row, start : start + count]

    def append_blocks(self, row: int, block_ids: Sequence[int], *, replaces_last: bool = False) -> None:
        """Extend a row's block table, from its last block on if that was copied."""
        first = self.num_blocks[row] - replaces_last
        last = first + len(block_ids)
        self.block_tables[row, first:last] = block_ids
        self.num_blocks[row] = last

    def append_tokens(self, rows: NDArray[np.int64], token_ids: Sequence[int | None]) -> None:
        """One more token for each row, or none. A sequence that is longer than max_model_len with it ends with this step."""
        drawn = [token_id for token_id in token_ids if token_id is not None]
        if len(drawn) < len(token_ids):
            rows = rows[[token_id is not None for token_id in token_ids]]
        places = self.num_tokens.take(rows)
        self._flat_token_ids.put(rows * self.token_ids.shape[1] + places, drawn)
        self.num_tokens.put(rows, places + 1)

    def check(self, step: StepRows) -> None:
        """RuntimeError when a plan asks for tokens that a row does not have, or has no blocks for: computing it all the
        same would write into other sequences' blocks."""
        ends, known, room = step.ends, self.num_tokens[step.rows], self.num_blocks[step.rows] * self.block_size
        room = np.minimum(room, self.max_model_len)
        bad = (ends > known) | (ends > room) | (step.samples & (ends != known)) | (step.counts < ~step.samples)
        if not step.computes.all():
            is_like_the_one_before = (np.roll(ends, 1) == ends) & np.roll(step.samples, 1)
            is_like_the_one_before[0] = False
            bad |= ~step.computes & ~is_like_the_one_before
        if bad.any():
            i = int(bad.argmax())
            raise RuntimeError(
                f"plan for row {step.rows[i]}: tokens {step.starts[i]} to {ends[i]}, sample {step.samples[i]}, "
                f"but it has {known[i]} tokens and room for {room[i]}"
            )

    def scored_counts(self, step: StepRows) -> NDArray[np.int64]:
        """[s] how many of each row's tokens, from its first, have the next prompt token's logprobs asked for."""
        counts: NDArray[np.int64] = np.clip(self.num_scored[step.rows] - step.starts, 0, step.counts)
        return counts

    def plain_batch(self, scheduled: Sequence[ScheduledRow]) -> tuple[NDArray[np.int64], Batch]:
        """The rows of a plan that is plain, and their `batch`; RuntimeError as `check`. In few, simple operations: for one
        row each costs what bringing its code from memory does, since the weights have emptied the caches."""
        rows = np.array([each.row for each in scheduled], np.int64)
        planned = [each.start for each in scheduled]
        longest = max(planned)
        starts = self.num_tokens.take(rows) - 1
        blocks = starts // self.block_size
        num_unused = min((self.num_blocks.take(rows) - blocks).tolist())
        if starts.tolist() != planned or num_unused < 1 or longest >= self.max_model_len:
            self.check(StepRows.of(scheduled))
        positions = starts.astype(np.int32)
        block_ids = self._flat_block_tables.take(rows * self.block_tables.shape[1] + blocks)
        return rows, Batch(
            token_ids=self._flat_token_ids.take(rows * self.token_ids.shape[1] + starts),
            positions=positions,
            slot_mapping=(block_ids - blocks) * self.block_size + starts,
            query_starts=self._numbers[: len(rows) + 1],
            seq_lens=positions + 1,
            block_tables=self.block_tables[rows, : longest // self.block_size + 1],
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
