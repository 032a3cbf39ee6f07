"""InternLM2 (Cai et al., 2024): Llama under names of its own, with one tensor in which KV heads follow their queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, PreNormLayer, pre_norm_layer
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights

_NAMES = {
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
}


class InternLM2ForCausalLM(Decoder):
    """What the files of InternLM call `InternLM2ForCausalLM`."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, bias = Rotary(config), config.flag("bias")
        weights.view("model.embed_tokens", "model.tok_embeddings")
        weights.view("lm_head", "output")

        def layer(weights: Weights, index: int) -> PreNormLayer:
            for name, stored in _NAMES.items():
                weights.view(name, stored)
            queries = config.num_heads // config.num_kv_heads
            for name, part in (("q", slice(queries)), ("k", slice(queries, queries + 1)), ("v", slice(queries + 1, None))):
                weights.view(f"self_attn.{name}_proj", "attention.wqkv", _heads(part, config))
            own = weights.scope("self_attn")
            attention = Attention(config, own, ops, index, rotary, qkv_bias=bias, output_bias=bias)
            mlp = GatedMLP(config, weights.scope("mlp"), ops)
            return pre_norm_layer(config, weights, ops, attention, mlp)

        super().__init__(config, weights, ops, layer)


def _heads(part: slice, config: ModelConfig) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """Some of the rows [KV heads, its queries + 2, d, ..]."""

    def rows(stored: NDArray[Any]) -> NDArray[Any]:
        groups = stored.reshape(config.num_kv_heads, -1, config.head_dim, *stored.shape[1:])
        return groups[:, part].reshape(-1, *stored.shape[1:])

    return rows
