"""BERT (Devlin et al., 2019) and RoBERTa (Liu et al., 2019): post-norm encoders with learned positions."""

from __future__ import annotations

from octavo.errors import LoadError
from octavo.kernels.ops import UNGATED, Array, KVCache, Ops
from octavo.layers.linear import Linear
from octavo.layers.mlp import activation_of
from octavo.layers.norm import LayerNorm
from octavo.models.config import ModelConfig
from octavo.models.registry import ENCODERS
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Weights


class BertEmbeddings:
    """norm(word + type + position): [t, h]. Positions count from the first of their table that is not reserved."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        first_position = ENCODERS[config.architecture].reserved_positions(config.raw)
        hidden, raw = config.hidden_size, config.raw
        positions = first_position + config.max_position_embeddings
        types = 2 if raw.get("type_vocab_size") is None else config.size("type_vocab_size")
        word = weights.take("word_embeddings.weight", (config.vocab_size, hidden))
        position = weights.take("position_embeddings.weight", (positions, hidden))
        token_type = weights.take("token_type_embeddings.weight", (types, hidden))
        self._word, self._position, self._type = (
            ops.linear_weight([part]) for part in (word, position[first_position:], token_type)
        )
        self._norm = LayerNorm(weights.scope("LayerNorm"), ops, hidden, config.number("layer_norm_eps", 1e-12))
        self._ops = ops

    def __call__(self, batch: Batch) -> Array:
        """Of the batch's ids, positions and types."""
        assert batch.token_types is not None
        x = self._ops.embedding(batch.token_ids, self._word)
        x = self._ops.embedding(batch.token_types, self._type, residual=x)
        return self._norm(self._ops.embedding(batch.positions, self._position, residual=x))


class BertLayer:
    """norm(x + attention(x)), then norm(x + mlp(x))."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        hidden, inner, epsilon = config.hidden_size, config.intermediate_size, config.number("layer_norm_eps", 1e-12)
        own, out = weights.scope("attention.self"), weights.scope("attention.output")
        self._qkv = Linear(own, ops, hidden, {"query": hidden, "key": hidden, "value": hidden}, bias=True)
        self._mixed = Linear(out, ops, hidden, {"dense": hidden}, bias=True)
        self._attention_norm = LayerNorm(out.scope("LayerNorm"), ops, hidden, epsilon)
        function = UNGATED + activation_of(config, "gelu")
        self._up = Linear(weights.scope("intermediate"), ops, hidden, {"dense": inner}, bias=True, activation=function)
        self._down = Linear(weights.scope("output"), ops, inner, {"dense": hidden}, bias=True)
        self._norm = LayerNorm(weights.scope("output.LayerNorm"), ops, hidden, epsilon)
        self._heads = config.qkv_heads
        self._scale = config.head_dim**-0.5
        self._ops = ops

    def __call__(self, x: Array, batch: Batch, cache: KVCache) -> Array:
        """[t, h] -> [t, h]. Keys and values go through the cache's one layer, which the next layer overwrites."""
        qkv = self._qkv(x)
        self._ops.write_cache(qkv, cache, 0, batch, self._heads)
        mixed = self._ops.attention(qkv, cache, 0, batch, self._heads, self._scale, causal=False)
        x = self._attention_norm(self._mixed(mixed, x))
        return self._norm(self._down(self._up(x), x))


class BertModel:
    """The encoder alone; its own pooler, which embeddings do not use, is left out."""

    prefix = "bert"

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        _check(config)
        self.config = config
        body = weights.scope(self.prefix) if weights.has(f"{self.prefix}.embeddings.word_embeddings.weight") else weights
        self._embeddings = BertEmbeddings(config, body.scope("embeddings"), ops)
        self._layers = [BertLayer(config, body.scope(f"encoder.layer.{i}"), ops) for i in range(config.num_layers)]
        self._ops = ops
        self._take_head(weights, body)

    def forward(self, batch: Batch, cache: KVCache) -> Array:
        """Final hidden states [r, h] of `batch.logits_rows`. Every sequence must be in the batch as a whole."""
        x = self._embeddings(batch)
        for layer in self._layers:
            x = layer(x, batch, cache)
        return self._ops.select_rows(x, batch.logits_rows)

    def logits(self, hidden: Array) -> Array:
        """There is no head."""
        raise NotImplementedError("an encoder without a head has no logits")

    def _take_head(self, weights: Weights, body: Weights) -> None:
        for name in ("pooler.dense.weight", "pooler.dense.bias"):
            body.ignore(name)


class BertForSequenceClassification(BertModel):
    """classifier(tanh(pooler(x))) of the first token."""

    def _take_head(self, weights: Weights, body: Weights) -> None:
        hidden = self.config.hidden_size
        self._dense = Linear(body.scope("pooler"), self._ops, hidden, {"dense": hidden}, bias=True)
        self._classifier = Linear(weights, self._ops, hidden, {"classifier": self.config.num_labels}, bias=True)

    def logits(self, hidden: Array) -> Array:
        """[r, h] -> [r, labels]."""
        return self._classifier(self._ops.soft_cap(self._dense(hidden), 1.0))


class RobertaModel(BertModel):
    """BERT whose positions begin behind the padding token's."""

    prefix = "roberta"


class RobertaForSequenceClassification(RobertaModel):
    """out_proj(tanh(dense(x))) of the first token."""

    def _take_head(self, weights: Weights, body: Weights) -> None:
        hidden, head = self.config.hidden_size, weights.scope("classifier")
        self._dense = Linear(head, self._ops, hidden, {"dense": hidden}, bias=True)
        self._classifier = Linear(head, self._ops, hidden, {"out_proj": self.config.num_labels}, bias=True)

    def logits(self, hidden: Array) -> Array:
        """[r, h] -> [r, labels]."""
        return self._classifier(self._ops.soft_cap(self._dense(hidden), 1.0))


class XLMRobertaModel(RobertaModel):
    """RoBERTa in many languages (Conneau et al., 2020)."""


class XLMRobertaForSequenceClassification(RobertaForSequenceClassification):
    """The same with a classifier."""


def _check(config: ModelConfig) -> None:
    """LoadError for variants that there are not here."""
    raw = config.raw
    if raw.get("position_embedding_type", "absolute") != "absolute" or raw.get("is_decoder"):
        raise LoadError("encoders with relative positions, and encoders used as decoders, are not supported")
