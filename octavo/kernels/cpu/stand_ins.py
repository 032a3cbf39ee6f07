"""What stands for a step's numbers and arrays while a forward pass is recorded, and the variables that bring them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.kernels.cpu.calls import Argument

# The first variables of every program; behind them those of rotary tables (address, rows), then the slots.
CONTEXT, CACHE, TOKENS, SEQUENCES, RESULTS, TABLE_WIDTH, OUTPUT = range(7)
FIRST_ARRAY = 7  # of the batch, in the order of its fields
FIRST_FREE = 15


@dataclass(frozen=True, slots=True)
class Count:
    """A number that each step brings: factor * variable + offset."""

    variable: int
    factor: int = 1
    offset: int = 0

    def __mul__(self, other: int) -> Count:
        return Count(self.variable, self.factor * other, self.offset * other)

    __rmul__ = __mul__

    def __add__(self, other: int) -> Count:
        return Count(self.variable, self.factor, self.offset + other)


class StandIn:
    """An array of a recorded pass: no values, one object per array."""

    __slots__ = ("dtype", "shape", "variable")

    def __init__(self, shape: tuple[Any, ...], dtype: np.dtype[Any], variable: int | None = None) -> None:
        self.shape = shape
        self.dtype = dtype
        self.variable = variable  # that holds its address; of results known only when all is recorded

    @property
    def ndim(self) -> int:
        """Dimensions."""
        return len(self.shape)


Call = tuple[Any, tuple[Argument, ...]]  # a function of the library, and its arguments
