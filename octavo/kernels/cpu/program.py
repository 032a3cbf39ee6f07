"""A forward pass recorded: its calls into the native library, repeated as one.

The pass runs once on stand-ins, which have shapes and no values. What it calls is noted with numbers for what is constant
(weights, sizes) and with variables for what each step brings: how many tokens, sequences and results there are, where the
batch's arrays lie, and where those results do that one operation passes on to the next. These share a few slots of one piece
of memory, each free again behind the last call that names it; it stays from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_int64
from typing import TYPE_CHECKING

import numpy as np

from octavo.kernels.cpu.buffers import FLOAT32, INT32, INT64, address
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.recorder import Recorder
from octavo.kernels.cpu.stand_ins import FIRST_FREE, TOKENS
from octavo.kernels.ops import Array, Forward, KVCache
from octavo.runner.batch import Batch

if TYPE_CHECKING:
    from octavo.kernels.cpu.ops import CpuOps

_LINE = 16  # floats: slots begin at whole cache lines


class RecordedForward:
    """A forward pass (`Forward`) that is recorded with the first cache it meets, and again should it meet another."""

    def __init__(self, ops: CpuOps, forward: Forward) -> None:
        self._ops = ops
        self._forward = forward
        self._cache: NativeCache | None = None
        self._memory = np.empty(0, FLOAT32)  # for results on their way, of the largest step so far
        self._counts: Sequence[int] = ()  # of the step that the variables and the rotary tables are for
        self._tables: list[Array] = []

    def __call__(self, batch: Batch, cache: KVCache) -> Array:
        """As `forward`: hidden states [r, h] or logits [r, v]. ValueError for arrays of a wrong shape or dtype, and after a
        close."""
        if cache is not self._cache:
            self._record(cache)
        return self._run(batch)

    def _record(self, cache: KVCache) -> None:
        if not isinstance(cache, NativeCache):
            raise TypeError(f"the cpu backend cannot read a {type(cache).__name__}")
        recorder = Recorder(cache)
        with self._ops.recording(recorder):
            output = self._forward(recorder.batch, cache)
        self._program = recorder.finish(output)
        self._recorder, self._cache = recorder, cache
        self._output_shape = output.shape[1:]
        self._counts = ()

    def _run(self, batch: Batch) -> Array:
        assert self._cache is not None
        counts, arrays = _batch_variables(batch)
        output = np.empty((len(batch.logits_rows), *self._output_shape), FLOAT32)
        # Most steps have as many rows as the one before: then nothing lies elsewhere but the batch.
        if counts != self._counts:
            self._lay_out(counts, self._cache.block_size)
        variables = self._variables
        head: list[c_int64 | int] = [self._ops.context or 0, self._cache.pointer or 0, *counts, address(output), *arrays]
        variables[:FIRST_FREE] = head
        self._program.run(variables, len(variables))
        return output

    def _lay_out(self, counts: Sequence[int], block_size: int) -> None:
        """Give the rotary tables and the slots of such a step their places. Where that fails, no step finds the old ones."""
        self._counts = ()
        positions = counts[-1] * block_size  # that the block tables have room for
        self._tables = [table(positions) for table in self._recorder.tables]
        variables = [*[0] * TOKENS, *counts, *[0] * (FIRST_FREE - TOKENS - len(counts))]
        for table in self._tables:
            variables += address(table), len(table)
        sizes = [-(-slot.units * variables[slot.variable] // _LINE) * _LINE for slot in self._recorder.slots]
        place = self._reserve(sum(sizes))
        for size in sizes:
            variables.append(place)
            place += size * FLOAT32.itemsize
        self._variables, self._counts = (c_int64 * len(variables))(*variables), counts

    def _reserve(self, size: int) -> int:
        """Where `size` floats lie, at a whole cache line; kept from step to step, as fresh memory is cleared first."""
        if len(self._memory) < size + _LINE:
            self._memory = np.empty(0, FLOAT32)  # so that the two are not there at once
            self._memory = np.empty(size + _LINE, FLOAT32)
        line = _LINE * FLOAT32.itemsize
        return -(-address(self._memory) // line) * line


def _batch_variables(batch: Batch) -> tuple[Sequence[int], Sequence[int]]:
    """The counts, then the addresses, in the order of the variables; ValueError where the arrays do not fit together."""
    tokens, sequences, tables = len(batch.token_ids), len(batch.seq_lens), batch.block_tables
    if batch.positions.shape != (tokens,) or batch.slot_mapping.shape != (tokens,):
        shapes = batch.positions.shape, batch.slot_mapping.shape
        raise ValueError(f"expected {tokens} positions and slots, got shapes {shapes}")
    if batch.query_starts.shape != (sequences + 1,) or tables.ndim != 2 or len(tables) != sequences:
        shapes = batch.query_starts.shape, tables.shape
        raise ValueError(f"{sequences} lengths; query starts and tables have shapes {shapes}")
    if batch.token_types is not None and batch.token_types.shape != (tokens,):
        raise ValueError(f"expected {tokens} token types, got shape {batch.token_types.shape}")
    arrays = (
        address(batch.token_ids, INT32),
        address(batch.positions, INT32),
        address(batch.slot_mapping, INT64),
        address(batch.query_starts, INT32),
        address(batch.seq_lens, INT32),
        address(tables, INT32),
        address(batch.logits_rows, INT32),
        0 if batch.token_types is None else address(batch.token_types, INT32),
    )
    return (tokens, sequences, len(batch.logits_rows), tables.shape[1]), arrays
