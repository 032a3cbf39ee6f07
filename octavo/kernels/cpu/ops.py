"""The op table on the native library. Interface and promises: octavo.kernels.ops."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.engine.plan import RowResult
from octavo.engine.request import TokenLogprobs
from octavo.errors import ConfigError
from octavo.kernels.cpu import attention, elementwise, products, sampling
from octavo.kernels.cpu.buffers import INT32, address
from octavo.kernels.cpu.cache import NativeCache
from octavo.kernels.cpu.calls import Calls, Immediate
from octavo.kernels.cpu.library import EMULATED_ISAS, failure, last_failure, load_library, supported_isas
from octavo.kernels.cpu.packing import Packer
from octavo.kernels.cpu.program import RecordedForward
from octavo.kernels.cpu.scoring import score_rows
from octavo.kernels.cpu.threads import default_threads, one_of_each_core
from octavo.kernels.cpu.weights import NativeExperts, NativeHeads, PackedWeight
from octavo.kernels.ops import Array, Forward, KVCache, Quantization, RotaryTable, Routing
from octavo.kernels.packed import WeightPart
from octavo.runner.batch import Batch
from octavo.sampling.state import SamplingState


class CpuOps:
    """Native kernels. A result row depends on that row alone, bit for bit, within one instruction set.

    `threads` None: what affinity, cgroup and cores allow. `isa` "auto": the best that the processor has. `pin`: each worker
    stays on a core of its own, whatever backend of this process uses it. Raises
    LibraryUnavailable where the library was not built, ConfigError for an instruction set that is not there. Wrong shapes,
    dtypes and ids are ValueError or IndexError, and nothing has been computed then."""

    name = "cpu"

    def __init__(self, threads: int | None = None, isa: str = "auto", *, pin: bool = False) -> None:
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
        self.calls: Calls = Immediate(library, self._context)  # how operations reach the library
        if pin:
            self._pin()

    def _pin(self) -> None:
        cpus = one_of_each_core()
        if len(cpus) < self.threads:
            raise ConfigError(
                f"--cpu-pin-threads: {self.threads} threads need as many cores, and this process may use {len(cpus)}; "
                f"--cpu-threads {len(cpus)} works"
            )
        status = self._library.octavo_pin(self._context, address(np.array(cpus, np.int32), INT32), self.threads)
        if status:
            raise ConfigError(f"--cpu-pin-threads: {failure(status)}; leave it out")
        self.description += ", pinned"

    # -- weights, once at load ------------------------------------------------------------------------------------

    def linear_weight(
        self,
        parts: Sequence[WeightPart],
        biases: Sequence[NDArray[Any]] | None = None,
        *,
        quantization: Quantization | None = None,
        activation: str | None = None,
    ) -> PackedWeight:
        return self._packer.linear_weight(parts, biases, quantization, activation)

    def weight_bytes(
        self,
        parts: Sequence[WeightPart],
        *,
        quantization: Quantization | None = None,
        activation: str | None = None,
    ) -> int:
        return self._packer.weight_bytes(parts, quantization, activation)

    @property
    def _packer(self) -> Packer:
        return Packer(self._library, self._context)

    def expert_weights(self, gate_up: Sequence[PackedWeight], down: Sequence[PackedWeight]) -> NativeExperts:
        return NativeExperts(gate_up, down)

    def head_weights(self, weights: Sequence[PackedWeight]) -> NativeHeads:
        return NativeHeads(weights)

    def vector_weight(self, weight: NDArray[Any]) -> Array:
        return np.array(weight, dtype=np.float32)  # a copy, for a view would keep the mapped file in memory

    def dequantize(
        self, raw: NDArray[np.uint8], type_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        return self._packer.dequantize(raw, type_name, shape, dtype)

    # -- the step -------------------------------------------------------------------------------------------------

    def record(self, forward: Forward) -> Forward:
        return RecordedForward(self, forward)  # a step is one call into the library

    @property
    def context(self) -> int | None:
        """The library's handle; None once it is closed."""
        return self._context

    @contextmanager
    def recording(self, calls: Calls) -> Iterator[None]:
        """Give the operations' calls to `calls` meanwhile."""
        usual, self.calls = self.calls, calls
        try:
            yield
        finally:
            self.calls = usual

    def select_rows(self, x: Array, rows: NDArray[np.int32]) -> Array:
        return elementwise.select_rows(self.calls, x, rows)

    def embedding(
        self,
        token_ids: NDArray[np.int32],
        weight: PackedWeight,
        *,
        scale: float = 1.0,
        residual: Array | None = None,
    ) -> Array:
        return products.embedding(self.calls, token_ids, weight, scale, residual)

    def linear(self, x: Array, weight: PackedWeight, residual: Array | None = None) -> Array:
        return products.linear(self.calls, x, weight, residual)

    def linear_heads(self, x: Array, weights: NativeHeads) -> Array:
        return products.linear_heads(self.calls, x, weights)

    def concatenate(self, parts: Sequence[Array]) -> Array:
        return elementwise.concatenate(self.calls, parts)

    def route(self, logits: Array, routing: Routing, bias: Array | None = None) -> Array:
        return products.route(self.calls, logits, routing, bias)

    def experts(self, x: Array, routing: Array, weights: NativeExperts, residual: Array | None = None) -> Array:
        return products.experts(self.calls, x, routing, weights, residual)

    def rms_norm(self, x: Array, weight: Array, epsilon: float, residual: Array | None = None) -> Array:
        return elementwise.rms_norm(self.calls, x, weight, epsilon, residual)

    def rms_norm_columns(self, x: Array, weight: Array, epsilon: float, first: int, count: int) -> None:
        elementwise.rms_norm_columns(self.calls, x, weight, epsilon, first, count)

    def layer_norm(self, x: Array, weight: Array, bias: Array | None, epsilon: float, *, in_place: bool = False) -> Array:
        return elementwise.layer_norm(self.calls, x, weight, bias, epsilon, in_place)

    def soft_cap(self, x: Array, cap: float) -> Array:
        return elementwise.soft_cap(self.calls, x, cap)

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
        attention.write_cache(self.calls, qkv, cache, layer, batch, heads, table, interleaved)

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
        given = qkv, cache, layer, batch, heads, scale
        return attention.attention(self.calls, *given, window, soft_cap, sinks, causal)

    def sample(self, logits: Array, states: Sequence[SamplingState], logprobs_mode: str = "raw_logprobs") -> list[RowResult]:
        return sampling.sample(self._library, self._context, logits, states, logprobs_mode)

    def token_logprobs(self, logits: Array, token_ids: Sequence[int], top: int) -> list[TokenLogprobs]:
        rows, width = logits.shape
        tops = [width if top < 0 else min(top, width)] * rows
        return score_rows(self._library, self._context, logits, [width] * rows, token_ids, tops)

    def kv_cache(
        self, layers: int, blocks: int, block_size: int, kv_heads: int, head_size: int, dtype: np.dtype[Any]
    ) -> NativeCache:
        return NativeCache(self._library, self._context, self.isa, layers, blocks, block_size, kv_heads, head_size, dtype)

    def close(self) -> None:
        """Give back this backend's scratch memory; the threads end with the last backend. Later calls are ValueErrors."""
        if self._context is not None:
            self._library.octavo_close(self._context)
            self._context = None
            self.calls = Immediate(self._library, None)

    def __del__(self) -> None:
        if self._context is not None:
            self._library.octavo_close(self._context)


def _choose_isa(isa: str) -> str:
    supported = supported_isas()
    if isa == "auto":
        return supported[0]
    if isa not in (*supported, *EMULATED_ISAS):
        raise ConfigError(f"--cpu-isa {isa} is not available here; choose auto or one of: {', '.join(supported)}")
    return isa
