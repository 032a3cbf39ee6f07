"""GLM-4 (GLM et al., 2024): Llama with a fused MLP, biases of queries, keys and values, and a rotation of neighbours in half
of each head; GLM-4-0414 has norms behind attention and MLP too."""

from __future__ import annotations

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, Layer, PostNormLayer, pre_norm_layer
from octavo.layers.mlp import GatedMLP, split_gate_up
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class GlmForCausalLM(Decoder):
    """The family `GlmForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, bias = Rotary(config), config.flag("attention_bias")

        def layer(weights: Weights, index: int) -> Layer:
            split_gate_up(config, weights.scope("mlp"), "gate_up_proj")
            own = weights.scope("self_attn")
            attention = Attention(config, own, ops, index, rotary, qkv_bias=bias, interleaved=True)
            return self.layer(config, weights, ops, attention, GatedMLP(config, weights.scope("mlp"), ops))

        super().__init__(config, weights, ops, layer)

    @staticmethod
    def layer(config: ModelConfig, weights: Weights, ops: Ops, attention: Attention, mlp: GatedMLP) -> Layer:
        """The norms of a layer."""
        return pre_norm_layer(config, weights, ops, attention, mlp)


class Glm4ForCausalLM(GlmForCausalLM):
    """The family `Glm4ForCausalLM` of Transformers."""

    @staticmethod
    def layer(config: ModelConfig, weights: Weights, ops: Ops, attention: Attention, mlp: GatedMLP) -> Layer:
        """The norms of a layer."""

        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights.scope(f"{name}_layernorm"), ops, config.hidden_size, config.norm_epsilon)

        before = norm("input"), norm("post_attention")
        return PostNormLayer(attention, norm("post_self_attn"), mlp, norm("post_mlp"), before)
