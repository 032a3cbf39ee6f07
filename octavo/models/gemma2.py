"""Gemma 2 and 3 (Gemma Team, 2024 and 2025): norms before and after attention and MLP, layers with a sliding window between
those without; Gemma 2 caps scores and logits, Gemma 3 has norms of queries and keys, and another rotation in its windows."""

from __future__ import annotations

import math

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention, head_norms
from octavo.layers.decoder import Decoder, PostNormLayer
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.models.gemma import ACTIVATION, gemma_norm
from octavo.weights.checkpoint import Weights


class Gemma2ForCausalLM(Decoder):
    """The family `Gemma2ForCausalLM` of Transformers."""

    soft_caps: tuple[float | None, float | None] = (
        50.0,
        30.0,
    )  # of scores and of logits, where the configuration does not say it
    has_head_norms = False

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary = Rotary(config)
        local = rotary if config.local_rope is None else Rotary(config, config.local_rope)
        score_cap, logit_cap = (
            _soft_cap(config, f"{name}_softcapping", default)
            for name, default in zip(("attn_logit", "final_logit"), self.soft_caps, strict=True)
        )
        scale, bias = config.number("query_pre_attn_scalar", 256) ** -0.5, config.flag("attention_bias")

        def layer(weights: Weights, index: int) -> PostNormLayer:
            def norm(name: str) -> RMSNorm:
                return gemma_norm(config, weights.scope(f"{name}_layernorm"), ops)

            own = weights.scope("self_attn")
            attention = Attention(
                config,
                own,
                ops,
                index,
                rotary if config.layer_windows[index] is None else local,
                qkv_bias=bias,
                output_bias=bias,
                norms=head_norms(config, own, ops, offset=1.0) if self.has_head_norms else None,
                scale=scale,
                soft_cap=score_cap,
            )
            mlp = GatedMLP(config, weights.scope("mlp"), ops, activation=ACTIVATION)
            before = norm("input"), norm("pre_feedforward")
            return PostNormLayer(attention, norm("post_attention"), mlp, norm("post_feedforward"), before)

        super().__init__(
            config,
            weights,
            ops,
            layer,
            norm=lambda last: gemma_norm(config, last, ops),
            embedding_scale=math.sqrt(config.hidden_size),
            soft_cap=logit_cap,
        )


def _soft_cap(config: ModelConfig, key: str, default: float | None) -> float | None:
    """None, which null says as well: scores are as they are."""
    if default is None and key not in config.raw:
        return None
    return None if config.raw.get(key, default) is None else config.number(key, default or 1.0)
