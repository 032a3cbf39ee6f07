"""Qwen2-MoE (Yang et al., 2024) and Qwen1.5-MoE: Qwen2 with experts, one of which every token goes through."""

from __future__ import annotations

from octavo.errors import LoadError
from octavo.kernels.ops import Ops, Routing
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, FeedForward, PreNormLayer, pre_norm_layer
from octavo.layers.mlp import GatedMLP
from octavo.layers.moe import MixtureOfExperts, Sum, gated_shared_expert, routed_experts
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class Qwen2MoeForCausalLM(Decoder):
    """The family `Qwen2MoeForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, shared, bias = Rotary(config), config.size("shared_expert_intermediate_size"), config.flag("qkv_bias", True)

        def feed_forward(weights: Weights, index: int) -> FeedForward:
            if not is_sparse(config, index):
                return GatedMLP(config, weights, ops)
            return Sum(qwen_experts(config, weights, ops), gated_shared_expert(config, weights, ops, shared))

        def layer(weights: Weights, index: int) -> PreNormLayer:
            attention = Attention(config, weights.scope("self_attn"), ops, index, rotary, qkv_bias=bias)
            return pre_norm_layer(config, weights, ops, attention, feed_forward(weights.scope("mlp"), index))

        super().__init__(config, weights, ops, layer)


def qwen_experts(config: ModelConfig, weights: Weights, ops: Ops) -> MixtureOfExperts:
    """The routed experts of a layer, as config.json of Qwen2-MoE and Qwen3-MoE describes them."""
    routing = Routing(config.size("num_experts_per_tok"), normalise=config.flag("norm_topk_prob"))
    experts, inner = config.size("num_experts"), config.size("moe_intermediate_size")
    return routed_experts(config, weights, ops, routing, experts=experts, inner=inner)


def is_sparse(config: ModelConfig, index: int) -> bool:
    """Whether a layer has experts: every `decoder_sparse_step`th, but for `mlp_only_layers`. LoadError for a list that is
    none."""
    dense = config.raw.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise LoadError(f"mlp_only_layers in the model's configuration must be a list of layers, but is {dense!r}")
    return index not in dense and (index + 1) % config.size("decoder_sparse_step") == 0
