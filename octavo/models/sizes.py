"""What a model takes in memory, before any of its weights is read.

The model is built as it will be, but of tensors without content, on a backend that counts in place of packing: so it is the
layers themselves that say what is fused, tied or quantized, and the backend what that takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.ops import Array, Handle, Ops, Quantization
from octavo.kernels.packed import WeightPart
from octavo.models.config import ModelConfig
from octavo.models.registry import build_model
from octavo.weights.checkpoint import Checkpoint, WeightShapes

EXPERT_PAIRS = 4096  # of rows and experts that a backend has in memory at once
_LOGITS_PIECES = 2  # one is read while the next is made


def weights_bytes(
    config: ModelConfig,
    checkpoint: Checkpoint,
    dtype: np.dtype[Any],
    ops: Ops,
    quantization: Quantization | None = None,
) -> int:
    """Bytes of all weights as the backend keeps them. LoadError as `build_model`: for an unknown architecture, and for
    tensors that are missing, left over or of the wrong shape."""
    counting = _Counting(ops)
    shapes = WeightShapes(checkpoint, dtype, ops, quantization=quantization)
    build_model(config, shapes, cast(Ops, counting))  # building calls no operation of a step
    return counting.nbytes


def block_bytes(config: ModelConfig, block_size: int, dtype: np.dtype[Any], ops: Ops) -> int:
    """Bytes of one KV block in all layers, padding included."""
    _, kv_heads, head_size = config.qkv_heads
    cache = ops.kv_cache(config.cached_layers, 1, block_size, kv_heads, head_size, dtype)  # reserved, and never touched
    nbytes = cache.nbytes
    cache.close()
    return nbytes


def activation_bytes(config: ModelConfig, max_num_batched_tokens: int, max_logits_bytes: int) -> int:
    """An upper estimate of what a step needs beside weights and cache; activations and logits are float32.
    `max_logits_bytes`: how much of the logits is there at once, at most."""
    heads = 2 * config.num_heads + 2 * config.num_kv_heads  # q, k, v and the attention's output
    per_token = 4 * config.hidden_size + heads * config.head_dim + 3 * config.intermediate_size
    logits = min(max_num_batched_tokens * config.vocab_size * 4, _LOGITS_PIECES * max_logits_bytes)
    floats = max_num_batched_tokens * per_token + _expert_floats(config, max_num_batched_tokens)
    return 5 * floats + logits  # 4 bytes, and a quarter more for scratch memory and the heap


def _expert_floats(config: ModelConfig, tokens: int) -> int:
    """What the experts have in memory at once for the (row, expert) pairs of a pass: rounded inputs, and both results."""
    chosen = config.raw.get("num_experts_per_tok") or 0
    inner = config.raw.get("moe_intermediate_size") or config.intermediate_size
    return min(tokens * chosen, EXPERT_PAIRS + chosen) * 2 * (config.hidden_size + inner) if chosen else 0


class _Counting:
    """The part of `Ops` that loading uses."""

    def __init__(self, ops: Ops) -> None:
        self._ops = ops
        self.nbytes = 0

    def linear_weight(
        self,
        parts: Sequence[WeightPart],
        biases: Sequence[NDArray[Any]] | None = None,
        *,
        quantization: Quantization | None = None,
        activation: str | None = None,
    ) -> Handle:
        """Count a weight of these shapes and its biases, which are float32."""
        self.nbytes += self._ops.weight_bytes(parts, quantization=quantization, activation=activation)
        self.nbytes += 4 * sum(map(len, parts)) if biases is not None else 0

    def expert_weights(self, gate_up: Sequence[Handle], down: Sequence[Handle]) -> Handle:
        """They are counted already."""
        return None

    def head_weights(self, weights: Sequence[Handle]) -> Handle:
        """They are counted already."""
        return None

    def vector_weight(self, weight: NDArray[Any]) -> Array:
        """Count a norm's weight."""
        self.nbytes += 4 * weight.size
        return np.zeros(0, np.float32)
