"""Codes of 4 or 8 bits out of 32-bit words, one byte each."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.int32]
Codes = NDArray[np.uint8]

# AWQ's GEMM layout: nibble k of a word, from the lowest, is that of output _AWQ_ORDER[k] of the word's eight.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def unpack_rows(words: Words, bits: int, count: int) -> Codes:
    """[rows, words] -> [rows, count]: each row's codes one after the other, the lowest bits first."""
    as_bytes = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return np.ascontiguousarray(as_bytes[:, :count])
    codes = np.empty((*as_bytes.shape, 2), np.uint8)
    np.bitwise_and(as_bytes, 15, out=codes[..., 0])
    np.right_shift(as_bytes, 4, out=codes[..., 1])
    return np.ascontiguousarray(codes.reshape(len(words), -1)[:, :count])


def unpack_columns(words: Words, bits: int, count: int) -> Codes:
    """[words, columns] -> [columns, count]: each column's codes from top to bottom, the lowest bits first."""
    return unpack_rows(words.T, bits, count)


def unpack_awq(words: Words) -> Codes:
    """AWQ's words [rows, outputs / 8] -> [outputs, rows]."""
    rows, groups = words.shape
    as_bytes = np.ascontiguousarray(words.T).view(np.uint8).reshape(groups, rows, 4)
    codes = np.empty((groups, 8, rows), np.uint8)
    for nibble, output in enumerate(_AWQ_ORDER):
        part = as_bytes[:, :, nibble // 2]
        codes[:, output] = part >> 4 if nibble % 2 else part & 15
    return codes.reshape(groups * 8, rows)


def add_to_codes(words: Words, bits: int) -> Words:
    """1 added to every code of the words, whose carries go to the next code, as they were borrowed when 1 was taken off."""
    ones = np.uint32(0x11111111 if bits == 4 else 0x01010101)
    with np.errstate(over="ignore"):
        added: NDArray[Any] = np.ascontiguousarray(words).view(np.uint32) + ones
    return added.view(np.int32)
