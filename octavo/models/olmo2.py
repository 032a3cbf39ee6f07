"""OLMo 2 (OLMo et al., 2024): Llama with norms behind attention and MLP, and norms of all queries and keys of a token."""

from __future__ import annotations

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, PostNormLayer
from octavo.layers.mlp import GatedMLP
from octavo.layers.norm import RMSNorm
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class Olmo2ForCausalLM(Decoder):
    """The family `Olmo2ForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, bias = Rotary(config), config.flag("attention_bias")
        n, k, d = config.qkv_heads

        def norm(weights: Weights, size: int) -> RMSNorm:
            return RMSNorm(weights, ops, size, config.norm_epsilon)

        def layer(weights: Weights, index: int) -> PostNormLayer:
            own = weights.scope("self_attn")
            norms = norm(own.scope("q_norm"), n * d), norm(own.scope("k_norm"), k * d)
            attention = Attention(config, own, ops, index, rotary, qkv_bias=bias, output_bias=bias, norms=norms)
            mlp = GatedMLP(config, weights.scope("mlp"), ops)
            behind_attention, behind_mlp = (
                norm(weights.scope(f"post_{part}_layernorm"), config.hidden_size) for part in ("attention", "feedforward")
            )
            return PostNormLayer(attention, behind_attention, mlp, behind_mlp)

        super().__init__(config, weights, ops, layer)
