"""compressed-tensors, as llm-compressor writes it: integers of 4 or 8 bits, packed in words or not, and E4M3.

`config_groups` say what was done to which modules: `targets` are names, expressions ("re:...") or classes ("Linear"),
`ignore` lists modules that were left out. weight_packed I32 [out, in * bits / 32] holds q + 8 (or 128), the lowest bits
first, with weight_shape; weight I8 or F8_E4M3 [out, in]; weight_scale [out, groups], [out, 1], [1] or, for blocks,
[out / b, in / b]; weight_zero_point as weight, packed along the outputs; weight_g_idx I32 [in].
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import LoadError
from octavo.kernels.packed import PackedTensor, Packing
from octavo.weights.checkpoint import StoredProjection
from octavo.weights.quantized.fp8 import float8_projection
from octavo.weights.quantized.source import (
    Settings,
    StoredTensors,
    elements,
    expect_shape,
    group_of,
    matrix_shape,
    order_of,
    positive_pair,
    scale_dtype,
    stored_projection,
    stored_scales,
)
from octavo.weights.quantized.unpack import unpack_columns, unpack_rows

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mixed-precision", "dense")
_CLASSES = {"Linear": lambda name: "embed_tokens" not in name, "Embedding": lambda name: "embed_tokens" in name}


@dataclass(frozen=True)
class _Group:
    """One of the `config_groups`."""

    targets: tuple[str, ...]
    bits: int
    kind: str  # int or float
    is_symmetric: bool
    block: tuple[int, int] | None


class CompressedTensors:
    """See `Scheme`."""

    method = "compressed-tensors"

    def __init__(self, source: StoredTensors, settings: Settings) -> None:
        """LoadError for what is not supported, by its name."""
        self._source = source
        self._settings = settings
        form = settings.text("format", default="dense")
        if form not in _FORMATS:
            raise settings.refuse(f"format {form!r}", ", ".join(_FORMATS))
        if settings.get("transform_config"):
            raise settings.refuse("a transform_config", "weights without transforms")
        sparsity = settings.get("sparsity_config", default={})
        if isinstance(sparsity, dict) and sparsity.get("format", "dense") != "dense":
            raise settings.refuse(f"sparsity of format {sparsity['format']!r}", "dense")
        ignore, groups = settings.get("ignore", default=[]), settings.get("config_groups", default={})
        if not isinstance(ignore, list) or not isinstance(groups, dict):
            raise LoadError(f"{source.path}: ignore must be a list and config_groups an object in the quantization_config")
        self._ignore = [str(each) for each in ignore]
        self._groups = [self._read_group(group) for group in groups.values()]
        for pattern in (*self._ignore, *(target for group in self._groups for target in group.targets)):
            self._check_pattern(pattern)

    def projection(self, name: str) -> StoredProjection | None:
        """See `Checkpoint.projection`."""
        source = self._source
        is_packed = source.type_name(f"{name}.weight_packed") is not None
        kind = source.type_name(f"{name}.weight")
        if not is_packed and kind not in ("I8", "F8_E4M3"):
            return None
        group = self._group_of(name)
        if kind == "F8_E4M3":
            if group.kind != "float":
                raise self._contradiction(name, "E4M3", group)
            return float8_projection(source, name, f"{name}.weight_scale", group.block)
        if group.kind != "int":
            raise self._contradiction(name, "integers", group)
        return self._integers(name, group, is_packed)

    def _integers(self, name: str, group: _Group, is_packed: bool) -> StoredProjection:
        source, bits = self._source, group.bits
        weight, scale = f"{name}.weight_packed" if is_packed else f"{name}.weight", f"{name}.weight_scale"
        outputs, inputs = self._packed_shape(name, bits) if is_packed else matrix_shape(source, weight, "I8")
        dtype, stored_shape = scale_dtype(source, scale), source.shapes()[scale]
        groups = 1 if elements(stored_shape) in (1, outputs) else stored_shape[-1]
        if groups > 1:
            expect_shape(source, scale, (outputs, groups))
        zeros, index = f"{name}.weight_zero_point", f"{name}.weight_g_idx"
        packing = Packing(
            "int4" if is_packed and bits == 4 else "int8",
            group_of(source, name, inputs, groups),
            dtype,
            "none" if group.is_symmetric else "zero",
        )
        if source.type_name(index) is not None:
            expect_shape(source, index, (inputs,), "I32", "I64")
        extra = [f"{name}.weight_shape"] if is_packed else []
        extra += [each for each in (zeros, index) if source.type_name(each) is not None]
        extra += [each for each in (f"{name}.input_scale", f"{name}.input_zero_point") if source.type_name(each) is not None]

        def load() -> PackedTensor:
            codes = unpack_rows(source.stored(weight), bits, inputs) if is_packed else _as_codes(source.stored(weight))
            order = None
            if index in extra:
                order = order_of(source, index, packing.group)
                codes = codes if order is None else np.take(codes, order, axis=1)
            scales = np.array(np.broadcast_to(stored_scales(source, scale).reshape(-1, groups), (outputs, groups)))
            offsets = None if group.is_symmetric else self._zeros(zeros, is_packed, bits, (outputs, groups))
            return PackedTensor(packing, codes, scales, offsets, order)

        return stored_projection(source, (outputs, inputs), packing, (weight, scale, *extra), load)

    def _packed_shape(self, name: str, bits: int) -> tuple[int, int]:
        source = self._source
        outputs, words = matrix_shape(source, f"{name}.weight_packed", "I32")
        expect_shape(source, f"{name}.weight_shape", (2,), "I64", "I32")
        shape = source.stored(f"{name}.weight_shape").tolist()
        if shape[0] != outputs or -(-shape[1] * bits // 32) != words:
            raise LoadError(
                f"{source.path}: {name}.weight_shape says {shape}, but there are {outputs} rows of {words} words"
            )
        return shape[0], shape[1]

    def _zeros(self, name: str, is_packed: bool, bits: int, shape: tuple[int, int]) -> NDArray[np.uint8]:
        outputs, groups = shape
        if is_packed:
            expect_shape(self._source, name, (-(-outputs * bits // 32), groups), "I32")
            return np.ascontiguousarray(unpack_columns(self._source.stored(name), bits, outputs).T)
        found = self._source.shapes().get(name)
        if groups > 1 or found is None or elements(found) not in (1, outputs):
            expect_shape(self._source, name, shape)
        expect_shape(self._source, name, found or (), "I8")
        stored = _as_codes(self._source.stored(name)).reshape(-1, groups)
        return np.array(np.broadcast_to(stored, shape))

    def _group_of(self, name: str) -> _Group:
        """That of a module which is stored quantized: names and expressions go before classes."""
        if any(_matches(name, each) for each in self._ignore):
            raise LoadError(
                f"{self._source.path}: {name} is stored quantized, but the ignore list of its configuration has it"
            )
        for is_class in (False, True):
            for group in self._groups:
                targets = [target for target in group.targets if (target in _CLASSES) == is_class]
                if any(_matches(name, target) for target in targets):
                    return group
        raise LoadError(f"{self._source.path}: {name} is stored quantized, but no config_groups target has it")

    def _check_pattern(self, target: str) -> None:
        try:
            re.compile(target.removeprefix("re:") if target.startswith("re:") else "")
        except re.error as error:
            raise LoadError(
                f"{self._source.path}: {target!r} in the quantization_config is no expression ({error})"
            ) from None

    def _contradiction(self, name: str, found: str, group: _Group) -> LoadError:
        return LoadError(f"{self._source.path}: {name} is stored as {found}, but its config_groups say {group.kind}")

    def _read_group(self, value: Any) -> _Group:
        weights = value.get("weights") if isinstance(value, dict) else None
        if not isinstance(weights, dict) or not isinstance(value.get("targets"), list):
            raise LoadError(f"{self._source.path}: each of the config_groups needs weights and targets")
        bits, kind, strategy = weights.get("num_bits"), weights.get("type", "int"), weights.get("strategy")
        if (kind, bits) not in (("int", 4), ("int", 8), ("float", 8)):
            raise self._settings.refuse(f"weights of type {kind} with {bits} bits", "int 4, int 8, float 8")
        if strategy not in ("tensor", "channel", "group", "block", None) or (strategy == "block" and kind == "int"):
            raise self._settings.refuse(f"strategy {strategy!r} of {kind} weights", "tensor, channel, group, block (float)")
        if kind == "float" and weights.get("symmetric") is False:
            raise self._settings.refuse("asymmetric float weights", "symmetric ones")
        return _Group(
            tuple(str(target) for target in value["targets"]),
            4 if bits == 4 else 8,
            str(kind),
            weights.get("symmetric", True) is not False,
            positive_pair(weights.get("block_structure")),
        )


def _as_codes(signed: NDArray[Any]) -> NDArray[np.uint8]:
    """q + 128 of signed bytes."""
    codes: NDArray[np.uint8] = signed.view(np.uint8) ^ np.uint8(128)
    return codes


def _matches(name: str, target: str) -> bool:
    """As compressed-tensors does: an expression from the name's beginning, the name itself, or its class."""
    if target.startswith("re:"):
        return re.match(target[3:], name) is not None
    is_class = _CLASSES.get(target)
    return name == target if is_class is None else is_class(name)
