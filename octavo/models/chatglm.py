"""ChatGLM3 and the first files of GLM-4 (GLM et al., 2024): GLM-4 under names of its own, with one tensor for queries, keys
and values."""

from __future__ import annotations

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention, split_qkv
from octavo.layers.decoder import Decoder, PreNormLayer, pre_norm_layer
from octavo.layers.mlp import GatedMLP, split_gate_up
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class ChatGLMModel(Decoder):
    """What the files of THUDM call `ChatGLMModel`, or `ChatGLMForConditionalGeneration`."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        rotary = Rotary(config, config.rope | {"rope_theta": 10000.0 * config.number("rope_ratio", 1.0)})
        bias = config.flag("add_bias_linear")
        qkv_bias = bias or config.flag("add_qkv_bias")
        weights.view("model", "transformer.encoder")
        weights.view("model.embed_tokens", "transformer.embedding.word_embeddings")
        weights.view("model.norm", "transformer.encoder.final_layernorm")
        weights.view("lm_head", "transformer.output_layer")
        weights.ignore("transformer.rotary_pos_emb.inv_freq")

        def layer(weights: Weights, index: int) -> PreNormLayer:
            weights.view("self_attn.o_proj", "self_attention.dense")
            weights.view("mlp.down_proj", "mlp.dense_4h_to_h")
            weights.view("self_attn", "self_attention")
            split_qkv(config, weights.scope("self_attn"), "query_key_value")
            split_gate_up(config, weights.scope("mlp"), "dense_h_to_4h")
            own = weights.scope("self_attn")
            attention = Attention(config, own, ops, index, rotary, qkv_bias=qkv_bias, output_bias=bias, interleaved=True)
            mlp = GatedMLP(config, weights.scope("mlp"), ops, bias=bias)
            return pre_norm_layer(config, weights, ops, attention, mlp)

        super().__init__(config, weights, ops, layer)


class ChatGLMForConditionalGeneration(ChatGLMModel):
    """The same under its other name."""
