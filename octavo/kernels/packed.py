"""Projections as quantized checkpoints store them: codes of a few bits, and the numbers they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

FLOAT8 = np.dtype(ml_dtypes.float8_e4m3fn)
FLOAT4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
"""What the codes of E2M1 are: a sign, two bits of exponent and one of mantissa (OCP Microscaling Formats 1.0)."""
BLOCK = 256
"""Inputs whose scales, if they are whole numbers, share a factor."""
_INT8 = np.dtype(np.int8)
INTEGER_BITS = {"int8": 8, "int6": 6, "int5": 5, "int4": 4}
"""Of the codes that are whole numbers; without an offset half of their range is negative."""


@dataclass(frozen=True)
class Packing:
    """How the numbers of a projection are stored.

    w[o, i] = scale[o, g] * (value(code[o, i]) - zero[o, g]), or scale[o, g] * value(code[o, i]) + least[o, g], where g is
    the group of input i. Scales and least values that are stored as int8 are whole numbers, to be multiplied by a float16
    for each block of 256 inputs. All of it is exact in float32 but for the last rounding."""

    # Whole numbers from 0 to 255, 63, 31 or 15; E4M3 without infinities; E2M1, of whose scales a half is exact
    codes: Literal["int8", "int6", "int5", "int4", "fp8_e4m3", "fp4_e2m1"]
    group: int  # neighbouring inputs that share a scale, a multiple of 16; 0: all of them
    # bfloat16, float16 or float32, or int8 beside integers in groups of 16 to 256 (a power of two), as published
    scale: np.dtype[Any]
    offset: Literal["none", "zero", "least"] = "none"  # none: the zero is 128, 32, 16, 8 (integers) or 0 (floats)
    activation_bits: int = 16  # beside all but E4M3: activations become whole numbers of 8 or 16 bits

    def groups(self, inputs: int) -> int:
        """Scales of an output."""
        return -(-inputs // self.group) if self.group else 1

    @property
    def has_factors(self) -> bool:
        """Whether scales, and least values, are whole numbers by a factor."""
        return self.scale == _INT8

    def factors(self, inputs: int) -> int:
        """Factors of an output: for each block of inputs one of its scales, then one of its least values if it has some."""
        return -(-inputs // BLOCK) * (2 if self.offset == "least" else 1) if self.has_factors else 0

    @property
    def rounds_activations(self) -> bool:
        """Whether activations become whole numbers too."""
        return self.codes != "fp8_e4m3"

    def with_activations(self, bits: int) -> Packing:
        """With activations of so many bits where these have enough groups for it, else as it is."""
        fits = bits == 16 or self.group > 0 or (self.codes == "int8" and self.offset == "none")
        return replace(self, activation_bits=bits) if fits and self.rounds_activations else self

    @property
    def activation_group(self) -> int:
        """Inputs whose activations share a scale (0: all): those that share the weights' scale; where these are all of them,
        64 for 8-bit activations."""
        return 64 if self.activation_bits == 8 and self.group == 0 else self.group

    @property
    def offset_dtype(self) -> np.dtype[Any] | None:
        """Of PackedTensor.offsets."""
        least = _INT8 if self.has_factors else np.dtype(np.float16)
        return {"none": None, "zero": np.dtype(np.uint8), "least": least}[self.offset]

    def __str__(self) -> str:
        """For the start-up table: `int4 in groups of 128`."""
        return f"{self.codes} in groups of {self.group}" if self.group else self.codes


@dataclass(frozen=True)
class PackedTensor:
    """A projection [out, in] of few bits a number. `codes` are one byte each here; a backend packs them."""

    packing: Packing
    codes: NDArray[np.uint8]  # [out, in]
    scales: NDArray[Any]  # [out, groups] of packing.scale
    offsets: NDArray[Any] | None = None  # [out, groups]: zero points uint8, least values float16 or int8
    order: NDArray[np.int32] | None = None  # [in]: column i of the codes is input order[i]; None: as they come
    factors: NDArray[np.float16] | None = None  # [out, packing.factors(in)]: block after block, where scales are int8

    @property
    def shape(self) -> tuple[int, int]:
        """(out, in)."""
        outputs, inputs = self.codes.shape
        return outputs, inputs

    @property
    def ndim(self) -> int:
        """2, as an array's."""
        return 2

    def __len__(self) -> int:
        """Outputs."""
        return len(self.codes)

    @classmethod
    def without_content(cls, packing: Packing, shape: tuple[int, int]) -> PackedTensor:
        """One that takes no memory and that nobody may read, to work out sizes."""
        groups, of_blocks = (shape[0], packing.groups(shape[1])), (shape[0], packing.factors(shape[1]))
        offset = packing.offset_dtype
        return cls(
            packing,
            np.broadcast_to(np.zeros((), np.uint8), shape),
            np.broadcast_to(np.zeros((), packing.scale), groups),
            None if offset is None else np.broadcast_to(np.zeros((), offset), groups),
            factors=np.broadcast_to(np.zeros((), np.float16), of_blocks) if packing.has_factors else None,
        )

    def __getitem__(self, rows: slice) -> PackedTensor:
        """Some of the outputs, as of an array."""
        return self.changed(itemgetter(rows))

    def changed(self, rows: Callable[[NDArray[Any]], NDArray[Any]]) -> PackedTensor:
        """With other rows: what `rows` makes of arrays [out, ..]."""
        offsets = None if self.offsets is None else rows(self.offsets)
        factors = None if self.factors is None else rows(self.factors)
        return replace(self, codes=rows(self.codes), scales=rows(self.scales), offsets=offsets, factors=factors)

    def dequantized(self) -> NDArray[np.float32]:
        """What it stands for, float32 [out, in], its inputs in the order of the model."""
        outputs, inputs = self.shape
        group = self.packing.group or max(inputs, 1)
        padded = np.pad(self._values(), ((0, 0), (0, -inputs % group))).reshape(outputs, -1, group)
        scales = self._by_factors(self.scales, 0)[..., None]
        if self.offsets is None:
            padded = padded * scales
        elif self.packing.offset == "zero":
            padded = (padded - self.offsets.astype(np.float32)[..., None]) * scales
        else:
            padded = padded * scales + self._by_factors(self.offsets, 1)[..., None]
        matrix = padded.reshape(outputs, -1)[:, :inputs]
        if self.order is None:
            return np.ascontiguousarray(matrix)
        ordered = np.empty_like(matrix)
        ordered[:, self.order] = matrix
        return ordered

    def _by_factors(self, numbers: NDArray[Any], which: int) -> NDArray[np.float32]:
        """Scales (0) or least values (1) [out, groups] as float32."""
        found: NDArray[np.float32] = numbers.astype(np.float32)
        if self.factors is None:
            return found
        own = self.factors[:, which :: 2 if self.packing.offset == "least" else 1].astype(np.float32)
        return found * np.repeat(own, BLOCK // self.packing.group, axis=1)[:, : numbers.shape[1]]

    def _values(self) -> NDArray[np.float32]:
        if self.packing.codes == "fp8_e4m3":
            return np.asarray(self.codes.view(FLOAT8), np.float32)
        if self.packing.codes == "fp4_e2m1":
            return FLOAT4[self.codes]
        centre = 1 << INTEGER_BITS[self.packing.codes] >> 1 if self.packing.offset == "none" else 0
        values: NDArray[np.float32] = self.codes.astype(np.float32) - np.float32(centre)
        return values


WeightPart = NDArray[Any] | PackedTensor
"""What `Ops.linear_weight` stacks: an array [out, in], or a packed projection of that shape."""
