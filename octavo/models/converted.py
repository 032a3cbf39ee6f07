"""Pooling models made of generative ones: their layers, and in place of the head over the vocabulary none or a small one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.kernels.ops import Array, KVCache, Ops
from octavo.layers.linear import Linear
from octavo.models.config import ModelConfig
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Checkpoint, StoredProjection, Weights

_PREFIX = "model."
_HEADS = ("lm_head.", "score.")


class BodyCheckpoint:
    """The same checkpoint without `lm_head`, its layers under `model.` whether or not the file has that before their
    names: embedding models are stored in both ways. A head of the file's own (`score`) keeps its name."""

    def __init__(self, checkpoint: Checkpoint, architecture: str) -> None:
        """`architecture`: the generative one that has these layers."""
        self._checkpoint = checkpoint
        self.path: Path = checkpoint.path
        self.hf_config: dict[str, Any] = {
            **checkpoint.hf_config,
            "architectures": [architecture],
            "tie_word_embeddings": True,
        }
        self.generation_config: dict[str, Any] = checkpoint.generation_config
        names = [name for name in checkpoint.shapes() if not name.startswith("lm_head.")]
        self._is_bare = not {"embed_tokens.weight", "tok_embeddings.weight"}.isdisjoint(names)
        self._stored = {self._shown(name): name for name in names}

    @property
    def dtype(self) -> str:
        """See `Checkpoint`."""
        return self._checkpoint.dtype

    @property
    def quantization_method(self) -> str | None:
        """See `Checkpoint`."""
        return self._checkpoint.quantization_method

    def release(self, names: Iterable[str]) -> None:
        """See `Checkpoint`."""
        self._checkpoint.release([self._stored[name] for name in names])

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """See `Checkpoint`."""
        shapes = self._checkpoint.shapes()
        return {name: shapes[stored] for name, stored in self._stored.items()}

    def nbytes(self, name: str) -> int:
        """See `Checkpoint`."""
        return self._checkpoint.nbytes(self._stored[name])

    def read(self, name: str, dtype: np.dtype[Any], ops: Ops) -> NDArray[Any]:
        """See `Checkpoint`."""
        return self._checkpoint.read(self._stored[name], dtype, ops)

    def projection(self, name: str) -> StoredProjection | None:
        """See `Checkpoint`."""
        found = self._checkpoint.projection(name.removeprefix(_PREFIX) if self._is_bare else name)
        return None if found is None else replace(found, names=tuple(map(self._shown, found.names)))

    def _shown(self, stored: str) -> str:
        return _PREFIX + stored if self._is_bare and not stored.startswith(_HEADS) else stored


class Classifier:
    """A generative model's layers with the head `score` of Transformers' ...ForSequenceClassification."""

    def __init__(self, body: Any, config: ModelConfig, weights: Weights, ops: Ops) -> None:
        """`body`: a `Model`."""
        self.config = config
        self._body = body
        self._head = Linear(weights, ops, config.hidden_size, {"score": config.num_labels})

    def forward(self, batch: Batch, cache: KVCache) -> Array:
        """See `Model`."""
        hidden: Array = self._body.forward(batch, cache)
        return hidden

    def logits(self, hidden: Array) -> Array:
        """[r, h] -> [r, labels]."""
        return self._head(hidden)
