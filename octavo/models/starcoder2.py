"""StarCoder2 (Lozhkov et al., 2024): layer norms, biases, and an MLP without gates; a sliding window in every layer."""

from __future__ import annotations

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, PreNormLayer
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class Starcoder2ForCausalLM(Decoder):
    """The family `Starcoder2ForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, bias = Rotary(config), config.flag("use_bias", True)

        def norm(weights: Weights) -> LayerNorm:
            return LayerNorm(weights, ops, config.hidden_size, config.norm_epsilon)

        def layer(weights: Weights, index: int) -> PreNormLayer:
            weights.view("mlp.up_proj", "mlp.c_fc")
            weights.view("mlp.down_proj", "mlp.c_proj")
            own = weights.scope("self_attn")
            attention = Attention(config, own, ops, index, rotary, qkv_bias=bias, output_bias=bias)
            first, second = norm(weights.scope("input_layernorm")), norm(weights.scope("post_attention_layernorm"))
            return PreNormLayer(first, attention, second, MLP(config, weights.scope("mlp"), ops, bias=bias))

        super().__init__(config, weights, ops, layer, norm=norm)
