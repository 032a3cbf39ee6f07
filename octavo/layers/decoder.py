"""What all decoders are: an embedding, layers that add to it, a norm and a head; and three ways in which a layer adds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from octavo.errors import LoadError
from octavo.kernels.ops import Array, KVCache, Ops
from octavo.layers.embedding import Embedding, embedding_and_head
from octavo.layers.linear import Linear
from octavo.layers.norm import Norm, RMSNorm
from octavo.models.config import ModelConfig
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Weights


class Mixer(Protocol):
    """Attention of some kind."""

    def __call__(self, x: Array, batch: Batch, cache: KVCache, residual: Array | None = None) -> Array:
        """[t, h] -> [t, h]; with `residual`, added into it in place."""


class FeedForward(Protocol):
    """A multilayer perceptron, or experts."""

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        """[t, h] -> [t, h]; with `residual`, added into it in place."""


class Layer(Protocol):
    """Changes x [t, h] in place."""

    def __call__(self, x: Array, batch: Batch, cache: KVCache) -> None: ...


class PreNormLayer:
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, attention_norm: Norm, attention: Mixer, mlp_norm: Norm, mlp: FeedForward) -> None:
        self._attention_norm, self._attention = attention_norm, attention
        self._mlp_norm, self._mlp = mlp_norm, mlp

    def __call__(self, x: Array, batch: Batch, cache: KVCache) -> None:
        """x [t, h], in place."""
        self._attention(self._attention_norm(x), batch, cache, residual=x)
        self._mlp(self._mlp_norm(x), residual=x)


def pre_norm_layer(config: ModelConfig, weights: Weights, ops: Ops, attention: Mixer, mlp: FeedForward) -> PreNormLayer:
    """With the RMS norms input_layernorm and post_attention_layernorm of a layer's weights."""
    hidden, epsilon = config.hidden_size, config.norm_epsilon
    first, second = (
        RMSNorm(weights.scope(f"{name}_layernorm"), ops, hidden, epsilon) for name in ("input", "post_attention")
    )
    return PreNormLayer(first, attention, second, mlp)


class PostNormLayer:
    """x + norm(attention(x)), then x + norm(mlp(x)); with `before` two more norms, of what attention and mlp are given."""

    def __init__(
        self,
        attention: Mixer,
        attention_norm: RMSNorm,
        mlp: FeedForward,
        mlp_norm: RMSNorm,
        before: tuple[Norm, Norm] | None = None,
    ) -> None:
        self._attention, self._attention_norm = attention, attention_norm
        self._mlp, self._mlp_norm = mlp, mlp_norm
        self._before = before

    def __call__(self, x: Array, batch: Batch, cache: KVCache) -> None:
        """x [t, h], in place."""
        given = x if self._before is None else self._before[0](x)
        self._attention_norm.add(self._attention(given, batch, cache), residual=x)
        given = x if self._before is None else self._before[1](x)
        self._mlp_norm.add(self._mlp(given), residual=x)


class ParallelLayer:
    """x + attention(norm(x)) + mlp(norm(x)): both see the same x (Wang and Komatsuzaki, 2021). The norms may be one."""

    def __init__(self, attention_norm: Norm, attention: Mixer, mlp_norm: Norm, mlp: FeedForward) -> None:
        self._attention_norm, self._attention = attention_norm, attention
        self._mlp_norm, self._mlp = mlp_norm, mlp

    def __call__(self, x: Array, batch: Batch, cache: KVCache) -> None:
        """x [t, h], in place."""
        to_attention = self._attention_norm(x)
        to_mlp = to_attention if self._mlp_norm is self._attention_norm else self._mlp_norm(x)
        self._attention(to_attention, batch, cache, residual=x)
        self._mlp(to_mlp, residual=x)


class Decoder:
    """A decoder under the names that most have: model.embed_tokens, model.layers.0 and on, model.norm, lm_head. A family
    whose checkpoints have others gives `weights` these (`Weights.view`)."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        ops: Ops,
        layer: Callable[[Weights, int], Layer],
        *,
        norm: Callable[[Weights], Norm] | None = None,
        embedding_scale: float = 1.0,
        positions: Embedding | None = None,
        soft_cap: float | None = None,
        ends: tuple[Linear, Linear] | None = None,
    ) -> None:
        """`layer` makes one of its weights and number. `norm` makes the last one, else it is an RMS norm.
        `embedding_scale`: by what embeddings are multiplied. `positions`: what is added to them for each position.
        `soft_cap`: of logits. `ends`: what embeddings go through to become hidden states, and these to meet the head."""
        _check_attention(config)
        self.config = config
        width = config.hidden_size if ends is None else ends[1].columns
        self.embedding, self.head = embedding_and_head(config, weights, ops, scale=embedding_scale, width=width)
        body = weights.scope("model")
        self.layers = [layer(body.scope(f"layers.{i}"), i) for i in range(config.num_layers)]
        last = body.scope("norm")
        self.norm = RMSNorm(last, ops, config.hidden_size, config.norm_epsilon) if norm is None else norm(last)
        self._positions = positions
        self._soft_cap = soft_cap
        self._ends = ends
        self._ops = ops

    def forward(self, batch: Batch, cache: KVCache) -> Array:
        """Final hidden states [r, h] of `batch.logits_rows`."""
        x = self.embedding(batch.token_ids)  # [t, h]
        if self._ends is not None:
            x = self._ends[0](x)
        if self._positions is not None:
            self._positions(batch.positions, residual=x)
        for layer in self.layers:
            layer(x, batch, cache)
        hidden = self.norm(self._ops.select_rows(x, batch.logits_rows))
        return hidden if self._ends is None else self._ends[1](hidden)

    def logits(self, hidden: Array) -> Array:
        """[r, h] -> [r, vocabulary]."""
        logits = self.head(hidden)
        return logits if self._soft_cap is None else self._ops.soft_cap(logits, self._soft_cap)


def _check_attention(config: ModelConfig) -> None:
    """LoadError for what no decoder here computes: layers of other types than those that the windows were read from
    (`octavo.models.windows`), and attention to what comes behind a token, as some embedding models have it."""
    unknown = set(config.raw.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if unknown:
        raise LoadError(f"layers of the type {sorted(unknown)[0]!r} (layer_types) are not supported")
    if config.flag("use_bidirectional_attention") or not config.flag("is_causal", True):
        name = "use_bidirectional_attention true" if config.raw.get("is_causal", True) else "is_causal false"
        raise LoadError(f"{name} is not supported: decoders attend to what comes before a token (docs/pooling.md)")
