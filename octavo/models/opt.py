"""OPT (Zhang et al., 2022): learned positions, layer norms, and an MLP of ReLUs."""

from __future__ import annotations

from octavo.errors import LoadError
from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, PreNormLayer
from octavo.layers.embedding import Embedding
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights

_FIRST_POSITION = 2  # the rows before it were meant for padding


class OPTForCausalLM(Decoder):
    """The family `OPTForCausalLM` of Transformers, but for the one model of it with norms behind the layers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        if not config.flag("do_layer_norm_before", True):
            raise LoadError("do_layer_norm_before false (OPT 350m) is not supported; the other sizes of OPT are")
        if config.raw.get("word_embed_proj_dim", config.hidden_size) != config.hidden_size:
            raise LoadError("a word_embed_proj_dim other than hidden_size is not supported")
        bias = config.flag("enable_bias", True)
        weights.view("model", "model.decoder" if weights.has("model.decoder.embed_tokens.weight") else "decoder")
        weights.view("model.norm", "model.final_layer_norm")
        shape = config.max_position_embeddings + _FIRST_POSITION, config.hidden_size
        table = weights.take("model.embed_positions.weight", shape)[_FIRST_POSITION:]
        positions = Embedding(ops.linear_weight([table]), ops)

        def norm(weights: Weights) -> LayerNorm:
            return LayerNorm(weights, ops, config.hidden_size, config.norm_epsilon)

        def layer(weights: Weights, index: int) -> PreNormLayer:
            weights.view("self_attn.o_proj", "self_attn.out_proj")
            weights.view("up_proj", "fc1")
            weights.view("down_proj", "fc2")
            own = weights.scope("self_attn")
            attention = Attention(config, own, ops, index, None, qkv_bias=bias, output_bias=bias)
            first, second = norm(weights.scope("self_attn_layer_norm")), norm(weights.scope("final_layer_norm"))
            return PreNormLayer(first, attention, second, MLP(config, weights, ops, bias=bias))

        super().__init__(config, weights, ops, layer, norm=norm, positions=positions)
