"""OPT (Zhang et al., 2022): learned positions, layer norms, and an MLP of ReLUs; the one of 350m has its norms behind
attention and MLP, and embeddings of another size."""

from __future__ import annotations

from octavo.kernels.ops import Array, KVCache, Ops
from octavo.layers.attention import Attention
from octavo.layers.decoder import Decoder, Layer, PreNormLayer
from octavo.layers.embedding import Embedding
from octavo.layers.linear import Linear
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm, Norm, no_norm
from octavo.models.config import ModelConfig
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Weights

_FIRST_POSITION = 2  # the rows before it were meant for padding


class OPTForCausalLM(Decoder):
    """The family `OPTForCausalLM` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        bias, norms_first = config.flag("enable_bias", True), config.flag("do_layer_norm_before", True)
        weights.view("model", "model.decoder" if weights.has("model.decoder.embed_tokens.weight") else "decoder")
        weights.view("model.norm", "model.final_layer_norm")
        shape = config.max_position_embeddings + _FIRST_POSITION, config.hidden_size
        table = weights.take("model.embed_positions.weight", shape)[_FIRST_POSITION:]

        def norm(weights: Weights) -> LayerNorm:
            return LayerNorm(weights, ops, config.hidden_size, config.norm_epsilon)

        def last_norm(weights: Weights) -> Norm:
            has_one = norms_first and not config.flag("_remove_final_layer_norm")
            return norm(weights) if has_one else no_norm

        def layer(weights: Weights, index: int) -> Layer:
            weights.view("self_attn.o_proj", "self_attn.out_proj")
            weights.view("up_proj", "fc1")
            weights.view("down_proj", "fc2")
            own = weights.scope("self_attn")
            attention = Attention(config, own, ops, index, None, qkv_bias=bias, output_bias=bias)
            first, second = norm(weights.scope("self_attn_layer_norm")), norm(weights.scope("final_layer_norm"))
            kind = PreNormLayer if norms_first else _NormsBehind
            return kind(first, attention, second, MLP(config, weights, ops, bias=bias))

        super().__init__(
            config,
            weights,
            ops,
            layer,
            norm=last_norm,
            positions=Embedding(ops.linear_weight([table]), ops),
            ends=_ends(config, weights.scope("model"), ops),
        )


class _NormsBehind:
    """norm(x + attention(x)), then norm(x + mlp(x))."""

    def __init__(self, attention_norm: LayerNorm, attention: Attention, mlp_norm: LayerNorm, mlp: MLP) -> None:
        self._attention_norm, self._attention = attention_norm, attention
        self._mlp_norm, self._mlp = mlp_norm, mlp

    def __call__(self, x: Array, batch: Batch, cache: KVCache) -> None:
        self._attention(x, batch, cache, residual=x)
        self._attention_norm.in_place(x)
        self._mlp(x, residual=x)
        self._mlp_norm.in_place(x)


def _ends(config: ModelConfig, weights: Weights, ops: Ops) -> tuple[Linear, Linear] | None:
    hidden, width = config.hidden_size, config.output_size
    if width == hidden:
        return None
    return Linear(weights, ops, width, {"project_in": hidden}), Linear(weights, ops, hidden, {"project_out": width})
