"""What --quantization and the options beside it make of a model: which weights are rounded, and how."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.config import EngineConfig
from octavo.kernels.numpy.ops import NumpyOps
from octavo.kernels.ops import Handle, Quantization
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.weights.checkpoint import Weights
from octavo.weights.loader import weights_quantization
from tests.models.tiny import tiny_checkpoint, tiny_config


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"quantization": "none", "quantization_activations": "int8"}, None),
        ({"quantization": "int8"}, Quantization(8)),
        ({"quantization": "int8", "quantization_activations": "int8"}, Quantization(8, activation_bits=8)),
        ({"quantization": "int4"}, Quantization(4, 32, 8)),
        ({"quantization": "int4", "quantization_group_size": 64}, Quantization(4, 64, 8)),
        ({"quantization": "int4", "quantization_activations": "int16"}, Quantization(4, 32)),
        ({"quantization": "int4", "quantization_group_size": 128}, Quantization(4, 128, 8)),
        ({"quantization": "fp8"}, Quantization(8, is_float=True)),
    ],
)
def test_options(options: dict[str, Any], expected: Quantization | None) -> None:
    assert weights_quantization(EngineConfig(**options), tiny_checkpoint(tiny_config())) == expected


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_keeps_8_bits_and_an_embedding_of_its_own_all(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(tie_word_embeddings=tied)
    checkpoint, ops = tiny_checkpoint(config), NumpyOps()
    rounded: list[tuple[int, Quantization | None]] = []
    original = ops.linear_weight

    def watched(parts: Any, biases: Any = None, **options: Any) -> Handle:
        rounded.append((sum(map(len, parts)), options.get("quantization")))
        return original(parts, biases, **options)

    monkeypatch.setattr(ops, "linear_weight", watched)
    int4, int8 = Quantization(4, 32, 8), Quantization(8, 0, 8)
    weights = Weights(checkpoint, np.dtype(ml_dtypes.bfloat16), ops, quantization=int4)
    build_model(read_model_config(checkpoint), weights, ops)
    vocabulary = config["vocab_size"]
    assert [kind for outputs, kind in rounded if outputs == vocabulary] == ([int8] if tied else [None, int8])
    assert {kind for outputs, kind in rounded if outputs != vocabulary} == {int4}
