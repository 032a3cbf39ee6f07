"""GGUF's blocks as packed projections: codes, scales and least values as they are stored.

Blocks of 32 inputs have a scale of their own; those of the K types, 256 inputs, have a float16 by which the whole numbers
that are their groups' scales are multiplied. The layouts are those of ggml-common.h of github.com/ggml-org/ggml. Q2_K and
Q3_K are dequantised while they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.packed import BLOCK, PackedTensor, Packing

_FLOAT16, _INT8 = np.dtype(np.float16), np.dtype(np.int8)
_GROUP = 32  # inputs of a block of one scale
_PART = 1 << 18  # inputs whose codes are worked out at once, in the core's cache
Blocks = NDArray[Any]  # of a type's fields


@dataclass(frozen=True)
class _Numbers:
    """What the codes of blocks [out, blocks] are multiplied by and added to."""

    scales: NDArray[Any]
    offsets: NDArray[Any] | None = None
    factors: NDArray[np.float16] | None = None


@dataclass(frozen=True)
class _Block:
    """A block's fields in the file, and what its bytes are."""

    packing: Packing
    fields: np.dtype[Any]  # d: scale; m: least value; h: further bits; q: codes; s: whole scales
    codes: Callable[[Blocks], NDArray[np.uint8]]  # [n] -> [n, inputs of a block]
    numbers: Callable[[Blocks], _Numbers]

    @property
    def inputs(self) -> int:
        """Of a block."""
        return BLOCK if self.packing.has_factors else _GROUP


def gguf_packing(type_name: str) -> Packing | None:
    """How a matrix of this type stays packed; None where it is dequantised."""
    block = _BLOCKS.get(type_name)
    return None if block is None else block.packing


def unpack_blocks(rows: NDArray[np.uint8], type_name: str) -> PackedTensor:
    """A matrix of a type that has a `gguf_packing`, from its bytes [out, bytes of a row]. KeyError for another type."""
    block = _BLOCKS[type_name]
    blocks = np.ascontiguousarray(rows).view(block.fields)  # [out, blocks]
    numbers, flat = block.numbers(blocks), blocks.reshape(-1)
    codes = np.empty((len(flat), block.inputs), np.uint8)
    for start in range(0, len(flat), _PART // block.inputs):
        part = slice(start, start + _PART // block.inputs)
        codes[part] = block.codes(flat[part])
    matrix = codes.reshape(len(blocks), -1)
    return PackedTensor(block.packing, matrix, numbers.scales, numbers.offsets, factors=numbers.factors)


def _scale(blocks: Blocks) -> _Numbers:
    return _Numbers(np.ascontiguousarray(blocks["d"]))


def _scale_and_least(blocks: Blocks) -> _Numbers:
    return _Numbers(np.ascontiguousarray(blocks["d"]), np.ascontiguousarray(blocks["m"]))


def _whole_scales(blocks: Blocks) -> _Numbers:
    """One byte for each group."""
    return _Numbers(blocks["s"].reshape(len(blocks), -1), factors=np.ascontiguousarray(blocks["d"]))


def _six_bit_pairs(blocks: Blocks) -> _Numbers:
    """Eight scales and eight least values of six bits in twelve bytes: the first four of both whole, in the upper bits of
    these two of each of the others, whose four lower bits are a scale's and a least value's. Least values are taken off."""
    first, second, third = (blocks["s"][..., start : start + 4] for start in (0, 4, 8))
    pairs = np.empty((2, *blocks.shape, 8), _INT8)
    for each, whole, nibble in ((pairs[0], first, third & 15), (pairs[1], second, third >> 4)):
        each[..., :4] = whole & 63
        each[..., 4:] = nibble | (whole >> 6) << 4
    factors = np.stack([blocks["d"], -blocks["m"]], axis=-1)
    scales, least, factors = (each.reshape(len(blocks), -1) for each in (*pairs, factors))
    return _Numbers(scales, least, factors)


def _bytes(blocks: Blocks) -> NDArray[np.uint8]:
    """Signed bytes, which the codes of 8 bits are 128 above."""
    codes: NDArray[np.uint8] = blocks["q"].copy().view(np.uint8).reshape(-1, _GROUP)
    codes ^= np.uint8(0x80)
    return codes


def _nibbles(blocks: Blocks) -> NDArray[np.uint8]:
    """The low halves of sixteen bytes, then the high ones."""
    both = np.ascontiguousarray(blocks["q"]).view(np.uint8)
    halves = np.empty((len(blocks), 2), blocks["q"].dtype)
    halves[:, 0] = (both & 15).view(halves.dtype)
    halves[:, 1] = (both >> 4).view(halves.dtype)
    codes: NDArray[np.uint8] = halves.view(np.uint8)
    return codes


def _fifth_bits(blocks: Blocks) -> NDArray[np.uint8]:
    """Nibbles, and a fifth bit from a word of 32."""
    bits: NDArray[np.uint8] = np.unpackbits(np.ascontiguousarray(blocks["h"]).view(np.uint8), bitorder="little").reshape(
        -1, _GROUP
    )
    codes = _nibbles(blocks)
    codes |= np.left_shift(bits, np.uint8(4))
    return codes


def _nibbles_of_64(blocks: Blocks) -> NDArray[np.uint8]:
    """Four times the low halves of 32 bytes, then the high ones."""
    return _in_turns(32, *_halves(blocks)).reshape(-1, BLOCK)


def _fifth_bits_of_256(blocks: Blocks) -> NDArray[np.uint8]:
    """The same, and for each of 32 inputs a byte with its fifth bits in the eight groups."""
    codes = _nibbles_of_64(blocks)
    codes |= _in_turns(32, *(_further_bits(blocks, group, 16) for group in range(8))).reshape(codes.shape)
    return codes


def _six_bits(blocks: Blocks) -> NDArray[np.uint8]:
    """Of 128 inputs the low halves of 64 bytes, then the high ones; of each 32 of them two further bits from one of the four
    parts of 32 bytes."""
    codes = _in_turns(64, *_halves(blocks)).reshape(-1, BLOCK)
    codes |= _in_turns(32, *(_further_bits(blocks, 2 * part, 48) for part in range(4))).reshape(codes.shape)
    return codes


def _halves(blocks: Blocks) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The low and the high ones of all bytes."""
    both: NDArray[np.uint8] = np.ascontiguousarray(blocks["q"])
    return both & np.uint8(15), both >> np.uint8(4)


def _further_bits(blocks: Blocks, first: int, mask: int) -> NDArray[np.uint8]:
    """Of each byte those from bit `first` on, above four others."""
    bits: NDArray[np.uint8] = np.ascontiguousarray(blocks["h"])
    moved: NDArray[np.uint8] = bits >> np.uint8(first) << np.uint8(4) & np.uint8(mask)
    return moved


def _in_turns(length: int, *parts: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`length` bytes of each of the parts, then the next of each."""
    runs = np.empty((parts[0].size // length, len(parts)), f"V{length}")
    for number, part in enumerate(parts):
        runs[:, number] = part.reshape(-1).view(runs.dtype)
    taken: NDArray[np.uint8] = runs.view(np.uint8)
    return taken


_D, _M, _H = ("d", "<f2"), ("m", "<f2"), ("h", "V4")
_PAIRS, _K_NIBBLES = ("s", "u1", 12), ("q", "u1", (4, 32))
_BLOCKS = {
    "Q8_0": _Block(Packing("int8", _GROUP, _FLOAT16), np.dtype([_D, ("q", "V32")]), _bytes, _scale),
    "Q4_0": _Block(Packing("int4", _GROUP, _FLOAT16), np.dtype([_D, ("q", "V16")]), _nibbles, _scale),
    "Q4_1": _Block(Packing("int4", _GROUP, _FLOAT16, "least"), np.dtype([_D, _M, ("q", "V16")]), _nibbles, _scale_and_least),
    "Q5_0": _Block(Packing("int5", _GROUP, _FLOAT16), np.dtype([_D, _H, ("q", "V16")]), _fifth_bits, _scale),
    "Q5_1": _Block(
        Packing("int5", _GROUP, _FLOAT16, "least"), np.dtype([_D, _M, _H, ("q", "V16")]), _fifth_bits, _scale_and_least
    ),
    "Q4_K": _Block(
        Packing("int4", 32, _INT8, "least"), np.dtype([_D, _M, _PAIRS, _K_NIBBLES]), _nibbles_of_64, _six_bit_pairs
    ),
    "Q5_K": _Block(
        Packing("int5", 32, _INT8, "least"),
        np.dtype([_D, _M, _PAIRS, ("h", "u1", 32), _K_NIBBLES]),
        _fifth_bits_of_256,
        _six_bit_pairs,
    ),
    "Q6_K": _Block(
        Packing("int6", 16, _INT8),
        np.dtype([("q", "u1", (2, 2, 32)), ("h", "u1", (2, 32)), ("s", "i1", 16), _D]),
        _six_bits,
        _whole_scales,
    ),
}
