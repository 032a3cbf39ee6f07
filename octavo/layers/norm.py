"""Normalisations."""

from __future__ import annotations

from octavo.kernels.ops import Array, Ops
from octavo.weights.checkpoint import Weights


class RMSNorm:
    """Root mean square layer normalisation (Zhang and Sennrich, 2019)."""

    def __init__(self, weights: Weights, ops: Ops, size: int, epsilon: float) -> None:
        self._weight = ops.vector_weight(weights.take("weight", (size,)))
        self._epsilon = epsilon
        self._ops = ops

    def __call__(self, x: Array) -> Array:
        """[..., size] -> [..., size]."""
        return self._ops.rms_norm(x, self._weight, self._epsilon)
