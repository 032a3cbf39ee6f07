"""Qwen3 (Yang et al., 2025): Llama with norms of each query and key."""

from __future__ import annotations

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention, head_norms
from octavo.layers.decoder import Decoder, PreNormLayer, pre_norm_layer
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class Qwen3ForCausalLM(Decoder):
    """The family `Qwen3ForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, bias = Rotary(config), config.flag("attention_bias")

        def layer(weights: Weights, index: int) -> PreNormLayer:
            own = weights.scope("self_attn")
            norms = head_norms(config, own, ops)
            attention = Attention(config, own, ops, index, rotary, qkv_bias=bias, output_bias=bias, norms=norms)
            return pre_norm_layer(config, weights, ops, attention, GatedMLP(config, weights.scope("mlp"), ops))

        super().__init__(config, weights, ops, layer)
