"""GPT-2 (Radford et al., 2019): learned positions, layer norms, an MLP without gates, and matrices stored as [in, out]."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention, split_qkv
from octavo.layers.decoder import Decoder, PreNormLayer
from octavo.layers.embedding import Embedding
from octavo.layers.mlp import MLP
from octavo.layers.norm import LayerNorm
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class GPT2LMHeadModel(Decoder):
    """The family `GPT2LMHeadModel` of Transformers."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        body = "transformer" if weights.has("transformer.wte.weight") else ""  # the first files have no prefix
        for name, stored in (("embed_tokens", "wte"), ("norm", "ln_f"), ("positions", "wpe"), ("layers", "h")):
            weights.view(f"model.{name}", f"{body}.{stored}".lstrip("."))
        shape = config.max_position_embeddings, config.hidden_size
        positions = Embedding(ops.linear_weight([weights.take("model.positions.weight", shape)]), ops)

        def norm(weights: Weights) -> LayerNorm:
            return LayerNorm(weights, ops, config.hidden_size, config.norm_epsilon)

        def layer(weights: Weights, index: int) -> PreNormLayer:
            own, mlp = weights.scope("attn"), weights.scope("mlp")
            for scope, name, stored in ((own, "qkv", "c_attn"), (own, "o_proj", "c_proj"), (mlp, "up_proj", "c_fc")):
                scope.view(name, stored, _transposed)
            mlp.view("down_proj", "c_proj", _transposed)
            split_qkv(config, own, "qkv")
            for buffer in ("bias", "masked_bias"):
                own.ignore(buffer)
            scale = 1.0 if config.raw.get("scale_attn_weights") is False else config.head_dim**-0.5
            if config.flag("scale_attn_by_inverse_layer_idx"):
                scale /= index + 1
            attention = Attention(config, own, ops, index, None, qkv_bias=True, output_bias=True, scale=scale)
            return PreNormLayer(norm(weights.scope("ln_1")), attention, norm(weights.scope("ln_2")), MLP(config, mlp, ops))

        super().__init__(config, weights, ops, layer, norm=norm, positions=positions)


def _transposed(stored: NDArray[Any]) -> NDArray[Any]:
    return np.ascontiguousarray(stored.T)  # of a bias: the bias
