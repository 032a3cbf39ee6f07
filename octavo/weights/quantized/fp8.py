"""E4M3 checkpoints of `quant_method` fp8 (DeepSeek, Qwen, vLLM) and fbgemm_fp8: w = code * scale.

weight F8_E4M3 [out, in] with weight_scale of the tensor ([] or [1]) or of each output ([out, 1] or [out]), or
weight_scale_inv for blocks of `weight_block_size`. A module that was left out has a weight of 16 bits. input_scale is read
over: activations are not rounded to 8 bits (docs/quantization.md).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.errors import LoadError
from octavo.kernels.packed import PackedTensor, Packing
from octavo.weights.checkpoint import StoredProjection
from octavo.weights.quantized.source import (
    Settings,
    StoredTensors,
    elements,
    group_of,
    matrix_shape,
    positive_pair,
    refuse_nan_codes,
    scale_dtype,
    stored_projection,
    stored_scales,
)

_GROUP_UNIT = 32  # inputs, of which a group is a multiple


class FP8:
    """See `Scheme`."""

    def __init__(self, source: StoredTensors, settings: Settings) -> None:
        """LoadError for settings that are not supported."""
        self._source = source
        self.method = settings.method
        activations = settings.text("activation_scheme", default="dynamic")
        if activations not in ("dynamic", "static"):
            raise settings.refuse(f"activation_scheme {activations!r}", "dynamic and static")
        form = settings.text("fmt", default="e4m3")
        if form != "e4m3":
            raise settings.refuse(f"fmt {form!r}", "e4m3")
        block = settings.get("weight_block_size")
        self._block = positive_pair(block)
        if block is not None and self._block is None:
            raise settings.refuse(f"weight_block_size {block!r}", "two positive numbers")

    def projection(self, name: str) -> StoredProjection | None:
        """See `Checkpoint.projection`."""
        kind = self._source.type_name(f"{name}.weight")
        if kind == "F8_E5M2":
            raise LoadError(f"{self._source.path}: {name}.weight is stored as F8_E5M2; supported: F8_E4M3")
        if kind != "F8_E4M3":
            return None
        scale = f"{name}.weight_scale_inv"
        scale = scale if self._source.type_name(scale) is not None else f"{name}.weight_scale"
        return float8_projection(self._source, name, scale, self._block)


def float8_projection(source: StoredTensors, name: str, scale: str, block: tuple[int, int] | None) -> StoredProjection:
    """`name.weight` with the scales in `scale`: one, one for each output, or for blocks or groups of inputs."""
    weight, dtype = f"{name}.weight", scale_dtype(source, scale)
    outputs, inputs = matrix_shape(source, weight, "F8_E4M3")
    rows, groups, group = _layout(source, name, scale, block, (outputs, inputs))
    packing = Packing("fp8_e4m3", group, dtype)

    def load() -> PackedTensor:
        codes = np.array(source.stored(weight))
        refuse_nan_codes(source, weight, codes)
        stored = stored_scales(source, scale).reshape(-1, groups)
        return PackedTensor(packing, codes, _spread(stored, rows, outputs))

    extra = tuple(
        extra for extra in (f"{name}.input_scale", f"{name}.activation_scale") if source.type_name(extra) is not None
    )
    return stored_projection(source, (outputs, inputs), packing, (weight, scale, *extra), load)


def _layout(
    source: StoredTensors, name: str, scale: str, block: tuple[int, int] | None, shape: tuple[int, int]
) -> tuple[int, int, int]:
    """Outputs that share a scale, groups of inputs, and inputs in a group (0: all)."""
    outputs, inputs = shape
    found = source.shapes()[scale]
    count = elements(found)
    if count == 1:
        return outputs, 1, 0
    if count == outputs and (len(found) == 1 or found == (outputs, 1)):
        return 1, 1, 0
    if block is not None and found == (-(-outputs // block[0]), -(-inputs // block[1])) and block[1] % _GROUP_UNIT == 0:
        return block[0], found[1], 0 if found[1] == 1 else block[1]
    if len(found) == 2 and found[0] == outputs:
        return 1, found[1], group_of(source, name, inputs, found[1], _GROUP_UNIT)
    raise LoadError(
        f"{source.path}: tensor {scale} has shape {list(found)}, which says nothing of a weight {list(shape)}"
        f"{f' in blocks of {list(block)}' if block else ''}"
    )


def _spread(scales: NDArray[np.generic], rows: int, outputs: int) -> NDArray[np.generic]:
    """A scale for each output."""
    return np.ascontiguousarray(np.repeat(scales, rows, axis=0)[:outputs])
