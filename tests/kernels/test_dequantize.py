"""GGUF blocks against the gguf library, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernels.native import DTYPES, FLOAT32, each_isa, native

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"]


def random_blocks(name: str, rows: int, blocks: int, seed: int) -> np.ndarray:
    """Any bytes are a valid block; scales that would be NaN or infinite are made finite so that `==` can compare."""
    kind = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(seed).integers(0, 256, (rows, blocks, size), np.uint8)
    with np.errstate(invalid="ignore"):
        values = gguf.quants.dequantize(raw.reshape(rows, -1), kind).reshape(rows, blocks, -1)
    raw[~np.isfinite(values).all(axis=-1)] = 0
    return raw.reshape(rows, -1)


@each_isa
@pytest.mark.parametrize("name", TYPES)
@given(rows=st.integers(1, 4), blocks=st.integers(1, 40), seed=st.integers(0, 1000))
def test_equal_to_the_gguf_library(isa, name, rows, blocks, seed):
    raw = random_blocks(name, rows, blocks, seed)
    want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    got = native(isa).dequantize(raw, name, want.shape, FLOAT32)
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))
    for dtype in DTYPES[1:]:
        with np.errstate(over="ignore"):
            rounded = want.astype(dtype)
        assert np.array_equal(native(isa).dequantize(raw, name, want.shape, dtype).view(np.uint16), rounded.view(np.uint16))


@each_isa
def test_every_half_and_every_bfloat16(isa):
    bits = np.arange(65536, dtype=np.uint16)
    for name, dtype in (("F16", np.float16), ("BF16", DTYPES[1])):
        want = bits.view(dtype).astype(np.float32)
        got = native(isa).dequantize(bits.view(np.uint8), name, (65536,), FLOAT32)
        assert np.array_equal(got, want, equal_nan=True)
        back = native(isa).dequantize(want.view(np.uint8), "F32", (65536,), np.dtype(dtype))
        nan = np.isnan(want)
        assert np.array_equal(back.view(np.uint16)[~nan], bits[~nan])
        assert np.isnan(back[nan].astype(np.float32)).all()


@each_isa
def test_rounding_to_nearest_even(isa):
    """Values around every tie of float16, subnormal ones included, and random bit patterns."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[:-1] + halves[1:]) / 2
    random = np.random.default_rng(1).integers(0, 2**32, 50_000, dtype=np.uint32).view(np.float32)
    values = np.concatenate([ties, np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(9e9)), random, -ties])
    values = values[~np.isnan(values)]
    for dtype in DTYPES[1:]:
        with np.errstate(over="ignore"):
            want = values.astype(dtype)
        got = native(isa).dequantize(values.view(np.uint8), "F32", values.shape, dtype)
        assert np.array_equal(got.view(np.uint16), want.view(np.uint16))


def test_large_tensors_are_shared_among_threads():
    raw = random_blocks("Q4_1", 300, 40, 5)
    want = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType.Q4_1)
    for threads in (1, 2, 3):
        assert np.array_equal(native("auto", threads).dequantize(raw, "Q4_1", want.shape, FLOAT32), want)


def test_wrong_arguments_are_refused():
    ops = native("auto")
    raw = random_blocks("Q4_1", 2, 3, 0)
    with pytest.raises(ValueError, match="GGUF type 17 cannot be dequantized"):
        ops.dequantize(raw, "IQ2_XS", (2, 96), FLOAT32)
    for shape in ((2, 97), (3, 96), (2, 64)):
        with pytest.raises(ValueError, match="bytes are not"):
            ops.dequantize(raw, "Q4_1", shape, FLOAT32)
    with pytest.raises(ValueError, match="float32, bfloat16 or float16"):
        ops.dequantize(raw, "Q4_1", (2, 96), np.dtype(np.int8))
