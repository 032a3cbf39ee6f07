"""Hugging Face directories: config.json and safetensors files, one or sharded, memory-mapped.

The format (github.com/huggingface/safetensors): eight bytes with the header's length, a JSON header that names dtype,
shape and byte range of every tensor, then the data. It is read here, since the library's numpy part copies every tensor.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import LoadError
from octavo.kernels.ops import Ops
from octavo.weights.checkpoint import PLAIN_TYPES, StoredProjection
from octavo.weights.json_file import read_json
from octavo.weights.pages import release_pages
from octavo.weights.quantized.scheme import open_scheme

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000  # as the reference implementation
_ITEM_BYTES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2}
_ITEM_BYTES |= {"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}
_CODE_TYPES = {"I8": np.int8, "U8": np.uint8, "I32": np.int32, "I64": np.int64, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8}


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies in its mapped file. `type_name` is the format's (BF16, F8_E4M3, ...)."""

    buffer: mmap.mmap
    type_name: str
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int


class SafetensorsCheckpoint:
    """A directory with config.json and safetensors. Opening reads the headers only."""

    def __init__(self, path: Path) -> None:
        """LoadError when a file is missing, truncated or contradicts the index."""
        self.path = path
        self.hf_config = read_json(path / "config.json")
        self.generation_config = read_json(path / "generation_config.json", optional=True)
        self._tensors = _open_tensors(path)
        self._shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        self._scheme = open_scheme(self, self.hf_config)

    @property
    def dtype(self) -> str:
        """The type in which most bytes are stored, of those that can be read."""
        sizes = dict.fromkeys(PLAIN_TYPES, 0)
        for tensor in self._tensors.values():
            if tensor.type_name in sizes:
                sizes[tensor.type_name] += tensor.nbytes
        return str(PLAIN_TYPES[max(sizes, key=lambda name: sizes[name])])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor."""
        return self._shapes

    def nbytes(self, name: str) -> int:
        """Bytes of the tensor in the file."""
        return self._tensors[name].nbytes

    def read(self, name: str, dtype: np.dtype[Any], ops: Ops) -> NDArray[Any]:
        """A read-only view on the mapped file, or a copy where `dtype` or the file's alignment asks for one."""
        tensor = self._tensors[name]
        readable = {"U8": np.dtype(np.uint8)} if dtype == np.uint8 else PLAIN_TYPES
        stored = readable.get(tensor.type_name)
        if stored is None:
            raise LoadError(
                f"{self.path}: tensor {name!r} is stored as {tensor.type_name}; supported: {', '.join(readable)}"
            )
        return np.require(self._view(tensor, stored).astype(dtype, copy=False), requirements="A")

    @property
    def quantization_method(self) -> str | None:
        """quant_method of the configuration; None for ordinary tensors."""
        return None if self._scheme is None else self._scheme.method

    def projection(self, name: str) -> StoredProjection | None:
        """The projection `name`, if the checkpoint's quantization method packed it."""
        return None if self._scheme is None else self._scheme.projection(name)

    def type_name(self, name: str) -> str | None:
        """The format's name of a tensor's type; None where there is no such tensor."""
        tensor = self._tensors.get(name)
        return None if tensor is None else tensor.type_name

    def stored(self, name: str) -> NDArray[Any]:
        """A read-only view of a tensor as it lies in the file; 8-bit floats as uint8. LoadError for other types."""
        tensor = self._tensors[name]
        dtype = PLAIN_TYPES.get(tensor.type_name) or _CODE_TYPES.get(tensor.type_name)
        if dtype is None:
            raise LoadError(f"{self.path}: tensor {name!r} is stored as {tensor.type_name}, which is not supported")
        return np.require(self._view(tensor, np.dtype(dtype)), requirements="A")

    def release(self, names: Iterable[str]) -> None:
        """See `Checkpoint`."""
        for name in names:
            tensor = self._tensors[name]
            release_pages(tensor.buffer, tensor.offset, tensor.nbytes)

    def _view(self, tensor: StoredTensor, dtype: np.dtype[Any]) -> NDArray[Any]:
        return np.frombuffer(tensor.buffer, dtype, math.prod(tensor.shape), tensor.offset).reshape(tensor.shape)


def _open_tensors(path: Path) -> dict[str, StoredTensor]:
    """The single file if there is one, as in Transformers, else the shards that the index names."""
    if (path / SINGLE_NAME).exists():
        return _open_file(path / SINGLE_NAME)
    if (path / INDEX_NAME).exists():
        return _open_shards(path)
    files = sorted(file.name for file in path.glob("*.safetensors"))
    if len(files) == 1 and "-of-" not in files[0]:
        return _open_file(path / files[0])
    if files:
        raise LoadError(f"{path} holds {', '.join(files[:3])}{' ...' if len(files) > 3 else ''} but no {INDEX_NAME}")
    pickles = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in path.glob(pattern))
    ggufs = sorted(file.name for file in path.glob("*.gguf"))
    hint = f"; {pickles[0]} is a pickle, which is not read: convert it to safetensors" if pickles else ""
    hint = f"; to serve {ggufs[0]}, give the path of that file" if ggufs else hint
    raise LoadError(f"{path} holds no {SINGLE_NAME} and no {INDEX_NAME}{hint}")


def _open_shards(path: Path) -> dict[str, StoredTensor]:
    """All shards. The index and the shards' headers must name the same tensors."""
    index = path / INDEX_NAME
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise LoadError(f"{index} has no weight_map of tensor names to file names")
    shards = sorted(set(weight_map.values()))
    for file in shards:
        if Path(file).name != file:
            raise LoadError(f"{index} names the shard {file!r}, which is not a plain file name")
    tensors: dict[str, StoredTensor] = {}
    for file in shards:
        if not (path / file).exists():
            raise LoadError(f"{path} lacks the shard {file}, which {INDEX_NAME} names; the download may be incomplete")
        for name, tensor in _open_file(path / file).items():
            if weight_map.get(name) != file:
                raise LoadError(f"{index} does not say that tensor {name!r} is in {file}")
            tensors[name] = tensor
    missing = sorted(weight_map.keys() - tensors.keys())
    if missing:
        raise LoadError(f"{path / weight_map[missing[0]]} lacks tensor {missing[0]}, which {INDEX_NAME} places there")
    return tensors


def _open_file(file: Path) -> dict[str, StoredTensor]:
    """Map one file and read its header."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            start = stream.read(8)
            if start == b"version ":
                raise LoadError(f"{file} is a Git LFS pointer and not the file itself: run `git lfs pull`")
            length = int.from_bytes(start, "little")
            if size < 8 or not 0 < length <= min(size - 8, _MAX_HEADER_BYTES):
                raise LoadError(f"{file} is not a safetensors file, or truncated ({size} bytes)")
            header = stream.read(length)
            buffer = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise LoadError(f"{file} cannot be read: {error.strerror or error}") from None
    try:
        entries = json.loads(header)
        if not isinstance(entries, dict):
            raise LoadError(f"{file} is damaged: its header is no JSON object")
    except (ValueError, RecursionError) as error:
        raise LoadError(f"{file} is damaged: its header is no JSON ({error})") from None
    data_start = 8 + length
    return {
        name: _stored_tensor(file, buffer, name, entry, data_start)
        for name, entry in entries.items()
        if name != "__metadata__"
    }


def _stored_tensor(file: Path, buffer: mmap.mmap, name: str, entry: Any, data_start: int) -> StoredTensor:
    """One header entry, checked: dtype known, shape and byte range agree, range inside the file."""
    try:
        type_name, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        is_valid = all(type(number) is int and number >= 0 for number in (*shape, begin, end))
        item_bytes = _ITEM_BYTES[type_name]
    except (TypeError, KeyError, ValueError):
        is_valid = False
    if not is_valid:
        raise LoadError(f"{file} is damaged: the header's entry for tensor {name!r} is not valid")
    if end - begin != math.prod(shape) * item_bytes:
        raise LoadError(f"{file} is damaged: tensor {name!r} is {type_name} {shape}, but has {end - begin} bytes")
    if data_start + end > len(buffer):
        raise LoadError(f"{file} is truncated: tensor {name!r} ends at byte {data_start + end}, the file at {len(buffer)}")
    return StoredTensor(buffer, type_name, tuple(shape), data_start + begin, end - begin)
