"""The header of a GGUF file: metadata and tensor table, read in one pass.

`gguf.GGUFReader` makes several numpy arrays per string, which takes seconds for a vocabulary; this reader takes tens of
milliseconds and answers a damaged file with one line. Constants come from the gguf library. Format:
github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from octavo.errors import LoadError

_SCALARS = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}
_MAX_DIMENSIONS = 4
_LENGTH = struct.Struct("<Q")


@dataclass(frozen=True)
class GGUFTensor:
    """Where a tensor lies. `shape` is outermost first, as in numpy (the file has it the other way round)."""

    type_name: str  # as in gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int

    @property
    def row_nbytes(self) -> int:
        """Bytes of one row (the last axis), which is a whole number of quantisation blocks."""
        return self.nbytes // max(1, math.prod(self.shape[:-1]))


@dataclass(frozen=True)
class GGUFHeader:
    """All metadata (arrays as lists) and the tensor table under llama.cpp's names, over the mapped file."""

    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    buffer: mmap.mmap


def read_header(path: Path) -> GGUFHeader:
    """Map the file and parse its header. LoadError (one line) if it is no GGUF, truncated, damaged, or of a kind that is
    not supported (big-endian, version 1, one part of a split file)."""
    try:
        with path.open("rb") as stream:
            buffer = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise LoadError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    reader = _Reader(path, buffer)
    if buffer[:4] != b"GGUF":
        raise LoadError(f"{path} is not a GGUF file (it starts with {buffer[:4]!r})")
    reader.position = 4
    version = reader.scalar("<u4")
    if version not in (2, 3):
        kind = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
        raise LoadError(f"{path} is a {kind} GGUF file; versions 2 and 3, little-endian, are supported")
    num_tensors, num_keys = reader.scalar("<u8"), reader.scalar("<u8")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = reader.string()
        if key in metadata:
            raise reader.damaged(f"metadata key {key!r} is in it twice")
        metadata[key] = reader.value(reader.scalar("<u4"), key)
    if metadata.get("split.count", 1) not in (0, 1):
        raise LoadError(f"{path} is one part of a split GGUF file: join the parts with `llama-gguf-split --merge`")
    return GGUFHeader(metadata, reader.tensors(num_tensors, metadata), buffer)


class _Reader:
    """A cursor over the mapped file; everything beyond the end is a LoadError."""

    def __init__(self, path: Path, buffer: mmap.mmap) -> None:
        self.path = path
        self.buffer = buffer
        self.size = len(buffer)
        self.position = 0

    def damaged(self, reason: str) -> LoadError:
        return LoadError(f"{self.path} is damaged: {reason}")

    def advance(self, count: int) -> int:
        """Step over `count` bytes; the position before."""
        start = self.position
        if count > self.size - start:
            raise LoadError(
                f"{self.path} is truncated or damaged: its header goes beyond the end of the file ({self.size} bytes)"
            )
        self.position = start + count
        return start

    def scalar(self, code: str) -> Any:
        return self.array(code, 1)[0]

    def array(self, code: str, count: int) -> list[Any]:
        dtype = np.dtype(code)
        start = self.advance(count * dtype.itemsize)
        return np.frombuffer(self.buffer, dtype, count, start).tolist() if count else []

    def string(self) -> str:
        length = self.scalar("<u8")
        start = self.advance(length)
        return self.decode(self.buffer[start : start + length])

    def strings(self, count: int) -> list[str]:
        """The one hot loop: a vocabulary has some hundred thousand strings."""
        buffer, position, unpack = self.buffer, self.position, _LENGTH.unpack_from
        found = []
        try:
            for _ in range(count):
                start = position + _LENGTH.size
                position = start + unpack(buffer, position)[0]
                found.append(buffer[start:position])
        except (struct.error, OverflowError):  # a length beyond the end; `advance` says so
            position = self.size + 1
        self.advance(position - self.position)
        try:
            return [text.decode() for text in found]
        except UnicodeDecodeError:
            raise self.damaged("a string is not UTF-8") from None

    def decode(self, text: bytes) -> str:
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise self.damaged(f"the string {text[:40]!r} is not UTF-8") from None

    def value(self, type_id: int, key: str) -> Any:
        """One metadata value of the type, an array as a list."""
        if type_id == GGUFValueType.STRING:
            return self.string()
        if type_id != GGUFValueType.ARRAY:
            value = self.scalar(self.scalar_code(type_id, key))
            # the shortest decimal of a float32 is what was converted to it: 1e-05 and not 9.999999747378752e-06
            return float(str(np.float32(value))) if type_id == GGUFValueType.FLOAT32 else value
        item_type, count = self.scalar("<u4"), self.scalar("<u8")
        if item_type == GGUFValueType.STRING:
            return self.strings(count)
        return self.array(self.scalar_code(item_type, key), count)

    def scalar_code(self, type_id: int, key: str) -> str:
        for value_type, code in _SCALARS.items():
            if value_type == type_id:
                return code
        raise self.damaged(f"metadata key {key!r} has the unknown value type {type_id}")

    def tensors(self, count: int, metadata: dict[str, Any]) -> dict[str, GGUFTensor]:
        """The tensor table; offsets in it count from the aligned end of the header."""
        rows = [self.tensor_row() for _ in range(count)]
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise self.damaged(f"general.alignment is {alignment}, which is no power of two")
        data_start = -(-self.position // alignment) * alignment
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, type_id, offset in rows:
            if name in tensors:
                raise self.damaged(f"tensor {name!r} is in it twice")
            if offset % alignment:
                raise self.damaged(f"tensor {name!r} is not aligned to {alignment} bytes")
            tensors[name] = self.tensor(name, shape, type_id, data_start + offset)
        in_order = sorted(tensors.items(), key=lambda item: item[1].offset)
        for (name, tensor), (following, other) in pairwise(in_order):
            if tensor.offset + tensor.nbytes > other.offset:
                raise self.damaged(f"tensors {name!r} and {following!r} overlap")
        return tensors

    def tensor_row(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string()
        dimensions = self.scalar("<u4")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self.damaged(f"tensor {name!r} has {dimensions} dimensions")
        shape = tuple(reversed(self.array("<u8", dimensions)))
        if 0 in shape:
            raise self.damaged(f"tensor {name!r} has the empty shape {list(shape)}")
        return name, shape, self.scalar("<u4"), self.scalar("<u8")

    def tensor(self, name: str, shape: tuple[int, ...], type_id: int, offset: int) -> GGUFTensor:
        try:
            kind = GGMLQuantizationType(type_id)
        except ValueError:
            raise self.damaged(f"tensor {name!r} has the unknown type {type_id}; a newer gguf library may know it") from None
        block, block_nbytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise self.damaged(
                f"tensor {name!r} has rows of {shape[-1]}, which is no multiple of {kind.name}'s block of {block}"
            )
        nbytes = math.prod(shape) // block * block_nbytes
        if offset + nbytes > self.size:
            raise LoadError(
                f"{self.path} is truncated: tensor {name!r} ends at byte {offset + nbytes}, the file at {self.size}"
            )
        return GGUFTensor(kind.name, shape, offset, nbytes)
