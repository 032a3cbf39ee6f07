"""Llama (Touvron et al., 2023): a pre-norm decoder with RMS norms, rotary positions, grouped queries and SwiGLU."""

from __future__ import annotations

from octavo.kernels.ops import Array, KVCache, Ops
from octavo.layers.attention import Attention
from octavo.layers.embedding import embedding_and_head
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Weights


class LlamaLayer:
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops, index: int, rotary: Rotary) -> None:
        hidden, epsilon = config.hidden_size, config.norm_epsilon
        attention_bias, mlp_bias = config.raw.get("attention_bias", False), config.raw.get("mlp_bias", False)
        self.attention_norm = RMSNorm(weights.scope("input_layernorm"), ops, hidden, epsilon)
        self.attention = Attention(
            config, weights.scope("self_attn"), ops, index, rotary, qkv_bias=attention_bias, output_bias=attention_bias
        )
        self.mlp_norm = RMSNorm(weights.scope("post_attention_layernorm"), ops, hidden, epsilon)
        self.mlp = GatedMLP(config, weights.scope("mlp"), ops, bias=mlp_bias)

    def __call__(self, x: Array, batch: Batch, cache: KVCache) -> None:
        """x [t, h], in place."""
        self.attention(self.attention_norm(x), batch, cache, residual=x)
        self.mlp(self.mlp_norm(x), residual=x)


class LlamaForCausalLM:
    """The family `LlamaForCausalLM` of Transformers; see `octavo.models.registry.Model`."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        self.config = config
        self.embedding, self.head = embedding_and_head(config, weights, ops)
        rotary = Rotary(config)
        body = weights.scope("model")
        self.layers = [LlamaLayer(config, body.scope(f"layers.{i}"), ops, i, rotary) for i in range(config.num_layers)]
        self.norm = RMSNorm(body.scope("norm"), ops, config.hidden_size, config.norm_epsilon)
        self._ops = ops

    def forward(self, batch: Batch, cache: KVCache) -> Array:
        """Final hidden states [r, h] of `batch.logits_rows`."""
        x = self.embedding(batch.token_ids)  # [t, h]
        for layer in self.layers:
            layer(x, batch, cache)
        return self.norm(self._ops.select_rows(x, batch.logits_rows))

    def logits(self, hidden: Array) -> Array:
        """[r, h] -> [r, vocabulary]."""
        return self.head(hidden)
