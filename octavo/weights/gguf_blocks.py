"""GGUF's blocks of one scale as packed projections: a group of inputs for each block, codes and scales as they are stored.

The layouts are those of ggml-common.h of github.com/ggml-org/ggml. The other types (the K types, whose scales have scales)
are dequantised while they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.packed import PackedTensor, Packing

_FLOAT16 = np.dtype(np.float16)
_GROUP = 32  # inputs of a block


@dataclass(frozen=True)
class _Block:
    """A block's fields in the file, and what its bytes are as codes."""

    packing: Packing
    fields: np.dtype[Any]  # d: scale; m: least value; h: fifth bits; q: codes
    codes: Callable[[NDArray[Any]], NDArray[np.uint8]]  # blocks [n] -> [n, 32]


def gguf_packing(type_name: str) -> Packing | None:
    """How a matrix of this type stays packed; None where it is dequantised."""
    block = _BLOCKS.get(type_name)
    return None if block is None else block.packing


def unpack_blocks(rows: NDArray[np.uint8], type_name: str) -> PackedTensor:
    """A matrix of a type that has a `gguf_packing`, from its bytes [out, bytes of a row]. KeyError for another type."""
    block = _BLOCKS[type_name]
    blocks = np.ascontiguousarray(rows).view(block.fields)  # [out, groups]
    outputs, groups = blocks.shape
    codes = block.codes(blocks.reshape(-1)).reshape(outputs, groups * _GROUP)
    offsets = np.ascontiguousarray(blocks["m"]) if block.packing.offset == "least" else None
    return PackedTensor(block.packing, codes, np.ascontiguousarray(blocks["d"]), offsets)


def _bytes(blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """Signed bytes, which the codes of 8 bits are 128 above."""
    codes: NDArray[np.uint8] = blocks["q"].copy().view(np.uint8).reshape(-1, _GROUP)
    codes ^= np.uint8(0x80)
    return codes


def _nibbles(blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """The low halves of sixteen bytes, then the high ones."""
    both = np.ascontiguousarray(blocks["q"]).view(np.uint8)
    halves = np.empty((len(blocks), 2), blocks["q"].dtype)
    halves[:, 0] = (both & 15).view(halves.dtype)
    halves[:, 1] = (both >> 4).view(halves.dtype)
    codes: NDArray[np.uint8] = halves.view(np.uint8)
    return codes


def _fifth_bits(blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """Nibbles, and a fifth bit from a word of 32."""
    bits: NDArray[np.uint8] = np.unpackbits(np.ascontiguousarray(blocks["h"]).view(np.uint8), bitorder="little").reshape(
        -1, _GROUP
    )
    codes = _nibbles(blocks)
    codes |= np.left_shift(bits, np.uint8(4))
    return codes


def _centred_fifth_bits(blocks: NDArray[Any]) -> NDArray[np.uint8]:
    """The same, with the centre of 16 where 8 bits have it."""
    codes = _fifth_bits(blocks)
    codes += np.uint8(128 - 16)
    return codes


_D, _M, _H = ("d", "<f2"), ("m", "<f2"), ("h", "V4")
_BLOCKS = {
    "Q8_0": _Block(Packing("int8", _GROUP, _FLOAT16), np.dtype([_D, ("q", "V32")]), _bytes),
    "Q4_0": _Block(Packing("int4", _GROUP, _FLOAT16), np.dtype([_D, ("q", "V16")]), _nibbles),
    "Q4_1": _Block(Packing("int4", _GROUP, _FLOAT16, "least"), np.dtype([_D, _M, ("q", "V16")]), _nibbles),
    "Q5_0": _Block(Packing("int8", _GROUP, _FLOAT16), np.dtype([_D, _H, ("q", "V16")]), _centred_fifth_bits),
    "Q5_1": _Block(Packing("int8", _GROUP, _FLOAT16, "least"), np.dtype([_D, _M, _H, ("q", "V16")]), _fifth_bits),
}
