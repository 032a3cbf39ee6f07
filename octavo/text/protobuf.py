"""The fields of a protocol buffer message, without its schema (protobuf.dev/programming-guides/encoding)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5  # wire types


def fields_of(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field in its order: an integer as unsigned 64 bits; a text, a message inside and numbers of a
    fixed size as their bytes. ValueError where this is no message."""
    position, end = 0, len(message)
    while position < end:
        key, position = _varint(message, position)
        kind = key & 7
        if kind == _VARINT:
            value, position = _varint(message, position)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, position = _varint(message, position)
        elif kind in (_FIXED_32, _FIXED_64):
            size = 4 if kind == _FIXED_32 else 8
        else:
            raise ValueError(f"a field of wire type {kind} at byte {position}")
        if position + size > end:
            raise ValueError(f"a field ends behind the message, at byte {position + size} of {end}")
        yield key >> 3, message[position : position + size]
        position += size


def signed(value: int) -> int:
    """An integer field as int32 or int64, whose negative values are stored in 64 bits."""
    return value - (1 << 64) if value >> 63 else value


def float_of(value: bytes) -> float:
    """A field of type float."""
    number: float
    (number,) = struct.unpack("<f", value)
    return number


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Seven bits a byte, the lowest first; and where the next field begins."""
    if position < len(message) and message[position] < 0x80:  # most
        return message[position], position + 1
    value = shift = 0
    while position < len(message) and shift < 70:
        byte = message[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position
        shift += 7
    raise ValueError(f"a number does not end, at byte {position}")
