"""Self-attention over the paged cache."""

from __future__ import annotations

from octavo.kernels.ops import Array, KVCache, Ops
from octavo.layers.linear import Linear
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Weights


class Attention:
    """Causal attention with rotary positions and shared KV heads (Ainslie et al., 2023)."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        ops: Ops,
        layer: int,
        rotary: Rotary,
        *,
        qkv_bias: bool = False,
        output_bias: bool = False,
    ) -> None:
        n, k, d = config.qkv_heads
        self._qkv = Linear(
            weights, ops, config.hidden_size, {"q_proj": n * d, "k_proj": k * d, "v_proj": k * d}, bias=qkv_bias
        )
        self._output = Linear(weights, ops, n * d, {"o_proj": config.hidden_size}, bias=output_bias)
        self._rotary = rotary
        self._layer = layer
        self._heads = n, k, d
        self._scale = d**-0.5
        self._ops = ops

    def __call__(self, x: Array, batch: Batch, cache: KVCache, residual: Array) -> Array:
        """[t, h], added into `residual` [t, h] in place; the cache takes the new keys and values."""
        qkv = self._qkv(x)  # [t, (n + 2k) * d]
        self._ops.write_cache(qkv, cache, self._layer, batch, self._heads, self._rotary.table)
        mixed = self._ops.attention(qkv, cache, self._layer, batch, self._heads, self._scale)
        return self._output(mixed, residual)
