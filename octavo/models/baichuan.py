"""Baichuan 2 (Yang et al., 2023), the 7B models: Llama with one tensor for queries, keys and values, and a head whose rows
have length 1."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import LoadError
from octavo.kernels.ops import Ops
from octavo.layers.attention import Attention, split_qkv
from octavo.layers.decoder import Decoder, PreNormLayer, pre_norm_layer
from octavo.layers.mlp import GatedMLP
from octavo.layers.rotary import Rotary
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights

_HIDDEN_SIZE_13B = 5120
_VOCABULARY_2 = 125696  # by which Baichuan 2 is told from the first one, whose head is as others are


class BaichuanForCausalLM(Decoder):
    """What the files of Baichuan call `BaichuanForCausalLM`, or `BaiChuanForCausalLM` in the first version."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        if config.hidden_size == _HIDDEN_SIZE_13B:
            raise LoadError("Baichuan 13B has ALiBi positions, which are not supported; the 7B models are")
        rotary = Rotary(config)
        if config.vocab_size == _VOCABULARY_2:
            weights.view("lm_head", "lm_head", _unit_rows)

        def layer(weights: Weights, index: int) -> PreNormLayer:
            split_qkv(config, weights.scope("self_attn"), "W_pack")
            attention = Attention(config, weights.scope("self_attn"), ops, index, rotary)
            return pre_norm_layer(config, weights, ops, attention, GatedMLP(config, weights.scope("mlp"), ops))

        super().__init__(config, weights, ops, layer)


class BaiChuanForCausalLM(BaichuanForCausalLM):
    """The same under its other name."""


def _unit_rows(stored: NDArray[Any]) -> NDArray[Any]:
    rows = stored.astype(np.float32)
    lengths = np.sqrt(np.einsum("ij,ij->i", rows, rows))
    normed: NDArray[Any] = (rows / np.maximum(lengths, 1e-12)[:, None]).astype(stored.dtype)
    return normed
