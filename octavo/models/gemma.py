"""Gemma (Gemma Team, 2024): Llama with GELU gates, embeddings scaled by the root of their size, and norms that store w of
1 + w."""

from __future__ import annotations

import math

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, PreNormLayer
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights

ACTIVATION = "gelu_tanh"  # whatever hidden_act says: the first files name the exact one, with which none was trained


class GemmaForCausalLM(Decoder):
    """The family `GemmaForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, bias = Rotary(config), config.flag("attention_bias")

        def layer(weights: Weights, index: int) -> PreNormLayer:
            attention = Attention(config, weights.scope("self_attn"), ops, index, rotary, qkv_bias=bias, output_bias=bias)
            return PreNormLayer(
                gemma_norm(config, weights.scope("input_layernorm"), ops),
                attention,
                gemma_norm(config, weights.scope("post_attention_layernorm"), ops),
                GatedMLP(config, weights.scope("mlp"), ops, activation=ACTIVATION),
            )

        scale = math.sqrt(config.hidden_size)
        super().__init__(config, weights, ops, layer, norm=lambda last: gemma_norm(config, last, ops), embedding_scale=scale)


def gemma_norm(config: ModelConfig, weights: Weights, ops: Ops) -> RMSNorm:
    """Of hidden states, by 1 + the stored weight."""
    return RMSNorm(weights, ops, config.hidden_size, config.norm_epsilon, offset=1.0)
