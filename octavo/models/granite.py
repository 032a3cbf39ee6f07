"""Granite 3 (IBM, 2024): Llama with multipliers of embeddings, scores, logits, and of what each layer adds."""

from __future__ import annotations

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, PreNormLayer
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class GraniteForCausalLM(Decoder):
    """The family `GraniteForCausalLM` of Transformers.

    A layer adds m f(norm(x)). What passes from layer to layer here is z = x / m, so that it adds f(norm(z)): an RMS norm
    makes the same of x and z where its epsilon is divided by m^2, and no product needs to be scaled. The last norm's weight
    takes in what logits are divided by, where there are any."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, attention_bias = Rotary(config), config.flag("attention_bias")
        divisor = config.number("logits_scaling", 1.0) if config.conversion == "none" else 1.0
        scale, multiplier = config.number("attention_multiplier", 1.0), config.number("residual_multiplier", 1.0)

        def norm(weights: Weights, scale: float = 1.0) -> RMSNorm:
            return RMSNorm(weights, ops, config.hidden_size, config.norm_epsilon / multiplier**2, scale=scale)

        def layer(weights: Weights, index: int) -> PreNormLayer:
            own = weights.scope("self_attn")
            attention = Attention(
                config, own, ops, index, rotary, qkv_bias=attention_bias, output_bias=attention_bias, scale=scale
            )
            return PreNormLayer(
                norm(weights.scope("input_layernorm")),
                attention,
                norm(weights.scope("post_attention_layernorm")),
                GatedMLP(config, weights.scope("mlp"), ops, bias=config.flag("mlp_bias")),
            )

        super().__init__(
            config,
            weights,
            ops,
            layer,
            norm=lambda last: norm(last, 1.0 / divisor),
            embedding_scale=config.number("embedding_multiplier", 1.0) / multiplier,
        )
