"""The reference backend against the formulas, written out one number at a time in float64."""

from __future__ import annotations

import math

import gguf
import ml_dtypes
import numpy as np
import pytest

from octavo.kernels.numpy.activations import activate
from octavo.kernels.numpy.ops import NumpyOps
from octavo.runner.batch import Batch
from tests.kernels.paged import rotate

OPS = NumpyOps()


def random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def batch_of(lengths: list[tuple[int, int]], tables: list[list[int]], block_size: int) -> Batch:
    """Sequences of (tokens already cached, new tokens), each with its block table."""
    positions = [np.arange(done, done + new) for done, new in lengths]
    slots = [
        np.array(table)[p // block_size] * block_size + p % block_size for p, table in zip(positions, tables, strict=True)
    ]
    width = max(map(len, tables))
    return Batch(
        token_ids=np.zeros(sum(new for _, new in lengths), np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slot_mapping=np.concatenate(slots).astype(np.int64),
        query_starts=np.cumsum([0] + [new for _, new in lengths]).astype(np.int32),
        seq_lens=np.array([done + new for done, new in lengths], np.int32),
        block_tables=np.array([table + [0] * (width - len(table)) for table in tables], np.int32),
        logits_rows=np.zeros(0, np.int32),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_linear(dtype: type) -> None:
    x, parts, biases = random(3, 8), [random(4, 8, seed=1), random(2, 8, seed=2)], [random(4, seed=3), random(2, seed=4)]
    parts, biases = [p.astype(dtype) for p in parts], [b.astype(dtype) for b in biases]
    matrix, bias = np.concatenate(parts).astype(np.float64), np.concatenate(biases).astype(np.float64)
    weight = OPS.linear_weight(parts, biases)
    np.testing.assert_allclose(OPS.linear(x, weight), x @ matrix.T + bias, atol=1e-5)
    residual = random(3, 6, seed=5)
    expected = residual + x @ matrix.T + bias
    assert OPS.linear(x, weight, residual) is residual
    np.testing.assert_allclose(residual, expected, atol=1e-5)


def test_rms_norm() -> None:
    x, weight = random(2, 3, 8), random(8, seed=1)
    expected = [[v / math.sqrt(sum(float(e) ** 2 for e in v) / 8 + 1e-5) for v in row] for row in x] * weight
    np.testing.assert_allclose(OPS.rms_norm(x, OPS.vector_weight(weight), 1e-5), expected, rtol=1e-5)


def test_silu_and_multiply() -> None:
    gate_up = np.array([[-1e4, -2.0, 0.0, 3.0, 1.0, 2.0, 3.0, 4.0]], np.float32)
    expected = [0.0, 2 * -2 / (1 + math.exp(2)), 0.0, 4 * 3 / (1 + math.exp(-3))]
    np.testing.assert_allclose(activate(gate_up, "silu")[0], expected, rtol=1e-6)


@pytest.mark.parametrize("rotated", [8, 4])
def test_rotary_turns_pairs_by_the_angle(rotated: int) -> None:
    n, k, d = 3, 1, 8
    qkv = random(2, (n + 2 * k) * d)
    angles = np.array([[0.1 * p * (i + 1) for i in range(rotated // 2)] for p in range(6)])
    table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    expected = qkv.reshape(2, n + 2 * k, d).astype(np.float64)
    for row, position in enumerate((5, 2)):
        for head in range(n + k):
            for i in range(rotated // 2):
                pair = complex(*expected[row, head, [i, i + rotated // 2]]) * np.exp(1j * angles[position, i])
                expected[row, head, [i, i + rotated // 2]] = pair.real, pair.imag
    rotate(OPS, qkv, table, np.array([5, 2], np.int32), (n, k, d), np.dtype(np.float32))
    np.testing.assert_allclose(qkv.reshape(2, n + 2 * k, d), expected, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_attention_over_scattered_blocks(dtype: type) -> None:
    n, k, d, block_size, scale = 4, 2, 8, 4, 0.3
    heads, lengths, tables = (n, k, d), [(5, 3), (0, 7), (10, 1)], [[3, 9], [1, 7], [2, 8, 5]]
    cache = OPS.kv_cache(2, 10, block_size, k, d, np.dtype(dtype))
    history = [random(done + new, (n + 2 * k) * d, seed=i) for i, (done, new) in enumerate(lengths)]
    for done, table, rows in zip([done for done, _ in lengths], tables, history, strict=True):
        if done:
            OPS.write_cache(rows[:done], cache, 1, batch_of([(0, done)], [table], block_size), heads)
    batch = batch_of(lengths, tables, block_size)
    qkv = np.concatenate([rows[done:] for (done, _), rows in zip(lengths, history, strict=True)])
    OPS.write_cache(qkv, cache, 1, batch, heads)
    output = OPS.attention(qkv, cache, 1, batch, heads, scale).reshape(-1, n, d)
    expected = np.concatenate(
        [
            naive_attention(rows.reshape(-1, n + 2 * k, d), done, heads, scale, dtype)
            for (done, _), rows in zip(lengths, history, strict=True)
        ]
    )
    np.testing.assert_allclose(output, expected, atol=1e-5)


def naive_attention(rows: np.ndarray, done: int, heads: tuple[int, int, int], scale: float, dtype: type) -> np.ndarray:
    n, k, d = heads
    stored = rows[:, n:].astype(dtype).astype(np.float64)
    output = np.zeros((len(rows) - done, n, d))
    for position in range(done, len(rows)):
        for head in range(n):
            shared = head // (n // k)
            scores = [
                scale * float(np.dot(rows[position, head].astype(np.float64), stored[s, shared]))
                for s in range(position + 1)
            ]
            weights = np.exp(np.array(scores) - max(scores))
            output[position - done, head] = weights / weights.sum() @ stored[: position + 1, k + shared]
    return output


def test_attention_of_a_long_prompt_is_cut_without_a_seam() -> None:
    heads, length = (2, 1, 4), 300
    cache = OPS.kv_cache(1, 19, 16, 1, 4, np.dtype(np.float32))
    batch = batch_of([(0, length)], [list(range(19))], 16)
    qkv = random(length, 16)
    OPS.write_cache(qkv, cache, 0, batch, heads)
    output = OPS.attention(qkv, cache, 0, batch, heads, 0.5).reshape(-1, 2, 4)
    expected = naive_attention(qkv.reshape(-1, 4, 4), 0, heads, 0.5, np.float32)
    np.testing.assert_allclose(output, expected, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.int8, ml_dtypes.float8_e4m3fn])
def test_copied_blocks_hold_the_same_keys_in_all_layers(dtype: type) -> None:
    cache = OPS.kv_cache(2, 4, 4, 1, 4, np.dtype(dtype))
    for layer in range(2):
        cache.write(layer, np.arange(16), random(16, 1, 4, seed=layer), random(16, 1, 4, seed=layer + 2))
    blocks = np.arange(4, dtype=np.int32)
    before = [np.stack(cache.read(layer, blocks, 0, 16)).reshape(2, 4, 4, 4) for layer in range(2)]
    cache.copy_blocks([(0, 2), (3, 1)])
    for layer in range(2):
        after = np.stack(cache.read(layer, blocks, 0, 16)).reshape(2, 4, 4, 4)
        np.testing.assert_array_equal(after, before[layer][:, [0, 3, 0, 3]])


@pytest.mark.parametrize(
    "type_name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "BF16", "F16", "F32"]
)
def test_dequantize_is_the_gguf_librarys_value_rounded_once(type_name: str) -> None:
    kind = gguf.GGMLQuantizationType[type_name]
    per_block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(1).integers(0, 60, (3, 512 // per_block * block_bytes), np.uint8)  # 60: no NaN scales
    expected = gguf.quants.dequantize(raw, kind).reshape(3, 512)
    np.testing.assert_array_equal(OPS.dequantize(raw.reshape(-1), type_name, (3, 512), np.dtype(np.float32)), expected)
    rounded = OPS.dequantize(raw, type_name, (3, 512), np.dtype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(rounded, expected.astype(ml_dtypes.bfloat16))
