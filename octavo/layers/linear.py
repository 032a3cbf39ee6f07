"""Projections."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from octavo.kernels.ops import Array, Handle, Ops, is_gated
from octavo.weights.checkpoint import Weights


def projection_weight(
    weights: Weights,
    ops: Ops,
    inputs: int,
    outputs: Mapping[str, int],
    *,
    bias: bool = False,
    activation: str | None = None,
) -> Handle:
    """Stored projections (name -> outputs) of the same input as one weight, stacked in the order given."""
    taken = [weights.take_projection(name, (size, inputs), bias=bias) for name, size in outputs.items()]
    biases = None
    if any(each is not None for _, each in taken):
        sizes = outputs.values()
        biases = [np.zeros(size, np.float32) if each is None else each for (_, each), size in zip(taken, sizes, strict=True)]
    parts = [part for part, _ in taken]
    return ops.linear_weight(parts, biases, quantization=weights.quantization, activation=activation)


class Linear:
    """y = x W^T (+ b). Stored projections of the same input are stacked, in the order given, into one product."""

    def __init__(
        self,
        weights: Weights,
        ops: Ops,
        inputs: int,
        outputs: Mapping[str, int],
        *,
        bias: bool = False,
        activation: str | None = None,
    ) -> None:
        """`outputs`: name -> output size of each stored projection. `activation`: as in `Ops.linear_weight`."""
        self.columns = sum(outputs.values()) // (2 if is_gated(activation) else 1)
        self._weight = projection_weight(weights, ops, inputs, outputs, bias=bias, activation=activation)
        self._ops = ops

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        """[t, inputs] -> [t, sum of outputs], with an activation half of it; with `residual`, added into it in place."""
        return self._ops.linear(x, self._weight, residual)
