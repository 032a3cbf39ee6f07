"""SmolLM3 (Hugging Face, 2025): Llama in which some layers do not rotate queries and keys."""

from __future__ import annotations

from octavo.errors import LoadError
from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, PreNormLayer, pre_norm_layer
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.models.windows import rotates
from octavo.weights.checkpoint import Weights


class SmolLM3ForCausalLM(Decoder):
    """The family `SmolLM3ForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, rotated = Rotary(config), _rotated_layers(config)
        attention_bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")

        def layer(weights: Weights, index: int) -> PreNormLayer:
            own, table = weights.scope("self_attn"), rotary if rotated[index] else None
            attention = Attention(config, own, ops, index, table, qkv_bias=attention_bias, output_bias=attention_bias)
            mlp = GatedMLP(config, weights.scope("mlp"), ops, bias=mlp_bias)
            return pre_norm_layer(config, weights, ops, attention, mlp)

        super().__init__(config, weights, ops, layer)


def _rotated_layers(config: ModelConfig) -> list[bool]:
    """LoadError for what does not say it of each layer."""
    config.number("no_rope_layer_interval", 4)
    listed = config.raw.get("no_rope_layers")
    if listed is not None and (not isinstance(listed, list) or len(listed) != config.num_layers):
        raise LoadError(f"no_rope_layers in the model's configuration must have {config.num_layers} numbers, one a layer")
    return [rotates(config.raw, layer) for layer in range(config.num_layers)]
