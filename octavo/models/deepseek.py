"""DeepSeek-V2, V2-Lite, V3 and R1 (DeepSeek-AI, 2024): latent attention, and experts behind the first layers."""

from __future__ import annotations

from octavo.errors import LoadError
from octavo.kernels.ops import Ops, Routing
from octavo.layers.decoder import Decoder, FeedForward, PreNormLayer, pre_norm_layer
from octavo.layers.latent_attention import LatentAttention
from octavo.layers.mlp import GatedMLP
from octavo.layers.moe import Sum, routed_experts
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class DeepseekV2ForCausalLM(Decoder):
    """The family `DeepseekV2ForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, interleaved = Rotary(config), config.flag("rope_interleave", True)

        def layer(weights: Weights, index: int) -> PreNormLayer:
            attention = LatentAttention(config, weights.scope("self_attn"), ops, index, rotary, interleaved=interleaved)
            return pre_norm_layer(
                config, weights, ops, attention, self._feed_forward(config, weights.scope("mlp"), ops, index)
            )

        for extra in range(config.count("num_nextn_predict_layers")):  # they predict further tokens
            weights.ignore_all(f"model.layers.{config.num_layers + extra}")
        super().__init__(config, weights, ops, layer)

    def routing(self, config: ModelConfig) -> Routing:
        """How experts are chosen. LoadError for a way that is not known."""
        method, chosen, scale = config.raw["topk_method"], config.size("num_experts_per_tok"), scale_of(config)
        if config.flag("norm_topk_prob"):
            raise LoadError("norm_topk_prob true is not supported for DeepSeek-V2; supported: false")
        if method == "greedy":
            return Routing(chosen, scale=scale)
        if method == "group_limited_greedy":
            return Routing(chosen, groups=config.size("n_group"), chosen_groups=config.size("topk_group"), scale=scale)
        raise LoadError(f"topk_method {method!r} is not supported; supported: greedy, group_limited_greedy")

    correction: str | None = None  # the name of what is added to the scores for the choice alone

    def _feed_forward(self, config: ModelConfig, weights: Weights, ops: Ops, index: int) -> FeedForward:
        if index < config.count("first_k_dense_replace"):
            return GatedMLP(config, weights, ops)
        inner, shared = config.size("moe_intermediate_size"), config.size("n_shared_experts")
        experts = config.size("n_routed_experts")
        routed = routed_experts(
            config, weights, ops, self.routing(config), experts=experts, inner=inner, correction=self.correction
        )
        return Sum(routed, GatedMLP(config, weights.scope("shared_experts"), ops, inner=inner * shared))


class DeepseekV3ForCausalLM(DeepseekV2ForCausalLM):
    """The family `DeepseekV3ForCausalLM` of Transformers."""

    correction = "e_score_correction_bias"

    def routing(self, config: ModelConfig) -> Routing:
        """How experts are chosen. LoadError for a way that is not known."""
        method, scoring = config.raw["topk_method"], config.raw["scoring_func"]
        if (method, scoring) != ("noaux_tc", "sigmoid"):
            raise LoadError(
                f"topk_method {method!r} with scoring_func {scoring!r} is not supported; supported: noaux_tc, sigmoid"
            )
        return Routing(
            config.size("num_experts_per_tok"),
            normalise=config.flag("norm_topk_prob", True),
            scoring="sigmoid",
            groups=config.size("n_group"),
            chosen_groups=config.size("topk_group"),
            group_best=2,
            scale=scale_of(config),
        )


def scale_of(config: ModelConfig) -> float:
    """By what the chosen scores are multiplied."""
    return config.number("routed_scaling_factor", 1.0)
