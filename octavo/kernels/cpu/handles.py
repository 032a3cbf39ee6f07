"""What the native library keeps between calls: packed weights and the paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL, Array, c_int64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.buffers import INT32, INT64, UINT8, address, cache_dtype_code, dtype_code
from octavo.kernels.cpu.library import failure, last_failure, library_digest
from octavo.kernels.ops import ACTIVATIONS, UNGATED, Quantization, is_gated

# The library's numbers of quantized formats and of activations.
_FORMATS = {(8, 16): 3, (8, 8): 4, (4, 16): 5, (4, 8): 6}
_ACTIVATIONS: dict[str | None, int] = {None: 0}
_ACTIVATIONS |= {name: i for i, name in enumerate(ACTIVATIONS, 1)}
_ACTIVATIONS |= {UNGATED + name: 16 + i for i, name in enumerate(ACTIVATIONS, 1)}


class PackedWeight:
    """A [out, in] matrix in the library's panels, with its bias. `columns` of a product: out, with a gated activation
    half of it. Freed with the object."""

    __slots__ = ("_library", "columns", "dtype", "in_features", "nbytes", "out_features", "pointer")

    def __init__(
        self,
        library: CDLL,
        context: int | None,
        shape: tuple[int, int],
        dtype: np.dtype[Any],
        quantization: Quantization | None,
        activation: str | None,
    ) -> None:
        """`dtype`: of the parts to be packed."""
        self._library = library
        self.pointer: int | None = None
        self.out_features, self.in_features = shape
        self.columns = self.out_features // 2 if is_gated(activation) else self.out_features
        self.dtype = dtype
        code, group = dtype_code(dtype), 0
        if quantization is not None:
            code, group = _FORMATS[quantization.bits, quantization.activation_bits], quantization.activation_group
        self.pointer = library.octavo_weight_new(
            context, code, group, _ACTIVATIONS[activation], self.in_features, self.out_features
        )
        if self.pointer is None:
            raise last_failure()
        self.nbytes: int = library.octavo_weight_bytes(self.pointer)

    def pack(self, context: int | None, part: NDArray[Any], first: int) -> None:
        """Put the rows of `part` at outputs `first` and on."""
        rows = np.ascontiguousarray(part)
        status = self._library.octavo_weight_pack(
            context, self.pointer, rows.ctypes.data, dtype_code(self.dtype), first, len(rows)
        )
        if status:
            raise failure(status)

    def set_bias(self, bias: NDArray[np.float32]) -> None:
        """float32 [out]."""
        if bias.shape != (self.out_features,):
            raise ValueError(f"expected a bias of {self.out_features} values, got shape {bias.shape}")
        status = self._library.octavo_weight_bias(self.pointer, address(bias))
        if status:
            raise failure(status)

    def __del__(self) -> None:
        if self.pointer is not None:
            self._library.octavo_weight_free(self.pointer)


class NativeExperts:
    """The weights of a mixture of experts. Keeps them alive."""

    __slots__ = ("down", "down_pointers", "gate_up", "gate_up_pointers")

    def __init__(self, gate_up: Sequence[PackedWeight], down: Sequence[PackedWeight]) -> None:
        if len(gate_up) != len(down):
            raise ValueError(f"experts have two weights each, got {len(gate_up)} and {len(down)} weights")
        self.gate_up, self.down = list(gate_up), list(down)
        self.gate_up_pointers, self.down_pointers = (
            np.array([weight.pointer for weight in weights], np.int64) for weights in (gate_up, down)
        )


class NativeHeads:
    """The weights of products that every head has for itself. Keeps them alive."""

    __slots__ = ("heads", "pointers")

    def __init__(self, heads: Sequence[PackedWeight]) -> None:
        self.heads = list(heads)
        self.pointers = np.array([weight.pointer for weight in heads], np.int64)


class NativeCache:
    """K and V of all layers in the library's own layout (`KVCache` of octavo.kernels.ops). Memory is given back by
    `close`, or with the object."""

    def __init__(
        self,
        library: CDLL,
        context: int | None,
        isa: str,
        layers: int,
        blocks: int,
        block_size: int,
        kv_heads: int,
        head_size: int,
        dtype: np.dtype[Any],
    ) -> None:
        self.library = library
        self._isa = isa
        self.pointer: int | None = None
        self.layers = layers
        self.num_blocks = blocks
        self.block_size = block_size
        self.kv_heads = kv_heads
        self.head_size = head_size
        self.dtype = np.dtype(dtype)
        self._shape = context, layers, blocks, block_size, kv_heads, head_size, cache_dtype_code(dtype)
        self._open()
        self.nbytes: int = library.octavo_cache_bytes(self.pointer)
        self.block_bytes: int = library.octavo_cache_block_bytes(self.pointer)

    def _open(self) -> None:
        self.pointer = self.library.octavo_cache_new(*self._shape)
        if self.pointer is None:
            raise last_failure()

    @property
    def layout(self) -> str:
        """The shape of a block, and whose kernels compute what is in it: bits differ between instruction sets, and may
        between builds."""
        shape = f"{self.layers}x{self.block_size}x{self.kv_heads}x{self.head_size} {self.dtype}"
        return f"cpu {self._isa} {library_digest()} {shape}"

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, all layers, from the first to the second of each pair, in order. IndexError for a block that
        does not exist; nothing is copied then."""
        if not pairs:
            return
        flat = np.array(pairs, dtype=np.int32).reshape(-1)
        status = self.library.octavo_cache_copy(self.pointer, address(flat, INT32), len(pairs))
        if status:
            raise failure(status)

    def release(self) -> None:
        """Take new memory, none of it touched, in place of the old."""
        self.close()
        self._open()

    def swap_out(self, moves: Sequence[tuple[int, int]], host: NDArray[np.uint8]) -> None:
        """Copy whole blocks, all layers, to slots of `host` [slots, block_bytes]: pairs of (block, slot). IndexError for
        one that does not exist; nothing is copied then."""
        self._swap(self.library.octavo_cache_swap_out, moves, host)

    def swap_in(self, moves: Sequence[tuple[int, int]], host: NDArray[np.uint8]) -> None:
        """Copy slots of `host` to whole blocks: pairs of (slot, block). IndexError as for `swap_out`."""
        self._swap(self.library.octavo_cache_swap_in, moves, host)

    def _swap(self, function: Any, moves: Sequence[tuple[int, int]], host: NDArray[np.uint8]) -> None:
        if not moves:
            return
        if host.shape[1:] != (self.block_bytes,):
            raise ValueError(f"expected slots of {self.block_bytes} bytes, got shape {host.shape}")
        flat = np.array(moves, dtype=np.int32).reshape(-1)
        status = function(self.pointer, address(flat, INT32), len(moves), address(host, UINT8), len(host))
        if status:
            raise failure(status)

    def close(self) -> None:
        """Give the memory back; any later use is a ValueError."""
        if self.pointer is not None:
            self.library.octavo_cache_free(self.pointer)
            self.pointer = None

    def __del__(self) -> None:
        self.close()


class Program:
    """Calls of the library, in order, to be made as one (octavo.kernels.cpu.program). Freed with the object."""

    def __init__(self, library: CDLL) -> None:
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

    def run(self, variables: Array[c_int64], count: int) -> None:
        """Make the calls. Raises what the first one that fails means."""
        status = self._run(self.pointer, variables, count)
        if status:
            raise failure(status)

    def __del__(self) -> None:
        if self.pointer is not None:
            self._library.octavo_program_free(self.pointer)
