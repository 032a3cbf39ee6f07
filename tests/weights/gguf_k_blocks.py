"""Rounds matrices to GGUF's types with scales of scales, which the gguf library only reads (layouts: ggml-common.h).

To nearest, without the search by which llama.cpp chooses scales: files for tests, not for use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tests.weights.gguf_files import Stored

BLOCK = 256
Array = NDArray[np.float32]


def round_to_k(matrix: Array, type_name: str) -> Stored:
    """[out, in], `in` a multiple of 256, as Q4_K, Q5_K or Q6_K."""
    blocks = matrix.astype(np.float64).reshape(-1, BLOCK)
    rows = _six_bits(blocks) if type_name == "Q6_K" else _least_values(blocks, {"Q4_K": 4, "Q5_K": 5}[type_name])
    return rows.reshape(len(matrix), -1), type_name


def _six_bits(blocks: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Codes -32 to 31, for 16 of them a scale of 8 bits, and one in float16 for these."""
    groups = blocks.reshape(-1, 16, 16)
    steps = np.abs(groups).max(axis=2) / 31
    d = _half(steps.max(axis=1) / 127)
    scales = np.rint(_over(steps, d)).astype(np.int8)
    codes = np.clip(np.rint(_over(groups, d[:, None] * scales[:, :, None])), -32, 31).astype(np.int64) + 32
    quarters = codes.reshape(-1, 2, 4, 32)  # [blocks, halves, quarters of a half, 32]
    low = quarters[:, :, :2] & 15 | (quarters[:, :, 2:] & 15) << 4
    high = sum(quarters[:, :, place] >> 4 << (2 * place) for place in range(4))
    return _joined(low, np.asarray(high), scales.view(np.uint8), d.astype(np.float16).view(np.uint8))


def _least_values(blocks: NDArray[np.float64], bits: int) -> NDArray[np.uint8]:
    """Codes from 0 on, for 32 of them a scale and a least value of 6 bits each, and one in float16 for each of these."""
    groups = blocks.reshape(-1, 8, 32)
    least = np.minimum(groups.min(axis=2), 0)
    steps = (groups.max(axis=2) - least) / (2**bits - 1)
    d, d_least = _half(steps.max(axis=1) / 63), _half(-least.min(axis=1) / 63)
    scales, mins = (np.rint(_over(each, by)).astype(np.int64) for each, by in ((steps, d), (-least, d_least)))
    offsets = (d_least * mins)[:, :, None]
    codes = np.clip(np.rint(_over(groups + offsets, d[:, None] * scales[:, :, None])), 0, 2**bits - 1).astype(np.int64)
    pairs = codes.reshape(-1, 4, 2, 32)
    low = pairs[:, :, 0] & 15 | (pairs[:, :, 1] & 15) << 4
    fifth = [np.asarray(sum(codes[:, group] >> 4 << group for group in range(8)))] if bits == 5 else []
    first, last = scales[:, :4] | scales[:, 4:] >> 4 << 6, mins[:, :4] | mins[:, 4:] >> 4 << 6
    both = scales[:, 4:] & 15 | (mins[:, 4:] & 15) << 4
    return _joined(*(each.astype(np.float16).view(np.uint8) for each in (d, d_least)), first, last, both, *fifth, low)


def _half(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """[blocks, 1] as float16 has them."""
    return values.astype(np.float16).astype(np.float64)[:, None]


def _over(values: NDArray[np.float64], scale: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.divide(values, scale, out=np.zeros_like(values), where=scale != 0)


def _joined(*fields: NDArray[np.integer]) -> NDArray[np.uint8]:
    return np.concatenate([each.reshape(len(each), -1).astype(np.uint8) for each in fields], axis=1)
