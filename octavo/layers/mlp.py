"""Feed-forward blocks."""

from __future__ import annotations

from octavo.errors import LoadError
from octavo.kernels.ops import UNGATED, Array, Ops
from octavo.layers.linear import Linear
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights

# config.json's names of activations -> those of `Ops.linear_weight`
_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def activation_of(config: ModelConfig, default: str = "silu") -> str:
    """The activation that `hidden_act` names, as `Ops.linear_weight` calls it. LoadError for an unknown one."""
    name = config.raw.get("hidden_act") or default
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        raise LoadError(f"hidden_act {name!r} is not supported; supported: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[name]


class GatedMLP:
    """down(act(gate(x)) * up(x)): SwiGLU and its kind (Shazeer, 2020). Takes gate_proj, up_proj and down_proj."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        ops: Ops,
        *,
        bias: bool = False,
        inner: int | None = None,
        activation: str | None = None,
    ) -> None:
        """`inner`: in place of the configuration's intermediate_size. `activation`: in place of its hidden_act."""
        hidden, inner = config.hidden_size, inner or config.intermediate_size
        gate_up = {"gate_proj": inner, "up_proj": inner}
        self._gate_up = Linear(weights, ops, hidden, gate_up, bias=bias, activation=activation or activation_of(config))
        self._down = Linear(weights, ops, inner, {"down_proj": hidden}, bias=bias)

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        """[t, h] -> [t, h]; with `residual`, added into it in place."""
        return self._down(self._gate_up(x), residual)


class MLP:
    """down(act(up(x))). Takes up_proj and down_proj."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops, *, bias: bool = True) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self._up = Linear(weights, ops, hidden, {"up_proj": inner}, bias=bias, activation=UNGATED + activation_of(config))
        self._down = Linear(weights, ops, inner, {"down_proj": hidden}, bias=bias)

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        """[t, h] -> [t, h]; with `residual`, added into it in place."""
        return self._down(self._up(x), residual)


def split_gate_up(config: ModelConfig, weights: Weights, stored: str) -> None:
    """Let the rows of one stored projection be gate_proj and up_proj."""
    weights.split(stored, {"gate_proj": config.intermediate_size, "up_proj": config.intermediate_size})
