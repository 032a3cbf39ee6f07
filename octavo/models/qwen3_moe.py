"""Qwen3-MoE (Yang et al., 2025): Qwen3 with experts."""

from __future__ import annotations

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention, head_norms
from octavo.layers.decoder import Decoder, FeedForward, PreNormLayer, pre_norm_layer
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.models.qwen2_moe import is_sparse, qwen_experts
from octavo.weights.checkpoint import Weights


class Qwen3MoeForCausalLM(Decoder):
    """The family `Qwen3MoeForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, bias = Rotary(config), config.flag("attention_bias")

        def feed_forward(weights: Weights, index: int) -> FeedForward:
            return qwen_experts(config, weights, ops) if is_sparse(config, index) else GatedMLP(config, weights, ops)

        def layer(weights: Weights, index: int) -> PreNormLayer:
            own = weights.scope("self_attn")
            norms = head_norms(config, own, ops)
            attention = Attention(config, own, ops, index, rotary, qkv_bias=bias, output_bias=bias, norms=norms)
            return pre_norm_layer(config, weights, ops, attention, feed_forward(weights.scope("mlp"), index))

        super().__init__(config, weights, ops, layer)
