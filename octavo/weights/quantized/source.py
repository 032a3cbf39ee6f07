"""What the quantization methods read from: a checkpoint's stored tensors and its `quantization_config`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.errors import LoadError
from octavo.kernels.packed import PackedTensor, Packing
from octavo.weights.checkpoint import PLAIN_TYPES, StoredProjection
from octavo.weights.finite import are_finite

MAX_ONE_SCALE_INPUTS = 65536  # that integers with one scale may have: their products are summed in 32 bits


class StoredTensors(Protocol):
    """Tensors as they lie in the files."""

    path: Path

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape."""

    def type_name(self, name: str) -> str | None:
        """safetensors' name of the tensor's type (I32, F8_E4M3, ...); None where there is no such tensor."""

    def stored(self, name: str) -> NDArray[Any]:
        """A read-only view; codes of 8-bit floats are uint8."""

    def release(self, names: Iterable[str]) -> None:
        """Nobody looks at the views of these tensors any more: their pages need not stay in memory."""


class Scheme(Protocol):
    """A quantization method with its settings."""

    method: str  # as `quant_method` has it

    def projection(self, name: str) -> StoredProjection | None:
        """See `Checkpoint.projection`."""


def stored_projection(
    source: StoredTensors,
    shape: tuple[int, int],
    packing: Packing,
    names: Sequence[str],
    load: Callable[[], PackedTensor],
) -> StoredProjection:
    """One whose tensors `load` copies; the files' pages are given back then."""

    def read() -> PackedTensor:
        packed = load()
        source.release(names)
        return packed

    return StoredProjection(shape, packing, tuple(names), read)


def scale_dtype(source: StoredTensors, name: str) -> np.dtype[Any]:
    """The dtype of scales. LoadError for a type that scales cannot have, or where there are none."""
    type_name = source.type_name(name)
    if type_name is None:
        raise LoadError(f"{source.path} has no tensor {name}, without which its codes mean nothing")
    dtype = PLAIN_TYPES.get(type_name)
    if dtype is None:
        raise LoadError(f"{source.path}: tensor {name} is stored as {type_name}; supported: {', '.join(PLAIN_TYPES)}")
    return dtype


def matrix_shape(source: StoredTensors, name: str, *types: str) -> tuple[int, int]:
    """Of a tensor that is there. LoadError unless it is a matrix of one of these types, and holds something."""
    shape, found = source.shapes()[name], source.type_name(name)
    if found not in types or len(shape) != 2 or 0 in shape:
        raise LoadError(
            f"{source.path}: tensor {name} is {found} {list(shape)}, but a matrix of {' or '.join(types)} was expected"
        )
    return shape[0], shape[1]


def expect_shape(source: StoredTensors, name: str, shape: tuple[int, ...], *types: str) -> None:
    """LoadError unless the tensor is there and has this shape, and one of these types if there are any."""
    found = source.shapes().get(name)
    if found is None:
        raise LoadError(f"{source.path} has no tensor {name}, which belongs to its codes")
    if found != shape:
        raise LoadError(f"{source.path}: tensor {name} has shape {list(found)}, but the codes beside it need {list(shape)}")
    if types and source.type_name(name) not in types:
        raise LoadError(f"{source.path}: tensor {name} is {source.type_name(name)}; supported: {', '.join(types)}")


def group_of(source: StoredTensors, name: str, inputs: int, groups: int, multiple: int = 16) -> int:
    """Inputs in each of `groups` equal groups; 0 for one group of all. LoadError for what no kernel can have."""
    if groups == 1:
        if inputs > MAX_ONE_SCALE_INPUTS:
            raise LoadError(f"{source.path}: {name} has one scale for {inputs} inputs; at most {MAX_ONE_SCALE_INPUTS} work")
        return 0
    if groups < 1 or inputs % groups or inputs // groups % multiple:
        raise LoadError(
            f"{source.path}: {name} has {groups} groups of {inputs} inputs; supported: groups of a multiple of {multiple}"
        )
    return inputs // groups


def order_of(source: StoredTensors, name: str, group: int) -> NDArray[np.int32] | None:
    """The inputs group by group, where the tensor `name` [in] says that they do not come so. LoadError unless groups have
    `group` inputs each."""
    index = source.stored(name)
    expected = np.arange(len(index)) // (group or len(index))
    if group == 0 or np.array_equal(index, expected):
        return None
    order = np.argsort(index, kind="stable").astype(np.int32)
    if not np.array_equal(index[order], expected):
        raise LoadError(f"{source.path}: tensor {name} does not sort the inputs into groups of {group}")
    return order


class Settings:
    """Typed access to a `quantization_config`; null is the same as a missing key."""

    def __init__(self, path: Path, method: str, values: dict[str, Any]) -> None:
        self.path = path
        self.method = method
        self.values = values

    def refuse(self, what: str, supported: str) -> LoadError:
        """The line for a setting that is not supported."""
        return LoadError(f"{self.path} is quantized with {self.method}: {what} is not supported; supported: {supported}")

    def get(self, *keys: str, default: Any = None) -> Any:
        """The first of these keys that says something."""
        return next((self.values[key] for key in keys if self.values.get(key) is not None), default)

    def integer(self, *keys: str, default: int | None = None) -> int:
        """LoadError for anything that is no whole number."""
        value = self.get(*keys, default=default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise LoadError(f"{self.path}: {keys[0]} of the quantization_config must be an integer, but is {value!r}")
        return value

    def text(self, *keys: str, default: str) -> str:
        """In lower case. LoadError for anything but a string."""
        value = self.get(*keys, default=default)
        if not isinstance(value, str):
            raise LoadError(f"{self.path}: {keys[0]} of the quantization_config must be a string, but is {value!r}")
        return value.lower()


def refuse_nan_codes(source: StoredTensors, name: str, codes: NDArray[np.uint8]) -> None:
    """LoadError where a code of E4M3 is not a number: no tool writes one."""
    if bool(np.any(codes & 0x7F == 0x7F)):
        raise LoadError(f"{source.path}: tensor {name} holds codes that are no numbers; the file is damaged")


def stored_scales(source: StoredTensors, name: str) -> NDArray[Any]:
    """A view of a tensor of scales. LoadError where one is not finite: no tool writes such, and it spoils every answer."""
    scales = source.stored(name)
    if not are_finite(scales):
        raise LoadError(f"{source.path}: tensor {name} holds scales that are not finite; the file is damaged")
    return scales


def positive_pair(value: Any) -> tuple[int, int] | None:
    """Two positive numbers, in a list or as "128x128"; else None."""
    pair = value.split("x") if isinstance(value, str) else value
    if not isinstance(pair, list) or len(pair) != 2:
        return None
    first, second = (int(each) if isinstance(each, str) and each.isdecimal() else each for each in pair)
    if type(first) is not int or type(second) is not int or min(first, second) < 1:
        return None
    return first, second


def elements(shape: tuple[int, ...]) -> int:
    """Of a tensor of this shape."""
    return math.prod(shape)
