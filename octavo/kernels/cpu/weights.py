"""Weights in the native library's memory: packed projections, and those of experts and heads."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.buffers import (
    DTYPE_CODES,
    FLOAT16,
    FLOAT32,
    INT32,
    INT64,
    address,
    dtype_code,
)
from octavo.kernels.cpu.library import failure, last_failure
from octavo.kernels.ops import ACTIVATIONS, UNGATED, Quantization, is_gated
from octavo.kernels.packed import INTEGER_BITS, PackedTensor, Packing, WeightPart

_ACTIVATIONS: dict[str | None, int] = {None: 0}
_ACTIVATIONS |= {name: i for i, name in enumerate(ACTIVATIONS, 1)}
_ACTIVATIONS |= {UNGATED + name: 16 + i for i, name in enumerate(ACTIVATIONS, 1)}
_BYTES_AND_FACTORS = 3  # in place of a dtype of scales
_OFFSETS = {"none": 0, "zero": 1, "least": 2}  # OCTAVO_NO_OFFSET, ...
# (bits, in groups): OCTAVO_INT8_A16, ...; the next is that of _A8
_INTEGERS = {(8, False): 3, (4, True): 5, (8, True): 7, (5, True): 9, (6, True): 11}
_FLOAT4 = 13  # beside activations of 16 bits; the next of 8
_FLOAT8 = 15


@dataclass(frozen=True)
class WeightFormat:
    """The library's numbers of how a weight is stored and multiplied: arguments of octavo_weight_new, in their order."""

    format: int
    group: int = 0
    scale: int = 0
    offset: int = 0

    @classmethod
    def of(cls, part: WeightPart, quantization: Quantization | None) -> WeightFormat:
        """What becomes of a part. ValueError for a dtype that no weight has."""
        if isinstance(part, PackedTensor):
            return cls._packed(part.packing)
        dtype = dtype_code(part.dtype)
        if quantization is None:
            return cls(dtype)
        if quantization.is_float:
            return cls(_FLOAT8)
        in_groups = quantization.bits == 4
        code = _INTEGERS[quantization.bits, in_groups] + (quantization.activation_bits == 8)
        scales = (DTYPE_CODES[FLOAT16], _OFFSETS["least"]) if in_groups else (DTYPE_CODES[FLOAT32], _OFFSETS["none"])
        return cls(code, quantization.activation_group, *scales)

    @classmethod
    def _packed(cls, packing: Packing) -> WeightFormat:
        scale = _BYTES_AND_FACTORS if packing.has_factors else DTYPE_CODES[packing.scale]
        offset = _OFFSETS[packing.offset]
        if packing.codes == "fp8_e4m3":
            return cls(_FLOAT8, packing.group, scale, offset)
        if packing.codes == "fp4_e2m1":
            return cls(_FLOAT4 + (packing.activation_bits == 8), packing.group, scale, offset)
        bits = INTEGER_BITS[packing.codes]
        in_groups = bits < 8 or packing.group > 0 or packing.offset != "none"
        code = _INTEGERS[bits, in_groups] + (packing.activation_bits == 8)
        return cls(code, packing.group if in_groups else packing.activation_group, scale, offset)


class PackedWeight:
    """A [out, in] matrix in the library's panels, with its bias. `columns` of a product: out, with a gated activation
    half of it. Freed with the object."""

    __slots__ = ("_library", "_pieces", "columns", "in_features", "nbytes", "out_features", "pending_activation", "pointer")

    def __init__(
        self,
        library: CDLL,
        context: int | None,
        shape: tuple[int, int],
        kind: WeightFormat,
        activation: str | None = None,
    ) -> None:
        self._library = library
        self._pieces: list[PackedWeight] = []
        self.pending_activation: str | None = None  # to be done to what octavo_linear gives
        self.out_features, self.in_features = shape
        self.columns = self.out_features // 2 if is_gated(activation) else self.out_features
        self.pointer: int | None = library.octavo_weight_new(
            context,
            kind.format,
            kind.group,
            kind.scale,
            kind.offset,
            _ACTIVATIONS[activation],
            self.in_features,
            self.out_features,
        )
        self._check_pointer()

    @classmethod
    def stack(cls, library: CDLL, pieces: Sequence[PackedWeight], activation: str | None = None) -> PackedWeight:
        """Weights of the same input one below the other, whatever their formats; it keeps them alive."""
        stacked = cls.__new__(cls)
        stacked._library = library
        stacked._pieces = list(pieces)
        stacked.pending_activation = activation
        stacked.in_features = pieces[0].in_features
        stacked.out_features = sum(piece.out_features for piece in pieces)
        stacked.columns = stacked.out_features // 2 if is_gated(activation) else stacked.out_features
        pointers = np.array([piece.pointer for piece in pieces], np.int64)
        stacked.pointer = library.octavo_weight_stack(address(pointers, INT64), len(pieces))
        stacked._check_pointer()
        return stacked

    def _check_pointer(self) -> None:
        if self.pointer is None:
            raise last_failure()
        self.nbytes: int = self._library.octavo_weight_bytes(self.pointer)

    def put(self, context: int | None, part: WeightPart, first: int) -> None:
        """Put the rows of `part` at outputs `first` and on."""
        if isinstance(part, PackedTensor):
            self._put_codes(context, part, first)
            return
        rows = np.ascontiguousarray(part)
        status = self._library.octavo_weight_pack(
            context, self.pointer, rows.ctypes.data, dtype_code(part.dtype), first, len(rows)
        )
        if status:
            raise failure(status)

    def _put_codes(self, context: int | None, part: PackedTensor, first: int) -> None:
        codes, scales = np.ascontiguousarray(part.codes), np.ascontiguousarray(part.scales)
        offsets = None if part.offsets is None else np.ascontiguousarray(part.offsets)
        outputs, inputs = part.shape
        factors = None if part.factors is None else np.ascontiguousarray(part.factors)
        groups, of_blocks = (outputs, part.packing.groups(inputs)), (outputs, part.packing.factors(inputs))
        if scales.dtype != part.packing.scale or scales.shape != groups:
            raise ValueError(f"expected scales of {part.packing.scale} {groups}, got {scales.dtype} {scales.shape}")
        if offsets is not None and (offsets.dtype != part.packing.offset_dtype or offsets.shape != groups):
            raise ValueError(
                f"expected offsets of {part.packing.offset_dtype} {groups}, got {offsets.dtype} {offsets.shape}"
            )
        if factors is not None and (factors.dtype != FLOAT16 or factors.shape != of_blocks):
            raise ValueError(f"expected factors of {FLOAT16} {of_blocks}, got {factors.dtype} {factors.shape}")
        if part.packing.codes == "fp4_e2m1":
            scales = scales * scales.dtype.type(0.5)  # the library's numbers are twice as large
        status = self._library.octavo_weight_put(
            context,
            self.pointer,
            codes.ctypes.data,
            scales.ctypes.data,
            None if offsets is None else offsets.ctypes.data,
            None if factors is None else factors.ctypes.data,
            groups[1],
            first,
            outputs,
        )
        if status:
            raise failure(status)

    def set_order(self, order: NDArray[np.int32]) -> None:
        """Column i of the codes is input order[i]. ValueError where that is no permutation."""
        if order.shape != (self.in_features,):
            raise ValueError(f"expected an order of {self.in_features} inputs, got shape {order.shape}")
        status = self._library.octavo_weight_order(self.pointer, address(np.ascontiguousarray(order), INT32))
        if status:
            raise failure(status)

    def set_bias(self, bias: NDArray[np.float32]) -> None:
        """float32 [out]."""
        if bias.shape != (self.out_features,):
            raise ValueError(f"expected a bias of {self.out_features} values, got shape {bias.shape}")
        first = 0
        for piece in self._pieces or [self]:
            part = np.ascontiguousarray(bias[first : first + piece.out_features])
            status = self._library.octavo_weight_bias(piece.pointer, address(part))
            if status:
                raise failure(status)
            first += piece.out_features

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
