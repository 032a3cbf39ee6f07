"""The reference of what becomes of a product's result."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from octavo.kernels.ops import UNGATED, Array, is_gated

_erf = np.frompyfunc(math.erf, 1, 1)


def _silu(x: Array) -> Array:
    with np.errstate(over="ignore"):  # exp(-x) = inf for a very negative x, whose silu is 0
        activated: Array = x / (1 + np.exp(-x))
    return activated


def _gelu(x: Array) -> Array:
    activated: Array = x * (0.5 + 0.5 * _erf(x * math.sqrt(0.5)).astype(np.float32))
    return activated


def _gelu_tanh(x: Array) -> Array:
    cubic = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    activated: Array = np.float32(0.5) * x * (1 + np.tanh(cubic))
    return activated


def _relu(x: Array) -> Array:
    activated: Array = np.maximum(x, np.float32(0))
    return activated


def _clamped_silu(x: Array) -> Array:
    clamped = np.minimum(x, np.float32(7))
    with np.errstate(over="ignore"):
        activated: Array = clamped / (1 + np.exp(np.float32(-1.702) * clamped))
    return activated


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {"silu": _silu, "gelu": _gelu, "gelu_tanh": _gelu_tanh, "relu": _relu}
_FUNCTIONS["clamped_silu"] = _clamped_silu


def activate(x: Array, activation: str | None) -> Array:
    """What `linear` makes of a product [t, out], for the `activation` of `Ops.linear_weight`."""
    if activation is None:
        return x
    if not is_gated(activation):
        return _FUNCTIONS[activation.removeprefix(UNGATED)](x)
    gate, up = np.split(x, 2, axis=-1)
    if activation == "clamped_silu":
        up = np.clip(up, np.float32(-7), np.float32(7)) + 1
    return _FUNCTIONS[activation](gate) * up
