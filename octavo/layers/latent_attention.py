"""Multi-head latent attention (DeepSeek-AI, 2024): keys and values of all heads are made of one short vector for each token.

A head's key is [W_K c, r] and its value W_V c, of the token's latent c and its rotated part r. So q . W_K c = (W_K^T q) . c,
and the sum of the weighted W_V c is W_V times that of the weighted c: attention runs over c and r alone, with one KV head
of [r, c], and W_K and W_V become products of each head before and after it. The cache holds [r, c] in its keys and in its
values, of which the r has no use, since its kernels read these in two layouts: for DeepSeek-V3 1,152 numbers for a token
and a layer, where the heads' own keys and values would be 40,960.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.ops import Array, Handle, KVCache, Ops
from octavo.kernels.packed import PackedTensor
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Weights

_NORM_EPSILON = 1e-6  # of the latents, whatever the configuration says of other norms


class LatentAttention:
    """Takes q_proj, or q_a_proj, q_a_layernorm and q_b_proj; kv_a_proj_with_mqa, kv_a_layernorm, kv_b_proj and o_proj. The
    configuration's head size is that of [r, c], and its one KV head is this."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        ops: Ops,
        layer: int,
        rotary: Rotary,
        *,
        interleaved: bool = True,
    ) -> None:
        hidden, bias, latent = config.hidden_size, config.flag("attention_bias"), config.size("kv_lora_rank")
        plain, rotated, value = (config.size(key) for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"))
        n = config.num_heads
        self._queries = _Queries(config, weights, ops, n * (plain + rotated), bias=bias)
        weights.split("kv_a_proj_with_mqa", {"latent": latent, "rotated": rotated})
        self._keys = Linear(weights, ops, hidden, {"rotated": rotated, "latent": latent}, bias=bias)
        self._norm = RMSNorm(weights.scope("kv_a_layernorm"), ops, latent, _NORM_EPSILON)
        stored, _ = weights.take_projection("kv_b_proj", (n * (plain + value), latent))
        matrix = stored.dequantized().astype(weights.dtype) if isinstance(stored, PackedTensor) else stored
        heads = matrix.reshape(n, plain + value, latent)
        self._before = _before(ops, heads[:, :plain], rotated)
        self._behind = _behind(ops, heads[:, plain:], rotated)
        self._output = Linear(weights, ops, n * value, {"o_proj": hidden}, bias=bias)
        self._scale = (plain + rotated) ** -0.5 * _stretch(config) ** 2
        self._rotated, self._latent = rotated, latent
        self._table, self._interleaved = rotary.table, interleaved
        self._layer, self._heads = layer, config.qkv_heads
        self._ops = ops

    def __call__(self, x: Array, batch: Batch, cache: KVCache, residual: Array | None = None) -> Array:
        """[t, h] -> [t, h]; with `residual`, added into it in place. The cache takes the new latents."""
        ops = self._ops
        keys = self._keys(x)  # [t, r + c]
        self._norm.columns(keys, self._rotated, self._latent)
        qkv = ops.concatenate([ops.linear_heads(self._queries(x), self._before), keys, keys])  # [t, (n + 2) * (r + c)]
        ops.write_cache(qkv, cache, self._layer, batch, self._heads, self._table, interleaved=self._interleaved)
        mixed = ops.attention(qkv, cache, self._layer, batch, self._heads, self._scale)  # [t, n * (r + c)]
        return self._output(ops.linear_heads(mixed, self._behind), residual)


class _Queries:
    """All heads' queries, by way of a short vector where the configuration has a q_lora_rank."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops, outputs: int, *, bias: bool) -> None:
        self._first: Linear | None = None
        if config.raw.get("q_lora_rank") is None:
            self._last = Linear(weights, ops, config.hidden_size, {"q_proj": outputs})
            return
        rank = config.size("q_lora_rank")
        self._first = Linear(weights, ops, config.hidden_size, {"q_a_proj": rank}, bias=bias)
        self._norm = RMSNorm(weights.scope("q_a_layernorm"), ops, rank, _NORM_EPSILON)
        self._last = Linear(weights, ops, rank, {"q_b_proj": outputs})

    def __call__(self, x: Array) -> Array:
        """[t, h] -> [t, outputs]."""
        return self._last(x if self._first is None else self._norm(self._first(x)))


def _before(ops: Ops, keys: NDArray[Any], rotated: int) -> Handle:
    """W_K [n, p, c] -> the products that make [q, q'] of a head, q' being the part to be rotated, [q', W_K^T q]."""
    n, plain, latent = keys.shape
    matrices = np.zeros((n, rotated + latent, plain + rotated), keys.dtype)
    matrices[:, :rotated, plain:] = np.eye(rotated, dtype=keys.dtype)
    matrices[:, rotated:, :plain] = keys.transpose(0, 2, 1)
    return ops.head_weights([ops.linear_weight([matrix]) for matrix in matrices])


def _behind(ops: Ops, values: NDArray[Any], rotated: int) -> Handle:
    """W_V [n, v, c] -> the products that make W_V c of [r, c]."""
    n, value, latent = values.shape
    matrices = np.zeros((n, value, rotated + latent), values.dtype)
    matrices[:, :, rotated:] = values
    return ops.head_weights([ops.linear_weight([matrix]) for matrix in matrices])


def _stretch(config: ModelConfig) -> float:
    """By what queries and keys are multiplied each beside a scaled rotation."""
    factor, multiplier = config.rope.get("factor"), config.rope.get("mscale_all_dim")
    if config.rope["rope_type"] == "default" or not multiplier or not factor or factor <= 1:
        return 1.0
    return 0.1 * float(multiplier) * math.log(factor) + 1.0
