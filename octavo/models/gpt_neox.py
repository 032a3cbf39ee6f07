"""GPT-NeoX (Black et al., 2022), the family of Pythia: attention and MLP in parallel, layer norms, a rotation of a quarter
of each head, and one tensor in which each head has its query, key and value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, ParallelLayer, PreNormLayer
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class GPTNeoXForCausalLM(Decoder):
    """The family `GPTNeoXForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary, bias = Rotary(config), config.flag("attention_bias")
        kind = ParallelLayer if config.flag("use_parallel_residual", True) else PreNormLayer
        weights.view("model", "gpt_neox")
        weights.view("model.embed_tokens", "gpt_neox.embed_in")
        weights.view("model.norm", "gpt_neox.final_layer_norm")
        if weights.has("embed_out.weight"):  # the name in Pythia's files; newer ones have the usual one
            weights.view("lm_head", "embed_out")

        def norm(weights: Weights) -> LayerNorm:
            return LayerNorm(weights, ops, config.hidden_size, config.norm_epsilon)

        def layer(weights: Weights, index: int) -> ParallelLayer | PreNormLayer:
            for i, name in enumerate(("q_proj", "k_proj", "v_proj")):
                weights.view(f"attention.{name}", "attention.query_key_value", _part(i, config))
            weights.view("attention.o_proj", "attention.dense")
            weights.view("mlp.up_proj", "mlp.dense_h_to_4h")
            weights.view("mlp.down_proj", "mlp.dense_4h_to_h")
            for buffer in ("bias", "masked_bias", "rotary_emb.inv_freq"):
                weights.ignore(f"attention.{buffer}")
            own = weights.scope("attention")
            attention = Attention(config, own, ops, index, rotary, qkv_bias=bias, output_bias=bias)
            first, second = norm(weights.scope("input_layernorm")), norm(weights.scope("post_attention_layernorm"))
            return kind(first, attention, second, MLP(config, weights.scope("mlp"), ops))

        super().__init__(config, weights, ops, layer, norm=norm)


def _part(index: int, config: ModelConfig) -> Callable[[NDArray[Any]], NDArray[Any]]:
    """The rows [heads, 3, d, ..] of one of query, key and value."""

    def rows(stored: NDArray[Any]) -> NDArray[Any]:
        heads = stored.reshape(config.num_heads, 3, config.head_dim, *stored.shape[1:])
        return heads[:, index].reshape(-1, *stored.shape[1:])

    return rows
