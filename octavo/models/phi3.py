"""Phi-3, 3.5 and 4 (Abdin et al., 2024): Llama with fused projections, and LongRoPE for long contexts."""

from __future__ import annotations

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention, split_qkv
from octavo.layers.decoder import Decoder, PreNormLayer, pre_norm_layer
from octavo.layers.mlp import GatedMLP, split_gate_up
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class Phi3ForCausalLM(Decoder):
    """The family `Phi3ForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary = Rotary(config)

        def layer(weights: Weights, index: int) -> PreNormLayer:
            split_qkv(config, weights.scope("self_attn"), "qkv_proj")
            split_gate_up(config, weights.scope("mlp"), "gate_up_proj")
            attention = Attention(config, weights.scope("self_attn"), ops, index, rotary)
            return pre_norm_layer(config, weights, ops, attention, GatedMLP(config, weights.scope("mlp"), ops))

        super().__init__(config, weights, ops, layer)
