"""Projections."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.kernels.ops import Array, Ops
from octavo.weights.checkpoint import Weights


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
        parts = [weights.take(f"{name}.weight", (size, inputs)) for name, size in outputs.items()]
        biases = [weights.take(f"{name}.bias", (size,)) for name, size in outputs.items()] if bias else None
        self._weight = ops.linear_weight(parts, biases, quantization=weights.quantization, activation=activation)
        self._ops = ops

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        """[t, inputs] -> [t, sum of outputs], with an activation half of it; with `residual`, added into it in place."""
        return self._ops.linear(x, self._weight, residual)
