"""`Weights`: scopes, strictness, tied tensors, progress."""

from __future__ import annotations

import logging
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.errors import LoadError
from octavo.kernels.numpy.ops import NumpyOps
from octavo.kernels.ops import Quantization
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.weights.checkpoint import Weights
from tests.models.tiny import TinyCheckpoint, tiny_checkpoint, tiny_config

OPS = NumpyOps()
FLOAT32 = np.dtype(np.float32)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def weights_of(progress: Any = None, **tensors: np.ndarray[Any, Any]) -> Weights:
    return Weights(
        TinyCheckpoint({}, {name.replace("_", "."): tensor for name, tensor in tensors.items()}), FLOAT32, OPS, progress
    )


def test_scopes_prefix_names_and_share_what_is_taken() -> None:
    weights = weights_of(a_b_c=np.ones((2, 3), np.float32), a_d=np.zeros(1, np.float32))
    inner = weights.scope("a").scope("b")
    assert inner.take("c", (2, 3)).shape == (2, 3)
    with pytest.raises(LoadError, match=r"does not use tensor a\.d$"):
        weights.finish()
    assert weights.scope("a").take("d", (1,)).shape == (1,)
    weights.finish()


def test_errors_name_the_whole_name_and_both_shapes() -> None:
    weights = weights_of(a_b=np.ones((2, 3), np.float32)).scope("a")
    with pytest.raises(LoadError, match=r"^tiny has no tensor a\.x, which this architecture needs$"):
        weights.take("x", (1,))
    with pytest.raises(LoadError, match=r"tensor a\.b has shape \[2, 3\], but the configuration needs \[3, 2\]"):
        weights.take("b", (3, 2))


def test_many_leftovers_are_counted() -> None:
    weights = weights_of(**{f"x_{i}": np.ones(1, np.float32) for i in range(6)})
    with pytest.raises(LoadError, match=r"does not use tensors x\.0, x\.1, x\.2 and 3 more$"):
        weights.finish()


def test_progress_counts_every_byte_of_the_file_once() -> None:
    seen: list[tuple[int, int]] = []
    weights = weights_of(lambda done, total: seen.append((done, total)), a=np.ones(4, np.float32), b=np.ones(6, np.float32))
    weights.take("a", (4,))
    weights.take("a", (4,))
    weights.take("b", (6,))
    weights.finish()
    assert seen == [(16, 40), (40, 40)]


def test_the_dtype_is_converted() -> None:
    checkpoint = TinyCheckpoint({}, {"a": np.array([1.001], np.float32)})
    taken = Weights(checkpoint, np.dtype(ml_dtypes.bfloat16), OPS).take("a", (1,))
    assert taken.dtype == ml_dtypes.bfloat16


def tied_checkpoint() -> TinyCheckpoint:
    return tiny_checkpoint(tiny_config(tie_word_embeddings=True))


def logits(checkpoint: TinyCheckpoint) -> np.ndarray[Any, Any]:
    model = build_model(read_model_config(checkpoint), Weights(checkpoint, FLOAT32, OPS), OPS)
    return model.logits(np.eye(1, 64, dtype=np.float32))


def test_a_tied_head_may_be_stored_under_either_name_or_both(caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = tied_checkpoint()
    expected = logits(checkpoint)
    checkpoint.tensors[HEAD] = checkpoint.tensors[EMBEDDING].copy()
    np.testing.assert_array_equal(logits(checkpoint), expected)
    del checkpoint.tensors[EMBEDDING]
    np.testing.assert_array_equal(logits(checkpoint), expected)
    assert caplog.records == []


def test_a_tied_head_that_differs_is_not_used_and_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = tied_checkpoint()
    expected = logits(checkpoint)
    with caplog.at_level(logging.WARNING):
        for other in (checkpoint.tensors[EMBEDDING] + 1, np.ones((3, 3), np.float32)):
            checkpoint.tensors[HEAD] = other
            np.testing.assert_array_equal(logits(checkpoint), expected)
    assert [record.getMessage() for record in caplog.records] == [
        f"tiny: {HEAD} is stored but tied to {EMBEDDING}, and differs from it; it is not used"
    ] * 2


def test_an_untied_head_must_be_stored() -> None:
    checkpoint = tied_checkpoint()
    checkpoint.hf_config["tie_word_embeddings"] = False
    with pytest.raises(LoadError, match=r"has no tensor lm_head\.weight"):
        logits(checkpoint)


def test_an_unknown_architecture_is_named() -> None:
    checkpoint = tiny_checkpoint(tiny_config())
    checkpoint.hf_config["architectures"] = ["FooForCausalLM"]
    with pytest.raises(LoadError, match=r"architecture 'FooForCausalLM' is not supported; supported: .*, LlamaForCausalLM"):
        logits(checkpoint)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_a_matrix_that_is_not_finite_is_not_rounded(dtype: Any, value: float) -> None:
    """NaN would become some integer, and nobody would ever know."""
    matrix = np.full((1000, 301), 1.5, dtype)
    weights = Weights(TinyCheckpoint({}, {"a.weight": matrix}), np.dtype(dtype), OPS, quantization=Quantization(8))
    assert weights.take_projection("a", matrix.shape)[0] is matrix
    matrix[999, 300] = value
    with pytest.raises(LoadError, match=r"^tiny: tensor a\.weight holds numbers that are not finite in (b?float16|float32)"):
        weights.take_projection("a", matrix.shape)
