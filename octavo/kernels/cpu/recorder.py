"""Notes the calls of a forward pass that runs on stand-ins, and makes them a program (octavo.kernels.cpu.program)."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.buffers import FLOAT32, INT32, INT64, address
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.calls import Argument
from octavo.kernels.cpu.late_rows import select_early
from octavo.kernels.cpu.library import failure, last_failure
from octavo.kernels.cpu.stand_ins import (
    CACHE,
    CONTEXT,
    FIRST_ARRAY,
    FIRST_FREE,
    OUTPUT,
    RESULTS,
    SEQUENCES,
    TABLE_WIDTH,
    TOKENS,
    Call,
    Count,
    StandIn,
)
from octavo.kernels.ops import Array, RotaryTable
from octavo.runner.batch import Batch


@dataclass(slots=True)
class Slot:
    """Memory for results of `units` floats for each of what `variable` counts."""

    variable: int
    units: int


class Program:
    """Calls of the library, in order, to be made as one (octavo.kernels.cpu.program). Freed with the object."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._run = library.octavo_program_run
        self.pointer: int | None = library.octavo_program_new()
        if self.pointer is None:
            raise last_failure()

    def add(self, function: str, arguments: Sequence[tuple[int, int]]) -> None:
        """One more call; each argument is (value, -1) or (factor, variable). ValueError if it cannot be recorded."""
        words = np.array(arguments, np.int64)
        status = self._library.octavo_program_add(self.pointer, function.encode(), address(words, INT64), len(words))
        if status:
            raise failure(status)

    def run(self, variables: ctypes.Array[ctypes.c_int64], count: int) -> None:
        """Make the calls. Raises what the first one that fails means."""
        status = self._run(self.pointer, variables, count)
        if status:
            raise failure(status)

    def __del__(self) -> None:
        if self.pointer is not None:
            self._library.octavo_program_free(self.pointer)


class Recorder:
    """`Calls` that notes them."""

    def __init__(self, cache: NativeCache) -> None:
        tokens, sequences, results = Count(TOKENS), Count(SEQUENCES), Count(RESULTS)
        self._cache = cache
        shapes: list[tuple[tuple[Any, ...], np.dtype[Any]]] = [
            ((tokens,), INT32),
            ((tokens,), INT32),
            ((tokens,), INT64),
            ((sequences + 1,), INT32),
            ((sequences,), INT32),
            ((sequences, Count(TABLE_WIDTH)), INT32),
            ((results,), INT32),
            ((tokens,), INT32),
        ]
        arrays: list[Any] = [StandIn(*each, FIRST_ARRAY + i) for i, each in enumerate(shapes)]
        self.batch = Batch(*arrays)
        self.tables: list[RotaryTable] = []
        self.constants: list[NDArray[Any]] = []  # whose addresses the program holds
        self.slots: list[Slot] = []
        self._calls: list[Call] = []

    def new(self, *shape: Any) -> Array:
        """A stand-in for a result."""
        return cast(Array, StandIn(shape, FLOAT32))

    def address(self, array: NDArray[Any], dtype: np.dtype[Any] = FLOAT32) -> Argument:
        """The stand-in itself, or the address of an array that is there for good."""
        if not isinstance(array, StandIn):
            self.constants.append(array)
            return address(array, dtype)
        if array.dtype != dtype:
            raise ValueError(f"expected an array of {dtype}, got {array.dtype}")
        return array

    def writable(self, array: Array) -> Argument:
        """As `address`."""
        return self.address(array)

    def cache(self, cache: NativeCache) -> Argument:
        """Of the step."""
        if cache is not self._cache:
            raise ValueError("a recorded pass has one cache")
        return Count(CACHE)

    def rotary_table(self, table: RotaryTable, positions: NDArray[np.int32]) -> tuple[Argument, Any, int]:
        """Asked for again in each step."""
        if positions is not self.batch.positions:
            raise ValueError("a recorded pass rotates by the positions of its batch")
        if table not in self.tables:
            self.tables.append(table)
        variable = FIRST_FREE + 2 * self.tables.index(table)
        return Count(variable), Count(variable + 1), table(0).shape[1]

    def call(self, function: str, *arguments: Argument) -> None:
        """Note it, with the context of the step, so that a closed one is noticed."""
        self._calls.append((getattr(self._cache.library, function), (Count(CONTEXT), *arguments)))

    def finish(self, output: Any) -> Program:
        """The program that leaves `output`, [r, ...], where the variable of that name points to."""
        if not isinstance(output, StandIn) or output.variable is not None or output.shape[0] != Count(RESULTS):
            raise TypeError("a recorded pass gives an array with one row for each of its batch's logits_rows")
        output.variable = OUTPUT
        self._calls = select_early(self._calls)
        self._place_results()
        program = Program(self._cache.library)
        for function, arguments in self._calls:
            words = [_word(each, kind) for each, kind in zip(arguments, function.argtypes, strict=True)]
            program.add(function.__name__, words)
        return program

    def _place_results(self) -> None:
        last_call = {id(each): i for i, (_, arguments) in enumerate(self._calls) for each in arguments}
        first_slot = FIRST_FREE + 2 * len(self.tables)
        free: list[int] = []
        for i, (_, arguments) in enumerate(self._calls):
            arrays = [each for each in arguments if isinstance(each, StandIn)]
            for array in arrays:
                if array.variable is None:
                    array.variable = first_slot + self._take_slot(array, free)
            ended = {each.variable - first_slot for each in arrays if each.variable and last_call[id(each)] == i}
            free += [slot for slot in ended if slot >= 0]

    def _take_slot(self, array: StandIn, free: list[int]) -> int:
        """The smallest free slot that is large enough, else the largest, which grows, else a new one."""
        rows = array.shape[0]
        units = rows.factor * int(np.prod(array.shape[1:]))
        fitting = [slot for slot in free if self.slots[slot].variable == rows.variable]
        if not fitting:
            self.slots.append(Slot(rows.variable, units))
            return len(self.slots) - 1
        large = [slot for slot in fitting if self.slots[slot].units >= units]
        slot = min(large, key=self._units) if large else max(fitting, key=self._units)
        self.slots[slot].units = max(units, self._units(slot))
        free.remove(slot)
        return slot

    def _units(self, slot: int) -> int:
        return self.slots[slot].units


def _word(argument: Argument, kind: type) -> tuple[int, int]:
    """(value, variable) of octavo_argument."""
    if isinstance(argument, StandIn):
        assert argument.variable is not None
        return 1, argument.variable
    if isinstance(argument, Count):
        if argument.offset:
            raise ValueError("a number that a program passes on is a multiple of a variable")
        return argument.factor, argument.variable
    if kind is ctypes.c_float:
        (bits,) = struct.unpack("<I", struct.pack("<f", argument))
        return bits, -1
    return argument or 0, -1
