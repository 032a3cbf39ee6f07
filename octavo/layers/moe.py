"""Mixtures of experts: feed-forward blocks of which each token goes through a few (Shazeer et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.errors import LoadError
from octavo.kernels.ops import Array, Handle, Ops, Routing
from octavo.layers.decoder import FeedForward
from octavo.layers.linear import projection_weight
from octavo.layers.mlp import activation_of
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights

_FLOAT32 = np.dtype(np.float32)
GATE_UP_DOWN = ("gate_proj", "up_proj", "down_proj")


class Router:
    """Which experts a token goes through. Its weight is float32 and never rounded: a small difference between two scores
    would become another expert."""

    def __init__(
        self,
        weights: Weights,
        ops: Ops,
        inputs: int,
        experts: int,
        routing: Routing,
        *,
        bias: bool = False,
        correction: str | None = None,
    ) -> None:
        """LoadError for a routing that does not fit so many experts. `bias`: of the logits. `correction`: the name of what
        is added to the scores for the choice alone."""
        problem = routing.problem(experts)
        if problem is not None:
            raise LoadError(f"the model's configuration contradicts itself: {problem}")
        weight = weights.take("weight", (experts, inputs), _FLOAT32)
        biases = [weights.take("bias", (experts,), _FLOAT32)] if bias else None
        self._weight = ops.linear_weight([weight], biases)
        self._correction = None if correction is None else ops.vector_weight(weights.take(correction, (experts,), _FLOAT32))
        self._routing = routing
        self._ops = ops

    def __call__(self, x: Array) -> Array:
        """[t, inputs] -> routing weights [t, experts]."""
        return self._ops.route(self._ops.linear(x, self._weight), self._routing, self._correction)


class MixtureOfExperts:
    """The sum of the chosen experts' results, each times its routing weight. An expert is a gated MLP."""

    def __init__(self, router: Router, experts: Handle, ops: Ops) -> None:
        """`experts`: of `Ops.expert_weights`."""
        self._router = router
        self._experts = experts
        self._ops = ops

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        """[t, h] -> [t, h]; with `residual`, added into it in place."""
        return self._ops.experts(x, self._router(x), self._experts, residual)


def expert_weights(
    weights: Sequence[Weights],
    ops: Ops,
    hidden: int,
    inner: int,
    *,
    names: tuple[str, str, str] = GATE_UP_DOWN,
    activation: str = "silu",
) -> Handle:
    """Experts that are stored one by one, loaded and rounded one after the other. `names`: of gate, up and down."""
    gate, up, down = names
    gate_up, downs = [], []
    for each in weights:
        parts = {gate: inner, up: inner}
        gate_up.append(projection_weight(each, ops, hidden, parts, activation=activation))
        downs.append(projection_weight(each, ops, inner, {down: hidden}))
    return ops.expert_weights(gate_up, downs)


def routed_experts(
    config: ModelConfig,
    weights: Weights,
    ops: Ops,
    routing: Routing,
    *,
    experts: int,
    inner: int,
    names: tuple[str, str, str] = GATE_UP_DOWN,
    correction: str | None = None,
) -> MixtureOfExperts:
    """A router `gate`, and `experts.0` and on, as most families store them. `correction`: as in `Router`."""
    scopes, hidden = [weights.scope(f"experts.{number}") for number in range(experts)], config.hidden_size
    router = Router(weights.scope("gate"), ops, hidden, experts, routing, correction=correction)
    loaded = expert_weights(scopes, ops, hidden, inner, names=names, activation=activation_of(config))
    return MixtureOfExperts(router, loaded, ops)


def gated_shared_expert(config: ModelConfig, weights: Weights, ops: Ops, inner: int) -> MixtureOfExperts:
    """An expert that every token goes through, times the sigmoid of a gate: a mixture of one."""
    hidden = config.hidden_size
    router = Router(weights.scope("shared_expert_gate"), ops, hidden, 1, Routing(1, scoring="sigmoid"))
    expert = expert_weights([weights.scope("shared_expert")], ops, hidden, inner, activation=activation_of(config))
    return MixtureOfExperts(router, expert, ops)


class Sum:
    """Several blocks that are given the same, and whose results are added."""

    def __init__(self, *parts: FeedForward) -> None:
        self._parts = parts

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        """[t, h] -> [t, h]; with `residual`, added into it in place."""
        for part in self._parts:
            residual = part(x, residual)
        assert residual is not None
        return residual
