"""What a model is said to take is what it takes when it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import psutil
import pytest

from octavo.errors import LoadError
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.numpy.ops import NumpyOps
from octavo.kernels.ops import Ops, Quantization
from octavo.models.config import read_model_config
from octavo.models.registry import build_model
from octavo.models.sizes import activation_bytes, block_bytes, weights_bytes
from octavo.offline.memory import release_freed_memory
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Checkpoint, Weights
from tests.golden.derive_families import SEED, load
from tests.models.backends import BACKENDS
from tests.models.families import FAMILIES
from tests.models.tiny import VARIANTS, TinyCheckpoint, tiny_checkpoint, tiny_config

SHAPES = {name: values["shapes"] for name, values in load().items()}
DTYPES = [np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)]


def loaded_bytes(
    checkpoint: Checkpoint,
    dtype: np.dtype[Any],
    ops: Ops,
    quantization: Quantization | None,
    monkeypatch: pytest.MonkeyPatch,
) -> int:
    """The sum over everything that a load keeps."""
    kept: list[int] = []

    def watch(name: str, size: Callable[[Any], int]) -> None:
        original = getattr(ops, name)

        def watched(*arguments: Any, **options: Any) -> Any:
            handle = original(*arguments, **options)
            kept.append(size(handle) + (4 * sum(map(len, arguments[1])) if arguments[1:] and arguments[1] else 0))
            return handle

        monkeypatch.setattr(ops, name, watched)

    watch(
        "linear_weight",
        lambda handle: handle.nbytes if ops.name == "cpu" else sum(piece.matrix.nbytes for piece in handle.pieces),
    )
    watch("vector_weight", lambda vector: vector.nbytes)
    build_model(read_model_config(checkpoint), Weights(checkpoint, dtype, ops, quantization=quantization), ops)
    return sum(kept)


@pytest.mark.parametrize("quantization", [None, Quantization(8), Quantization(4, 32)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_weights(
    backend: str,
    variant: str,
    dtype: np.dtype[Any],
    quantization: Quantization | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Odd sizes, of which the native backend fills up the panels."""
    checkpoint = tiny_checkpoint(tiny_config(**VARIANTS[variant], vocab_size=161))
    ops = BACKENDS[backend]()
    counted = weights_bytes(read_model_config(checkpoint), checkpoint, dtype, ops, quantization)
    assert counted == loaded_bytes(checkpoint, dtype, ops, quantization, monkeypatch)


@pytest.mark.parametrize("quantization", [None, Quantization(8)], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_weights_of_every_family(name: str, quantization: Quantization | None, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint, ops = FAMILIES[name].checkpoint(SHAPES[name], SEED), CpuOps(1)
    counted = weights_bytes(read_model_config(checkpoint), checkpoint, DTYPES[1], ops, quantization)
    assert counted == loaded_bytes(checkpoint, DTYPES[1], ops, quantization, monkeypatch)


class Unreadable(TinyCheckpoint):
    """Its tensors have names and shapes, and that is all."""

    def read(self, name: str, dtype: np.dtype[Any], ops: Ops) -> Any:
        raise AssertionError(f"{name} is read")


@pytest.mark.parametrize("stored_head", [True, False])
def test_nothing_is_read_and_what_is_missing_is_told(stored_head: bool) -> None:
    config = tiny_config(tie_word_embeddings=True)
    tensors = tiny_checkpoint(config).tensors
    if stored_head:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    ops, float32 = NumpyOps(), np.dtype(np.float32)
    checkpoint = Unreadable(config, tensors)
    model = read_model_config(checkpoint)
    assert weights_bytes(model, checkpoint, float32, ops) == sum(
        tensor.nbytes for name, tensor in tensors.items() if name != "lm_head.weight"
    )
    del tensors["model.norm.weight"]
    with pytest.raises(LoadError, match=r"has no tensor model\.norm\.weight"):
        weights_bytes(model, checkpoint, float32, ops)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [2, 14, 16, 20, 64, 80])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_block_is_a_share_of_the_cache(backend: str, head_dim: int, dtype: np.dtype[Any]) -> None:
    model = read_model_config(tiny_checkpoint(tiny_config(head_dim=head_dim)))
    ops = BACKENDS[backend]()
    with_values = ops.kv_cache(model.num_layers, 7, 32, model.num_kv_heads, head_dim, dtype)
    size = block_bytes(model, 32, dtype, ops)
    assert 7 * size == with_values.nbytes
    plain = 2 * model.num_layers * model.num_kv_heads * head_dim * 32 * dtype.itemsize
    assert size > plain if backend == "cpu" and head_dim % 16 else size == plain


def test_asking_keeps_nothing() -> None:
    """Neither memory nor address space."""
    ops = CpuOps(1)
    before = psutil.Process().memory_info()
    sizes = {ops.weight_bytes([np.broadcast_to(np.zeros((), DTYPES[1]), (64_000, 8_000))]) for _ in range(20)}
    after = psutil.Process().memory_info()
    assert sizes == {64_000 * 8_000 * 2}
    assert after.vms - before.vms < 1 << 30
    assert after.rss - before.rss < 1 << 26


def test_activations_grow_with_tokens_and_logits_up_to_their_limit() -> None:
    model = read_model_config(tiny_checkpoint(tiny_config()))
    per_token = 5 * (4 * 64 + (2 * 4 + 2 * 2) * 16 + 3 * 112)
    assert activation_bytes(model, 10, 1 << 30) == 10 * per_token + 10 * 160 * 4
    assert activation_bytes(model, 10, 1000) == 10 * per_token + 2 * 1000


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_released_cache_takes_no_memory_until_it_is_written_again(backend: str) -> None:
    """64 MiB: 2 layers, 2 heads of 64, 32,768 tokens in float32."""
    ops, heads, tokens = BACKENDS[backend](), (2, 2, 64), 1 << 15
    cache = ops.kv_cache(2, tokens // 16, 16, 2, 64, DTYPES[0])
    nothing, everywhere = np.zeros(0, np.int32), np.arange(tokens, dtype=np.int64)
    slots = Batch(nothing, nothing, everywhere, nothing, nothing, nothing.reshape(0, 0), nothing)
    rows = np.ones((tokens, 6 * 64), np.float32)

    def fill() -> int:
        for layer in range(2):
            ops.write_cache(rows, cache, layer, slots, heads)
        return resident()

    sizes = []
    for _ in range(3):
        sizes.append(fill())
        cache.release()
        sizes.append(resident())
    assert min(sizes[::2]) - max(sizes[1::2]) > 60 << 20
    assert max(sizes[1::2]) - min(sizes[1::2]) < 8 << 20
    assert cache.nbytes == 2 * 2 * 2 * 64 * tokens * 4


def resident() -> int:
    """Bytes of this process, without memory that it has freed and not given back."""
    release_freed_memory()
    return int(psutil.Process().memory_info().rss)
