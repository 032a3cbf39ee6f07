"""The reference backend: every operation in plain float32 numpy, as close to its formula as it can be written.

It runs wherever numpy does, and is what the other backends are compared with. Speed is not its aim.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from octavo.engine.plan import RowResult
from octavo.engine.request import TokenLogprobs
from octavo.kernels.numpy.activations import activate
from octavo.kernels.numpy.attention import Scoring, attend
from octavo.kernels.numpy.cache import NumpyKVCache
from octavo.kernels.numpy.quantization import round_activations, round_weight
from octavo.kernels.numpy.routing import route
from octavo.kernels.ops import Array, Forward, KVCache, Quantization, RotaryTable, Routing
from octavo.kernels.packed import PackedTensor, Packing, WeightPart
from octavo.runner.batch import Batch
from octavo.sampling import logprobs, sampler
from octavo.sampling.state import SamplingState


@dataclass(frozen=True)
class NumpyPiece:
    """`matrix` [out, in], of a quantized one what its codes stand for, and how the activations are rounded beside it."""

    matrix: Array
    rounding: Quantization | Packing | None = None
    order: NDArray[np.int32] | None = None  # of the inputs, in which `rounding` groups them


@dataclass(frozen=True)
class NumpyWeight:
    """A stacked projection: `pieces` one below the other, `bias` [out], and what is done to the result."""

    pieces: list[NumpyPiece]
    bias: Array | None
    activation: str | None


class NumpyOps:
    """`octavo.kernels.ops.Ops` on numpy. `reason` says in the start-up table why no faster backend runs."""

    name = "numpy"

    def __init__(self, reason: str = "plain reference") -> None:
        self.description = reason

    def linear_weight(
        self,
        parts: Sequence[WeightPart],
        biases: Sequence[NDArray[Any]] | None = None,
        *,
        quantization: Quantization | None = None,
        activation: str | None = None,
    ) -> NumpyWeight:
        bias = None if biases is None else _float32(np.concatenate(biases))
        if any(isinstance(part, PackedTensor) for part in parts):
            return NumpyWeight([_piece(part, quantization) for part in parts], bias, activation)
        arrays = [np.asarray(part) for part in parts]
        matrix = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        return NumpyWeight([_piece(matrix, quantization)], bias, activation)

    def weight_bytes(
        self,
        parts: Sequence[WeightPart],
        *,
        quantization: Quantization | None = None,
        activation: str | None = None,
    ) -> int:
        return sum(4 * len(part) * part.shape[1] for part in parts)  # whatever the dtype: products are float32's

    def expert_weights(self, gate_up: Sequence[NumpyWeight], down: Sequence[NumpyWeight]) -> list[tuple[NumpyWeight, ...]]:
        return list(zip(gate_up, down, strict=True))

    def head_weights(self, weights: Sequence[NumpyWeight]) -> list[NumpyWeight]:
        return list(weights)

    def vector_weight(self, weight: NDArray[Any]) -> Array:
        return _float32(weight)

    def dequantize(
        self, raw: NDArray[np.uint8], type_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        kind = gguf.GGMLQuantizationType[type_name]
        rows = raw.reshape(*shape[:-1], -1)
        values = gguf.quants.dequantize(rows, kind)
        return values.reshape(shape).astype(dtype, copy=False)

    def record(self, forward: Forward) -> Forward:
        return forward

    def select_rows(self, x: Array, rows: NDArray[np.int32]) -> Array:
        return x[rows]

    def embedding(
        self,
        token_ids: NDArray[np.int32],
        weight: NumpyWeight,
        *,
        scale: float = 1.0,
        residual: Array | None = None,
    ) -> Array:
        (piece,) = weight.pieces
        rows: Array = piece.matrix[token_ids] * np.float32(scale)
        return _add(rows, residual)

    def linear(self, x: Array, weight: NumpyWeight, residual: Array | None = None) -> Array:
        products = [_rounded(x, piece) @ piece.matrix.T for piece in weight.pieces]
        product: Array = products[0] if len(products) == 1 else np.concatenate(products, axis=1)
        if weight.bias is not None:
            product += weight.bias
        return _add(activate(product, weight.activation), residual)

    def linear_heads(self, x: Array, weights: Sequence[NumpyWeight]) -> Array:
        parts = np.split(x, len(weights), axis=1)
        products = [self.linear(np.ascontiguousarray(part), weight) for part, weight in zip(parts, weights, strict=True)]
        return np.concatenate(products, axis=1)

    def concatenate(self, parts: Sequence[Array]) -> Array:
        return np.concatenate(parts, axis=1)

    def route(self, logits: Array, routing: Routing, bias: Array | None = None) -> Array:
        return route(logits, routing, bias)

    def experts(
        self, x: Array, routing: Array, weights: Sequence[tuple[NumpyWeight, ...]], residual: Array | None = None
    ) -> Array:
        output = np.zeros_like(x) if residual is None else residual
        for expert, (gate_up, down) in enumerate(weights):
            rows = np.flatnonzero(routing[:, expert])
            if rows.size:
                output[rows] += routing[rows, expert, None] * self.linear(self.linear(x[rows], gate_up), down)
        return output

    def rms_norm(self, x: Array, weight: Array, epsilon: float, residual: Array | None = None) -> Array:
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        normed: Array = x / np.sqrt(mean_square + np.float32(epsilon)) * weight
        return _add(normed, residual)

    def rms_norm_columns(self, x: Array, weight: Array, epsilon: float, first: int, count: int) -> None:
        runs = x[:, first : first + count * len(weight)].reshape(len(x), count, len(weight))
        x[:, first : first + count * len(weight)] = self.rms_norm(runs, weight, epsilon).reshape(len(x), -1)

    def layer_norm(self, x: Array, weight: Array, bias: Array | None, epsilon: float, *, in_place: bool = False) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = np.mean(centred * centred, axis=-1, keepdims=True)
        normed: Array = centred / np.sqrt(variance + np.float32(epsilon)) * weight
        if bias is not None:
            normed += bias
        if not in_place:
            return normed
        x[:] = normed
        return x

    def soft_cap(self, x: Array, cap: float) -> Array:
        x[:] = np.float32(cap) * np.tanh(x / np.float32(cap))
        return x

    def write_cache(
        self,
        qkv: Array,
        cache: KVCache,
        layer: int,
        batch: Batch,
        heads: tuple[int, int, int],
        table: RotaryTable | None = None,
        *,
        interleaved: bool = False,
    ) -> None:
        if table is not None:
            _rotate(qkv, table(int(batch.positions.max(initial=-1)) + 1)[batch.positions], heads, interleaved)
        _, keys, values = _split_heads(qkv, heads)
        _own(cache).write(layer, batch.slot_mapping, keys, values)

    def attention(
        self,
        qkv: Array,
        cache: KVCache,
        layer: int,
        batch: Batch,
        heads: tuple[int, int, int],
        scale: float,
        *,
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: Array | None = None,
        causal: bool = True,
    ) -> Array:
        queries, _, _ = _split_heads(qkv, heads)
        own = _own(cache)
        scoring = Scoring(scale, window, soft_cap, sinks, causal)
        output = np.empty_like(queries)
        for i, length in enumerate(batch.seq_lens.tolist()):
            rows = slice(batch.query_starts[i], batch.query_starts[i + 1])
            first_block = scoring.first_key(length - (rows.stop - rows.start)) // own.block_size
            keys, values = own.read(layer, batch.block_tables[i], first_block, length)
            output[rows] = attend(queries[rows], keys, values, scoring, first_block * own.block_size)
        return output.reshape(len(qkv), -1)

    def sample(self, logits: Array, states: Sequence[SamplingState], logprobs_mode: str = "raw_logprobs") -> list[RowResult]:
        return sampler.sample(logits, states, logprobs_mode)

    def token_logprobs(self, logits: Array, token_ids: Sequence[int], top: int) -> list[TokenLogprobs]:
        return logprobs.token_logprobs(logits, token_ids, top)

    def kv_cache(
        self, layers: int, blocks: int, block_size: int, kv_heads: int, head_size: int, dtype: np.dtype[Any]
    ) -> NumpyKVCache:
        return NumpyKVCache((layers, blocks, block_size, kv_heads, head_size), np.dtype(dtype))

    def close(self) -> None:
        pass


def _piece(part: WeightPart, quantization: Quantization | None) -> NumpyPiece:
    if isinstance(part, PackedTensor):
        return NumpyPiece(part.dequantized(), part.packing, part.order)
    matrix = _float32(part)
    return NumpyPiece(matrix if quantization is None else round_weight(matrix, quantization), quantization)


def _rounded(x: Array, piece: NumpyPiece) -> Array:
    if piece.rounding is None or not piece.rounding.rounds_activations:
        return x
    return round_activations(x, piece.rounding, piece.order)


def _float32(values: NDArray[Any]) -> Array:
    return np.ascontiguousarray(values, np.float32)


def _add(result: Array, residual: Array | None) -> Array:
    if residual is None:
        return result
    residual += result
    return residual


def _rotate(qkv: Array, cos_sin: Array, heads: tuple[int, int, int], interleaved: bool) -> None:
    """Turn the q and k heads of qkv [t, (n + 2k) * d] in place by cos_sin [t, r]."""
    n, k, d = heads
    size = cos_sin.shape[1]
    cos, sin = np.split(cos_sin[:, None], 2, axis=-1)  # [t, 1, r/2] each
    rotated = qkv.reshape(-1, n + 2 * k, d)[:, : n + k, :size]  # a view on the q and k heads
    halves = (np.s_[..., ::2], np.s_[..., 1::2]) if interleaved else (np.s_[..., : size // 2], np.s_[..., size // 2 :])
    first, second = (rotated[half].copy() for half in halves)
    rotated[halves[0]] = first * cos - second * sin
    rotated[halves[1]] = second * cos + first * sin


def _split_heads(qkv: Array, heads: tuple[int, int, int]) -> tuple[Array, Array, Array]:
    """[t, (n + 2k) * d] -> views [t, n, d], [t, k, d], [t, k, d]."""
    n, k, d = heads
    split = qkv.reshape(-1, n + 2 * k, d)
    return split[:, :n], split[:, n : n + k], split[:, n + k :]


def _own(cache: KVCache) -> NumpyKVCache:
    if not isinstance(cache, NumpyKVCache):
        raise TypeError(f"the numpy backend cannot read a {type(cache).__name__}")
    return cache
