"""Products with packed weights: projections, embeddings, and mixtures of experts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.cpu.buffers import INT32, INT64
from octavo.kernels.cpu.calls import Calls, target_of
from octavo.kernels.cpu.elementwise import silu_and_multiply
from octavo.kernels.cpu.weights import NativeExperts, NativeHeads, PackedWeight
from octavo.kernels.ops import Array, Routing

_SCORINGS = {"softmax": 0, "sigmoid": 1}  # the library's numbers


def embedding(
    calls: Calls, token_ids: NDArray[np.int32], weight: PackedWeight, scale: float, residual: Array | None
) -> Array:
    """[t] ids -> [t, h], times `scale`; with `residual`, added into it, in place. IndexError for an id outside the
    vocabulary."""
    (count,) = token_ids.shape
    y = target_of(calls, (count, weight.in_features), residual)
    ids, adds = calls.address(token_ids, INT32), int(residual is not None)
    calls.call("octavo_embedding", weight.pointer, ids, count, scale, calls.writable(y), adds)
    return y


def linear(calls: Calls, x: Array, weight: PackedWeight, residual: Array | None) -> Array:
    """[t, in] -> [t, columns of the weight], plus bias; with `residual` of that shape, added into it, in place."""
    rows, width = x.shape
    if width != weight.in_features:
        raise ValueError(f"expected rows of {weight.in_features}, got {width}")
    if weight.pending_activation is not None and residual is not None:
        raise ValueError("a gate and an up of two formats have no residual")
    y = target_of(calls, (rows, weight.columns if weight.pending_activation is None else weight.out_features), residual)
    source, target, adds = calls.address(x), calls.writable(y), int(residual is not None)
    calls.call("octavo_linear", weight.pointer, source, rows, target, adds)
    return y if weight.pending_activation is None else silu_and_multiply(calls, y)


def linear_heads(calls: Calls, x: Array, weights: NativeHeads) -> Array:
    """[t, n * in] -> [t, n * out]: each head's part times its own weight."""
    heads = weights.heads
    rows, width = x.shape
    if width != len(heads) * heads[0].in_features:
        raise ValueError(f"expected rows of {len(heads)} * {heads[0].in_features}, got {width}")
    y = calls.new(rows, len(heads) * heads[0].columns)
    pointers = calls.address(weights.pointers, INT64)
    calls.call("octavo_linear_heads", pointers, len(heads), calls.address(x), rows, calls.address(y))
    return y


def route(calls: Calls, logits: Array, routing: Routing, bias: Array | None) -> Array:
    """[t, e] -> [t, e]: the scores of those that are chosen, else 0."""
    rows, experts = logits.shape
    problem = routing.problem(experts)
    if problem is not None:
        raise ValueError(problem)
    if bias is not None and bias.shape != (experts,):
        raise ValueError(f"expected a bias of {experts} values, got shape {bias.shape}")
    y = calls.new(rows, experts)
    groups = routing.groups, routing.chosen_groups, routing.group_best
    choice = _SCORINGS[routing.scoring], *groups, routing.chosen, int(routing.normalise), routing.scale
    shift = None if bias is None else calls.address(bias)
    calls.call("octavo_route", calls.address(logits), rows, experts, *choice, shift, calls.address(y))
    return y


def experts(calls: Calls, x: Array, routing: Array, weights: NativeExperts, residual: Array | None) -> Array:
    """[t, h] -> [t, h]: the experts' results, times routing [t, e], added in the order of the experts; with `residual`,
    into it, in place."""
    rows, width = x.shape
    count = len(weights.down)
    if routing.shape != (rows, count):
        raise ValueError(f"expected routing of shape {(rows, count)}, got {routing.shape}")
    y = target_of(calls, (rows, width), residual)
    pointers = calls.address(weights.gate_up_pointers, INT64), calls.address(weights.down_pointers, INT64)
    source, shares, adds = calls.address(x), calls.address(routing), int(residual is not None)
    calls.call("octavo_experts", *pointers, count, source, rows, width, shares, calls.writable(y), adds)
    return y
