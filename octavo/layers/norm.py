"""Normalisations."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from octavo.kernels.ops import Array, Ops
from octavo.weights.checkpoint import Weights


class Norm(Protocol):
    """Any of the norms of this module."""

    def __call__(self, x: Array) -> Array:
        """[t, size] -> [t, size]."""


class RMSNorm:
    """Root mean square layer normalisation (Zhang and Sennrich, 2019)."""

    def __init__(
        self, weights: Weights, ops: Ops, size: int, epsilon: float, *, offset: float = 0.0, scale: float = 1.0
    ) -> None:
        """The weight is (what is stored + `offset`) * `scale`; Gemma stores it without its 1."""
        self.size = size
        stored = weights.take("weight", (size,))
        if offset != 0.0 or scale != 1.0:
            stored = (stored.astype(np.float32) + np.float32(offset)) * np.float32(scale)
        self._weight = ops.vector_weight(stored)
        self._epsilon = epsilon
        self._ops = ops

    def __call__(self, x: Array) -> Array:
        """[..., size] -> [..., size]."""
        return self._ops.rms_norm(x, self._weight, self._epsilon)

    def add(self, x: Array, residual: Array) -> Array:
        """The norm of x, added into `residual`, in place."""
        return self._ops.rms_norm(x, self._weight, self._epsilon, residual)

    def columns(self, x: Array, first: int, width: int) -> None:
        """In place, of each run of `size` columns among the `width` ones of x [t, w] from `first` on."""
        self._ops.rms_norm_columns(x, self._weight, self._epsilon, first, width // self.size)


class LayerNorm:
    """Layer normalisation (Ba et al., 2016)."""

    def __init__(self, weights: Weights, ops: Ops, size: int, epsilon: float, *, bias: bool = True) -> None:
        self._weight = ops.vector_weight(weights.take("weight", (size,)))
        self._bias = ops.vector_weight(weights.take("bias", (size,))) if bias else None
        self._epsilon = epsilon
        self._ops = ops

    def __call__(self, x: Array) -> Array:
        """[t, size] -> [t, size]."""
        return self._ops.layer_norm(x, self._weight, self._bias, self._epsilon)

    def in_place(self, x: Array) -> None:
        """The same, in place."""
        self._ops.layer_norm(x, self._weight, self._bias, self._epsilon, in_place=True)


def no_norm(x: Array) -> Array:
    """In the place of a norm, where there is none."""
    return x
