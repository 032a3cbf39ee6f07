"""The two ends of a decoder: token ids to vectors, vectors to logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.ops import Array, Handle, Ops
from octavo.models.config import ModelConfig
from octavo.weights.checkpoint import Weights


class Embedding:
    """Ids [t], of tokens or positions -> vectors [t, h], times `scale`."""

    def __init__(self, weight: Handle, ops: Ops, scale: float = 1.0) -> None:
        self._weight = weight
        self._scale = scale
        self._ops = ops

    def __call__(self, ids: NDArray[np.int32], residual: Array | None = None) -> Array:
        """With `residual` [t, h], added into it in place."""
        return self._ops.embedding(ids, self._weight, scale=self._scale, residual=residual)


class Head:
    """Vectors [r, h] -> logits [r, vocabulary]."""

    def __init__(self, weight: Handle, ops: Ops) -> None:
        self._weight = weight
        self._ops = ops

    def __call__(self, hidden: Array) -> Array:
        return self._ops.linear(hidden, self._weight)


def embedding_and_head(
    config: ModelConfig, weights: Weights, ops: Ops, *, scale: float = 1.0, width: int | None = None
) -> tuple[Embedding, Head]:
    """`model.embed_tokens` and `lm_head`: one weight when the configuration ties them (Press and Wolf, 2017). `scale`: of
    the embeddings. `width`: in place of the configuration's hidden_size."""
    shape = config.vocab_size, width or config.hidden_size
    quantization = None if weights.quantization is None else weights.quantization.of_head
    if config.tie_word_embeddings:
        weights.tie("model.embed_tokens.weight", "lm_head.weight")
        matrix, _ = weights.take_projection("model.embed_tokens", shape)
        shared = ops.linear_weight([matrix], quantization=quantization)
        return Embedding(shared, ops, scale), Head(shared, ops)
    matrix, _ = weights.take_projection("model.embed_tokens", shape)
    embedding = ops.linear_weight([matrix])
    matrix, bias = weights.take_projection("lm_head", shape)
    head = ops.linear_weight([matrix], None if bias is None else [bias], quantization=quantization)
    return Embedding(embedding, ops, scale), Head(head, ops)
