"""Feed-forward blocks."""

from __future__ import annotations

from octavo.errors import LoadError
from octavo.kernels.ops import Array, Ops
from octavo.layers.linear import Linear
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class GatedMLP:
    """down(silu(gate(x)) * up(x)): SwiGLU (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops, *, bias: bool = False) -> None:
        activation = config.raw.get("hidden_act", "silu")
        if activation not in ("silu", "swish"):
            raise LoadError(f"hidden_act {activation!r} is not supported; supported: silu")
        hidden, inner = config.hidden_size, config.intermediate_size
        gate_up = {"gate_proj": inner, "up_proj": inner}
        self._gate_up = Linear(weights, ops, hidden, gate_up, bias=bias, activation="silu")
        self._down = Linear(weights, ops, inner, {"down_proj": hidden}, bias=bias)

    def __call__(self, x: Array, residual: Array) -> Array:
        """[t, h], added into `residual` [t, h] in place."""
        return self._down(self._gate_up(x), residual)
