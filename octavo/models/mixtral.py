"""Mixtral (Jiang et al., 2024): Mistral with a mixture of experts in each layer."""

from __future__ import annotations

from octavo.kernels.ops import Ops, Routing
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, PreNormLayer, pre_norm_layer
from octavo.layers.moe import routed_experts
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights

_STORED_NAMES = ("w1", "w3", "w2")  # of an expert's gate, up and down


class MixtralForCausalLM(Decoder):
    """The family `MixtralForCausalLM` of Transformers; the windows, if any, are the configuration's."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, experts = Rotary(config), config.size("num_local_experts")
        routing = Routing(config.size("num_experts_per_tok"), normalise=True)

        def layer(weights: Weights, index: int) -> PreNormLayer:
            attention = Attention(config, weights.scope("self_attn"), ops, index, rotary)
            own, inner = weights.scope("block_sparse_moe"), config.intermediate_size
            mixture = routed_experts(config, own, ops, routing, experts=experts, inner=inner, names=_STORED_NAMES)
            return pre_norm_layer(config, weights, ops, attention, mixture)

        super().__init__(config, weights, ops, layer)
