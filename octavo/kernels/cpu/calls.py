"""How an operation reaches the native library: at once, or by being noted in a program (octavo.kernels.cpu.program)."""

from __future__ import annotations

from ctypes import CDLL
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.buffers import FLOAT32, address, writable_address
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.library import failure
from octavo.kernels.ops import Array, RotaryTable

Argument = Any  # an int, a float or None; while a program is made also what stands for one in it


class Calls(Protocol):
    """What the operations of `CpuOps` are written in. Shapes hold numbers, or what stands for them in a program: they can be
    compared for equality and multiplied by numbers."""

    def new(self, *shape: Any) -> Array:
        """A float32 array for a result, its values undefined."""

    def address(self, array: NDArray[Any], dtype: np.dtype[Any] = FLOAT32) -> Argument:
        """Of a C-contiguous array of `dtype`; ValueError for any other."""

    def writable(self, array: Array) -> Argument:
        """The address of a float32 array that is to be changed; ValueError if it is read-only."""

    def cache(self, cache: NativeCache) -> Argument:
        """The library's handle."""

    def rotary_table(self, table: RotaryTable, positions: NDArray[np.int32]) -> tuple[Argument, Any, int]:
        """Address, rows and columns of a table that reaches as far as the positions do."""

    def call(self, function: str, *arguments: Argument) -> None:
        """Call this function of the library on the context, and raise what its status means."""


class Immediate:
    """Calls now."""

    def __init__(self, library: CDLL, context: int | None) -> None:
        self._library = library
        self._context = context  # None once it is closed

    def new(self, *shape: Any) -> Array:
        """A float32 array for a result, its values undefined."""
        return np.empty(shape, FLOAT32)

    def address(self, array: NDArray[Any], dtype: np.dtype[Any] = FLOAT32) -> Argument:
        """Of a C-contiguous array of `dtype`; ValueError for any other."""
        return address(array, dtype)

    def writable(self, array: Array) -> Argument:
        """The address of a float32 array that is to be changed; ValueError if it is read-only."""
        return writable_address(array)

    def cache(self, cache: NativeCache) -> Argument:
        """The library's handle."""
        return cache.pointer

    def rotary_table(self, table: RotaryTable, positions: NDArray[np.int32]) -> tuple[Argument, Any, int]:
        """Address, rows and columns of a table that reaches as far as the positions do."""
        cos_sin = table(int(positions.max(initial=-1)) + 1)
        return address(cos_sin), len(cos_sin), cos_sin.shape[1]

    def call(self, function: str, *arguments: Argument) -> None:
        """Call this function of the library on the context, and raise what its status means."""
        status = getattr(self._library, function)(self._context, *arguments)
        if status:
            raise failure(status)


def target_of(calls: Calls, shape: tuple[Any, ...], residual: Array | None) -> Array:
    """Where a result of this shape goes: an array of its own, or the residual that it is added into."""
    if residual is None:
        return calls.new(*shape)
    if residual.shape != shape:
        raise ValueError(f"expected a residual of shape {shape}, got {residual.shape}")
    return residual
