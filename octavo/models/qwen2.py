"""Qwen2 and Qwen2.5 (Yang et al., 2024): Llama with biases of queries, keys and values."""

from __future__ import annotations

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, PreNormLayer, pre_norm_layer
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class Qwen2ForCausalLM(Decoder):
    """The family `Qwen2ForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary = Rotary(config)

        def layer(weights: Weights, index: int) -> PreNormLayer:
            attention = Attention(config, weights.scope("self_attn"), ops, index, rotary, qkv_bias=True)
            return pre_norm_layer(config, weights, ops, attention, GatedMLP(config, weights.scope("mlp"), ops))

        super().__init__(config, weights, ops, layer)
