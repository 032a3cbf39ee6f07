"""Self-attention over the paged cache."""

from __future__ import annotations

from octavo.kernels.ops import Array, KVCache, Ops
from octavo.layers.linear import Linear
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Weights


class Attention:
    """Causal attention with shared KV heads (Ainslie et al., 2023), in the layer's window if it has one. Takes q_proj,
    k_proj, v_proj and o_proj."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        ops: Ops,
        layer: int,
        rotary: Rotary | None,
        *,
        qkv_bias: bool = False,
        output_bias: bool = False,
        norms: tuple[RMSNorm, RMSNorm] | None = None,
        scale: float | None = None,
        soft_cap: float | None = None,
        interleaved: bool = False,
        sinks: bool = False,
    ) -> None:
        """`rotary` None: queries and keys are not rotated. `norms`: of queries and keys before the rotation, of each head or
        all of a token's together, as their size says. `scale` of the scores: head_dim^-0.5 if none is given. `soft_cap`
        of the scores: none. `interleaved`: rotated pairs are neighbours. `sinks`: a score of each head, stored under that
        name, that takes part in the softmax and has no value."""
        n, k, d = config.qkv_heads
        self._qkv = Linear(
            weights, ops, config.hidden_size, {"q_proj": n * d, "k_proj": k * d, "v_proj": k * d}, bias=qkv_bias
        )
        self._output = Linear(weights, ops, n * d, {"o_proj": config.hidden_size}, bias=output_bias)
        self._norms = norms
        self._table = None if rotary is None else rotary.table
        self._interleaved = interleaved
        self._layer = layer
        self._heads = n, k, d
        self._scale = d**-0.5 if scale is None else scale
        self._window = config.layer_windows[layer]
        self._soft_cap = soft_cap
        self._sinks = ops.vector_weight(weights.take("sinks", (n,))) if sinks else None
        self._ops = ops

    def __call__(self, x: Array, batch: Batch, cache: KVCache, residual: Array | None = None) -> Array:
        """[t, h] -> [t, h]; with `residual`, added into it in place. The cache takes the new keys and values."""
        ops, (n, k, d) = self._ops, self._heads
        qkv = self._qkv(x)  # [t, (n + 2k) * d]
        if self._norms is not None:
            self._norms[0].columns(qkv, 0, n * d)
            self._norms[1].columns(qkv, n * d, k * d)
        ops.write_cache(qkv, cache, self._layer, batch, self._heads, self._table, interleaved=self._interleaved)
        mixed = ops.attention(
            qkv,
            cache,
            self._layer,
            batch,
            self._heads,
            self._scale,
            window=self._window,
            soft_cap=self._soft_cap,
            sinks=self._sinks,
        )
        return self._output(mixed, residual)


def head_norms(config: ModelConfig, weights: Weights, ops: Ops, *, offset: float = 0.0) -> tuple[RMSNorm, RMSNorm]:
    """q_norm and k_norm of each head (Henry et al., 2020), for `norms`."""
    size, epsilon = config.head_dim, config.norm_epsilon
    query, key = (RMSNorm(weights.scope(name), ops, size, epsilon, offset=offset) for name in ("q_norm", "k_norm"))
    return query, key


def split_qkv(config: ModelConfig, weights: Weights, stored: str) -> None:
    """Let the rows of one stored projection be q_proj, k_proj and v_proj."""
    n, k, d = config.qkv_heads
    weights.split(stored, {"q_proj": n * d, "k_proj": k * d, "v_proj": k * d})
