"""Llama (Touvron et al., 2023): a pre-norm decoder with RMS norms, rotary positions, grouped queries and SwiGLU."""

from __future__ import annotations

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, PreNormLayer, pre_norm_layer
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class LlamaForCausalLM(Decoder):
    """The family `LlamaForCausalLM` of Transformers; see `octavo.models.registry.Model`."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary = Rotary(config)
        attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")

        def layer(weights: Weights, index: int) -> PreNormLayer:
            attention = Attention(
                config,
                weights.scope("self_attn"),
                ops,
                index,
                rotary,
                qkv_bias=attention_bias,
                output_bias=attention_bias,
            )
            mlp = GatedMLP(config, weights.scope("mlp"), ops, bias=mlp_bias)
            return pre_norm_layer(config, weights, ops, attention, mlp)

        super().__init__(config, weights, ops, layer)
