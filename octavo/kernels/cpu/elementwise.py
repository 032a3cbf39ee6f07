"""Operations on rows of activations that take no packed weight: selections, norms, caps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.buffers import INT32
from octavo.kernels.cpu.calls import Calls, target_of
from octavo.kernels.ops import Array


def select_rows(calls: Calls, x: Array, rows: NDArray[np.int32]) -> Array:
    """[t, h] -> the rows [r, h]. IndexError for a row that x does not have."""
    (count,), (height, width) = rows.shape, x.shape
    y = calls.new(count, width)
    calls.call("octavo_select_rows", calls.address(x), height, width, calls.address(rows, INT32), count, calls.address(y))
    return y


def concatenate(calls: Calls, parts: Sequence[Array]) -> Array:
    """[t, w_i] each -> [t, sum of w_i]."""
    rows = parts[0].shape[0]
    if any(part.ndim != 2 or part.shape[0] != rows for part in parts):
        raise ValueError(f"parts with as many rows were expected, got shapes {[part.shape for part in parts]}")
    width, first = sum(part.shape[1] for part in parts), 0
    y = calls.new(rows, width)
    for part in parts:
        own = part.shape[1]
        calls.call("octavo_copy_columns", calls.address(part), rows, own, calls.address(y), width, first)
        first += own
    return y


def rms_norm(calls: Calls, x: Array, weight: Array, epsilon: float, residual: Array | None) -> Array:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis. Contiguous [..., h]; with `residual` of that shape,
    added into it, in place."""
    *outer, width = x.shape
    _check_vector(weight, width)
    y = target_of(calls, x.shape, residual)
    source, rows, adds = (calls.address(x), calls.address(weight)), math.prod(outer), int(residual is not None)
    calls.call("octavo_rms_norm", *source, rows, width, epsilon, calls.writable(y), adds)
    return y


def rms_norm_columns(calls: Calls, x: Array, weight: Array, epsilon: float, first: int, count: int) -> None:
    """`rms_norm` of each of `count` neighbouring runs of len(weight) columns of x [t, w], from `first` on, in place.
    ValueError where the rows have no such columns."""
    (rows, stride), (width,) = x.shape, weight.shape
    if first < 0 or count < 0 or first + count * width > stride:
        raise ValueError(f"{count} runs of {width} columns from {first} on are not in rows of {stride}")
    own, scale = calls.writable(x), calls.address(weight)
    calls.call("octavo_rms_norm_columns", own, rows, stride, first, count, scale, width, epsilon)


def layer_norm(calls: Calls, x: Array, weight: Array, bias: Array | None, epsilon: float, in_place: bool) -> Array:
    """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis of [t, h]."""
    rows, width = x.shape
    _check_vector(weight, width)
    if bias is not None:
        _check_vector(bias, width)
    y = x if in_place else calls.new(rows, width)
    source, scale, shift = calls.address(x), calls.address(weight), None if bias is None else calls.address(bias)
    calls.call("octavo_layer_norm", source, scale, shift, rows, width, epsilon, calls.writable(y))
    return y


def soft_cap(calls: Calls, x: Array, cap: float) -> Array:
    """cap * tanh(x / cap), in place."""
    rows, width = x.shape
    calls.call("octavo_soft_cap", calls.writable(x), rows, width, cap)
    return x


def silu_and_multiply(calls: Calls, gate_up: Array) -> Array:
    """[t, 2i] -> [t, i]: silu(first half) * second half. For halves whose product has not done it."""
    rows, width = gate_up.shape
    y = calls.new(rows, width // 2)
    calls.call("octavo_silu_and_multiply", calls.address(gate_up), rows, width // 2, calls.address(y))
    return y


def _check_vector(weight: Array, width: int) -> None:
    if weight.shape != (width,):
        raise ValueError(f"expected a weight of shape {(width,)}, got {weight.shape}")
