"""From the parts of a projection to the weight that the library multiplies by."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import CDLL
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.buffers import dtype_code
from octavo.kernels.cpu.library import failure
from octavo.kernels.cpu.weights import PackedWeight, WeightFormat
from octavo.kernels.ops import Quantization, is_gated
from octavo.kernels.packed import PackedTensor, WeightPart


class Packer:
    """Packs weights by one context of the library, as `Ops` describes it; the context must be open."""

    def __init__(self, library: CDLL, context: int | None) -> None:
        self._library = library
        self._context = context

    def linear_weight(
        self,
        parts: Sequence[WeightPart],
        biases: Sequence[NDArray[Any]] | None,
        quantization: Quantization | None,
        activation: str | None,
    ) -> PackedWeight:
        """Pack [out_i, in] weights, stacked along `out`. Each part may be freed afterwards. ValueError for parts that
        make no weight together."""
        _check(parts, activation)
        runs = _alike(parts, quantization)
        remaining = activation if is_gated(activation) and len(runs) > 1 else None  # of halves of two formats
        if remaining not in (None, "silu"):
            raise ValueError(f"a gate and an up of two formats have no activation {activation}")
        pieces = [self._pack(run, quantization, activation if remaining is None else None) for run in runs]
        weight = pieces[0] if len(pieces) == 1 else PackedWeight.stack(self._library, pieces, remaining)
        if biases is not None:
            weight.set_bias(np.concatenate([np.asarray(bias).astype(np.float32) for bias in biases]))
        return weight

    def weight_bytes(self, parts: Sequence[WeightPart], quantization: Quantization | None, activation: str | None) -> int:
        """Bytes of the panels; memory for them is reserved, and not touched."""
        runs = _alike(parts, quantization)
        own = activation if len(runs) == 1 else None  # without it the panels are as large
        return sum(self._empty(run, quantization, own).nbytes for run in runs)

    def dequantize(
        self, raw: NDArray[np.uint8], type_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """GGUF blocks to `dtype` [shape]: the gguf library's float32 values, rounded to nearest even."""
        from gguf.constants import GGMLQuantizationType  # here, where a GGUF file has loaded the library already

        blocks, out = np.ascontiguousarray(raw), np.empty(shape, dtype)
        source, kind = (blocks.ctypes.data, blocks.nbytes), GGMLQuantizationType[type_name]
        target = out.size, dtype_code(dtype), out.ctypes.data
        status = self._library.octavo_dequantize(self._context, *source, kind, *target)
        if status:
            raise failure(status)
        return out

    def _pack(self, parts: Sequence[WeightPart], quantization: Quantization | None, activation: str | None) -> PackedWeight:
        weight = self._empty(parts, quantization, activation)
        row = 0
        for part in parts:
            weight.put(self._context, part, row)
            row += len(part)
        if isinstance(parts[0], PackedTensor) and parts[0].order is not None:
            weight.set_order(parts[0].order)
        return weight

    def _empty(self, parts: Sequence[WeightPart], quantization: Quantization | None, activation: str | None) -> PackedWeight:
        """A weight for parts of one kind, nothing put into it yet."""
        shape = sum(map(len, parts)), parts[0].shape[1]
        return PackedWeight(self._library, self._context, shape, WeightFormat.of(parts[0], quantization), activation)


def _check(parts: Sequence[WeightPart], activation: str | None) -> None:
    if any(part.ndim != 2 or part.shape[1] != parts[0].shape[1] for part in parts):
        raise ValueError(f"parts of one weight differ: {[part.shape for part in parts]}")
    if is_gated(activation) and [len(part) for part in parts] != [len(parts[0])] * 2:
        raise ValueError(f"an activation takes a gate and an up of one size, got {[part.shape for part in parts]}")


def _alike(parts: Sequence[WeightPart], quantization: Quantization | None) -> list[list[WeightPart]]:
    """The parts in runs that one format and one order of the inputs can hold."""
    runs: list[list[WeightPart]] = []
    for part in parts:
        if runs and _is_alike(runs[-1][0], part, quantization):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _is_alike(first: WeightPart, second: WeightPart, quantization: Quantization | None) -> bool:
    if WeightFormat.of(first, quantization) != WeightFormat.of(second, quantization):
        return False
    if not isinstance(first, PackedTensor) or not isinstance(second, PackedTensor):
        return first.dtype == second.dtype if isinstance(first, np.ndarray) and isinstance(second, np.ndarray) else False
    if first.order is None or second.order is None:
        return first.order is second.order
    return np.array_equal(first.order, second.order)
