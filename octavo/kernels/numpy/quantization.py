"""The reference of quantized products: every value is rounded to an integer and back, and the rest is a plain product.

Divisions, products and roundings are those of the native kernels, one by one in float32, so the integers are the same."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.ops import Array, Quantization
from octavo.kernels.packed import FLOAT8, Packing

_LARGEST = {8: np.float32(127), 16: np.float32(127 * 256)}
_LARGEST_FLOAT8 = np.float32(448)
_LARGEST_HALF = np.float32(65504)


def round_weight(matrix: Array, quantization: Quantization) -> Array:
    """[out, in] -> the nearest values that scales and integers can express, as float32."""
    if quantization.is_float:
        return _round_float8(matrix)
    if quantization.bits == 8:
        return _round(matrix, _LARGEST[8])
    grouped = _in_groups(matrix, quantization.group, "edge")  # [out, groups, group]
    low, high = grouped.min(axis=-1, keepdims=True), grouped.max(axis=-1, keepdims=True)
    scale, least = _half((high - low) / np.float32(15)), _half(low)
    inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
    rounded: Array = np.rint(np.clip((grouped - least) * inverse, 0, 15)) * scale + least
    return rounded.reshape(len(matrix), -1)[:, : matrix.shape[1]]


def round_activations(x: Array, weight: Quantization | Packing, order: NDArray[np.int32] | None = None) -> Array:
    """[t, in] -> the same, rounded as it is beside such a weight, its groups in `order` of the inputs. What is in a group
    with a NaN or an infinity becomes NaN."""
    if order is not None:
        ordered = np.empty_like(x)
        ordered[:, order] = round_activations(x[:, order], weight)
        return ordered
    group = weight.activation_group or x.shape[1]
    rounded = _round(_in_groups(x, group, "constant"), _LARGEST[weight.activation_bits])
    return np.ascontiguousarray(rounded.reshape(len(x), -1)[:, : x.shape[1]])


def _round_float8(matrix: Array) -> Array:
    most = np.abs(matrix).max(axis=-1, keepdims=True)
    inverse = np.divide(_LARGEST_FLOAT8, most, out=np.zeros_like(most), where=most > 0)
    rounded: Array = (matrix * inverse).astype(FLOAT8).astype(np.float32) * (most / _LARGEST_FLOAT8)
    return rounded


def _half(values: Array) -> Array:
    return np.clip(values, -_LARGEST_HALF, _LARGEST_HALF).astype(np.float16).astype(np.float32)


def _round(values: Array, largest: np.float32) -> Array:
    """To integers in [-largest, largest] times one scale for the last axis."""
    most = np.abs(values).max(axis=-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        inverse = np.divide(largest, most, out=np.zeros_like(most), where=most > 0)
        rounded: Array = np.rint(values * inverse) * (most / largest)
    return rounded


def _in_groups(values: Array, group: int, mode: Literal["constant", "edge"]) -> Array:
    """[r, n] -> [r, groups, group], filled up with zeros or with each row's last value."""
    padding = -values.shape[1] % group
    return np.pad(values, ((0, 0), (0, padding)), mode=mode).reshape(len(values), -1, group)
