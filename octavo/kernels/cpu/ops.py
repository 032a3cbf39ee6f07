"""The op table on the native library. Interface and promises: octavo.kernels.ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ConfigError
from octavo.kernels.cpu.buffers import FLOAT32, INT32, INT64, address, dtype_code, writable_address
from octavo.kernels.cpu.handles import NativeCache, PackedWeight
from octavo.kernels.cpu.library import failure, last_failure, load_library, supported_isas
from octavo.kernels.cpu.threads import default_threads
from octavo.kernels.ops import Array, KVCache
from octavo.runner.batch import Batch


class CpuOps:
    """Native kernels. A result row depends on that row alone, bit for bit, within one instruction set.

    `threads` None: what affinity, cgroup and cores allow. `isa` "auto": the best that the processor has. Raises
    LibraryUnavailable where the library was not built, ConfigError for an instruction set that is not there. Wrong shapes,
    dtypes and ids are ValueError or IndexError, and nothing has been computed then."""

    name = "cpu"

    def __init__(self, threads: int | None = None, isa: str = "auto") -> None:
        self._context: int | None = None
        library = load_library()
        self.isa = _choose_isa(isa)
        self.threads = default_threads() if threads is None else threads
        if self.threads < 1:
            raise ConfigError(f"--cpu-threads must be at least 1, not {self.threads}")
        self.description = f"{self.isa}, {self.threads} thread{'s' if self.threads > 1 else ''}"
        self._library = library
        self._context = library.octavo_open(self.isa.encode(), self.threads)
        if self._context is None:
            raise last_failure()
        self._linear = library.octavo_linear
        self._rms_norm = library.octavo_rms_norm
        self._silu_and_multiply = library.octavo_silu_and_multiply
        self._rotary = library.octavo_rotary
        self._cache_write = library.octavo_cache_write
        self._attention = library.octavo_attention

    # -- weights, once at load ------------------------------------------------------------------------------------

    def linear_weight(self, parts: Sequence[NDArray[Any]], biases: Sequence[NDArray[Any]] | None = None) -> PackedWeight:
        """Pack [out_i, in] weights of one dtype (float32, bfloat16 or float16), stacked along `out`."""
        first = parts[0]
        for part in parts:
            if part.ndim != 2 or part.shape[1] != first.shape[1] or part.dtype != first.dtype:
                raise ValueError(f"parts of one weight differ: {[(p.shape, str(p.dtype)) for p in parts]}")
        weight = PackedWeight(self._library, self._context, first.shape[1], sum(len(part) for part in parts), first.dtype)
        row = 0
        for part in parts:
            weight.pack(self._context, part, row)
            row += len(part)
        if biases is not None:
            weight.set_bias(np.concatenate([np.asarray(bias).astype(np.float32) for bias in biases]))
        return weight

    def weight_itemsize(self, dtype: np.dtype[Any]) -> int:
        """Bytes of an element in memory: packing keeps the dtype."""
        return dtype.itemsize

    def vector_weight(self, weight: NDArray[Any]) -> Array:
        """A norm's weight as float32 [h]."""
        return np.ascontiguousarray(weight, dtype=np.float32)

    def dequantize(
        self, raw: NDArray[np.uint8], type_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """GGUF blocks to `dtype` [shape]: the gguf library's float32 values, rounded to nearest even."""
        from gguf.constants import GGMLQuantizationType  # here, where a GGUF file has loaded the library already

        blocks = np.ascontiguousarray(raw)
        out = np.empty(shape, dtype)
        status = self._library.octavo_dequantize(
            self._context,
            blocks.ctypes.data,
            blocks.nbytes,
            GGMLQuantizationType[type_name],
            out.size,
            dtype_code(dtype),
            out.ctypes.data,
        )
        if status:
            raise failure(status)
        return out

    # -- the step -------------------------------------------------------------------------------------------------

    def embedding(self, token_ids: NDArray[np.int32], weight: PackedWeight) -> Array:
        """[t] ids -> [t, h]. IndexError for an id outside the vocabulary."""
        y = np.empty((len(token_ids), weight.in_features), FLOAT32)
        status = self._library.octavo_embedding(
            self._context, weight.pointer, address(token_ids, INT32), len(token_ids), address(y)
        )
        if status:
            raise failure(status)
        return y

    def linear(self, x: Array, weight: PackedWeight, residual: Array | None = None) -> Array:
        """[t, in] -> [t, out], plus bias; with `residual` [t, out], added into it, in place."""
        rows, width = x.shape
        if width != weight.in_features:
            raise ValueError(f"expected rows of {weight.in_features}, got {width}")
        if residual is None:
            y = np.empty((rows, weight.out_features), FLOAT32)
            status = self._linear(self._context, weight.pointer, address(x), rows, address(y), 0)
        else:
            y = residual
            if y.shape != (rows, weight.out_features):
                raise ValueError(f"expected a residual of shape {(rows, weight.out_features)}, got {y.shape}")
            status = self._linear(self._context, weight.pointer, address(x), rows, writable_address(y), 1)
        if status:
            raise failure(status)
        return y

    def rms_norm(self, x: Array, weight: Array, epsilon: float) -> Array:
        """x / sqrt(mean(x^2) + epsilon) * weight over the last axis. Contiguous [..., h]."""
        width = x.shape[-1]
        if weight.shape != (width,):
            raise ValueError(f"expected a weight of shape {(width,)}, got {weight.shape}")
        y = np.empty(x.shape, FLOAT32)
        rows = x.size // width
        status = self._rms_norm(self._context, address(x), address(weight), rows, width, epsilon, address(y))
        if status:
            raise failure(status)
        return y

    def silu_and_multiply(self, gate_up: Array) -> Array:
        """[t, 2i] -> [t, i]: silu(first half) * second half."""
        rows, width = gate_up.shape
        if width % 2:
            raise ValueError(f"expected rows of an even width, got {width}")
        y = np.empty((rows, width // 2), FLOAT32)
        status = self._silu_and_multiply(self._context, address(gate_up), rows, width // 2, address(y))
        if status:
            raise failure(status)
        return y

    def rotary(self, qkv: Array, cos_sin: Array, positions: NDArray[np.int32], heads: tuple[int, int, int]) -> None:
        """Rotate the q and k heads of qkv in place. IndexError for a position that cos_sin does not have."""
        tokens = _qkv_tokens(qkv, heads)
        if positions.shape != (tokens,):
            raise ValueError(f"expected {tokens} positions, got shape {positions.shape}")
        n, k, d = heads
        table_rows, rotary = cos_sin.shape
        status = self._rotary(
            self._context,
            writable_address(qkv),
            tokens,
            qkv.shape[1],
            n + k,
            d,
            address(cos_sin),
            table_rows,
            rotary,
            address(positions, INT32),
        )
        if status:
            raise failure(status)

    def write_cache(self, qkv: Array, cache: KVCache, layer: int, batch: Batch, heads: tuple[int, int, int]) -> None:
        """Store the k and v heads of qkv in `batch.slot_mapping`. IndexError for a slot or layer that does not exist."""
        tokens = _qkv_tokens(qkv, heads)
        own = _own(cache, heads)
        slots = batch.slot_mapping
        if slots.shape != (tokens,):
            raise ValueError(f"expected {tokens} slots, got shape {slots.shape}")
        status = self._cache_write(self._context, own.pointer, layer, address(qkv), heads[0], address(slots, INT64), tokens)
        if status:
            raise failure(status)

    def attention(
        self, qkv: Array, cache: KVCache, layer: int, batch: Batch, heads: tuple[int, int, int], scale: float
    ) -> Array:
        """Causal attention of the q heads over the paged cache: [t, n * d]. IndexError for a block that does not exist."""
        tokens = _qkv_tokens(qkv, heads)
        own = _own(cache, heads)
        lengths, starts, tables = batch.seq_lens, batch.query_starts, batch.block_tables
        sequences = len(lengths)
        if len(starts) != sequences + 1 or len(tables) != sequences or tables.ndim != 2:
            raise ValueError(f"{sequences} lengths, {len(starts)} query starts and tables of shape {tables.shape} differ")
        out = np.empty((tokens, heads[0] * heads[2]), FLOAT32)
        status = self._attention(
            self._context,
            own.pointer,
            layer,
            address(qkv),
            heads[0],
            tokens,
            address(starts, INT32),
            address(lengths, INT32),
            sequences,
            address(tables, INT32),
            tables.shape[1],
            scale,
            address(out),
        )
        if status:
            raise failure(status)
        return out

    def kv_cache(
        self, layers: int, blocks: int, block_size: int, kv_heads: int, head_size: int, dtype: np.dtype[Any]
    ) -> NativeCache:
        """A zeroed cache. MemoryError if the address space is not to be had; memory is touched as blocks are written."""
        return NativeCache(self._library, self._context, layers, blocks, block_size, kv_heads, head_size, dtype)

    def close(self) -> None:
        """Give back this backend's scratch memory; the threads end with the last backend. Later calls are ValueErrors."""
        if self._context is not None:
            self._library.octavo_close(self._context)
            self._context = None

    def __del__(self) -> None:
        self.close()


def _choose_isa(isa: str) -> str:
    supported = supported_isas()
    if isa == "auto":
        return supported[0]
    if isa not in supported:
        raise ConfigError(f"--cpu-isa {isa} is not available here; choose auto or one of: {', '.join(supported)}")
    return isa


def _qkv_tokens(qkv: Array, heads: tuple[int, int, int]) -> int:
    n, k, d = heads
    tokens: int = qkv.shape[0]
    width = qkv.shape[1]
    if width != (n + 2 * k) * d:
        raise ValueError(f"expected rows of ({n} + 2 * {k}) * {d}, got {width}")
    return tokens


def _own(cache: KVCache, heads: tuple[int, int, int]) -> NativeCache:
    if not isinstance(cache, NativeCache):
        raise TypeError(f"the cpu backend cannot read a {type(cache).__name__}")
    if cache.kv_heads != heads[1] or cache.head_size != heads[2]:
        raise ValueError(f"the cache has {cache.kv_heads} KV heads of {cache.head_size}, not {heads[1]} of {heads[2]}")
    return cache
