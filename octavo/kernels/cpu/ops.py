"""The op table on the native library. Interface and promises: octavo.kernels.ops."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.engine.request import TokenLogprobs
from octavo.errors import ConfigError
from octavo.kernels.cpu.buffers import INT32, INT64, address, dtype_code
from octavo.kernels.cpu.calls import Calls, Immediate
from octavo.kernels.cpu.handles import NativeCache, NativeExperts, NativeHeads, PackedWeight, WeightFormat
from octavo.kernels.cpu.library import EMULATED_ISAS, failure, last_failure, load_library, supported_isas
from octavo.kernels.cpu.program import RecordedForward
from octavo.kernels.cpu.sampling import ERRORS, SamplingRows, score_rows
from octavo.kernels.cpu.threads import default_threads, one_of_each_core
from octavo.kernels.ops import Array, Forward, KVCache, Quantization, RotaryTable, Routing, is_gated
from octavo.kernels.packed import PackedTensor, WeightPart
from octavo.runner.batch import Batch
from octavo.sampling.sampler import SampleResult, sampled_logprobs
from octavo.sampling.state import SamplingState

_ALL_KEYS = 2**31 - 1  # a window that nothing lies before
_SCORINGS = {"softmax": 0, "sigmoid": 1}  # the library's numbers


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
        self._calls: Calls = Immediate(self._context)
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
        """Pack [out_i, in] weights, stacked along `out`. Each part may be freed afterwards."""
        inputs = parts[0].shape[1]
        for part in parts:
            if part.ndim != 2 or part.shape[1] != inputs:
                raise ValueError(f"parts of one weight differ: {[part.shape for part in parts]}")
        if is_gated(activation) and [len(part) for part in parts] != [len(parts[0])] * 2:
            raise ValueError(f"an activation takes a gate and an up of one size, got {[part.shape for part in parts]}")
        runs = _alike(parts, quantization)
        remaining = activation if is_gated(activation) and len(runs) > 1 else None  # of halves of two formats
        if remaining not in (None, "silu"):
            raise ValueError(f"a gate and an up of two formats have no activation {activation}")
        pieces = [self._pack(run, quantization, activation if remaining is None else None) for run in runs]
        weight = pieces[0] if len(pieces) == 1 else PackedWeight.stack(self._library, pieces, remaining)
        if biases is not None:
            weight.set_bias(np.concatenate([np.asarray(bias).astype(np.float32) for bias in biases]))
        return weight

    def _pack(self, parts: Sequence[WeightPart], quantization: Quantization | None, activation: str | None) -> PackedWeight:
        weight = self._unpacked(parts, quantization, activation)
        row = 0
        for part in parts:
            weight.put(self._context, part, row)
            row += len(part)
        if isinstance(parts[0], PackedTensor) and parts[0].order is not None:
            weight.set_order(parts[0].order)
        return weight

    def _unpacked(
        self, parts: Sequence[WeightPart], quantization: Quantization | None, activation: str | None
    ) -> PackedWeight:
        """A weight for parts of one kind, nothing put into it yet."""
        shape = sum(map(len, parts)), parts[0].shape[1]
        return PackedWeight(self._library, self._context, shape, WeightFormat.of(parts[0], quantization), activation)

    def weight_bytes(
        self,
        parts: Sequence[WeightPart],
        *,
        quantization: Quantization | None = None,
        activation: str | None = None,
    ) -> int:
        """Bytes of the panels; memory for them is reserved, and not touched."""
        runs = _alike(parts, quantization)
        own = activation if len(runs) == 1 else None  # without it the panels are as large
        return sum(self._unpacked(run, quantization, own).nbytes for run in runs)

    def expert_weights(self, gate_up: Sequence[PackedWeight], down: Sequence[PackedWeight]) -> NativeExperts:
        """The weights of the experts in their order, all of one shape and format."""
        return NativeExperts(gate_up, down)

    def head_weights(self, weights: Sequence[PackedWeight]) -> NativeHeads:
        """The weights of the heads in their order, all of one shape and format."""
        return NativeHeads(weights)

    def vector_weight(self, weight: NDArray[Any]) -> Array:
        """A norm's weight as float32 [h]: a copy, for a view would keep the mapped file in memory."""
        return np.array(weight, dtype=np.float32)

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

    def record(self, forward: Forward) -> Forward:
        """Record the operations at the first call; from then on a step is one call into the library."""
        return RecordedForward(self, forward)

    @property
    def context(self) -> int | None:
        """The library's handle; None once it is closed."""
        return self._context

    @contextmanager
    def recording(self, calls: Calls) -> Iterator[None]:
        """Give the operations' calls to `calls` meanwhile."""
        usual, self._calls = self._calls, calls
        try:
            yield
        finally:
            self._calls = usual

    def select_rows(self, x: Array, rows: NDArray[np.int32]) -> Array:
        """[t, h] -> the rows [r, h]. IndexError for a row that x does not have."""
        calls = self._calls
        (count,), (height, width) = rows.shape, x.shape
        y = calls.new(count, width)
        calls.call(
            self._library.octavo_select_rows,
            calls.context(),
            calls.address(x),
            height,
            width,
            calls.address(rows, INT32),
            count,
            calls.address(y),
        )
        return y

    def embedding(
        self,
        token_ids: NDArray[np.int32],
        weight: PackedWeight,
        *,
        scale: float = 1.0,
        residual: Array | None = None,
    ) -> Array:
        """[t] ids -> [t, h], times `scale`; with `residual`, added into it, in place. IndexError for an id outside the
        vocabulary."""
        calls = self._calls
        (count,) = token_ids.shape
        y = self._target((count, weight.in_features), residual)
        ids, adds = calls.address(token_ids, INT32), int(residual is not None)
        function = self._library.octavo_embedding
        calls.call(function, calls.context(), weight.pointer, ids, count, scale, calls.writable(y), adds)
        return y

    def _target(self, shape: tuple[Any, ...], residual: Array | None) -> Array:
        """Where a result of this shape goes."""
        if residual is None:
            return self._calls.new(*shape)
        if residual.shape != shape:
            raise ValueError(f"expected a residual of shape {shape}, got {residual.shape}")
        return residual

    def linear(self, x: Array, weight: PackedWeight, residual: Array | None = None) -> Array:
        """[t, in] -> [t, columns of the weight], plus bias; with `residual` of that shape, added into it, in place."""
        calls = self._calls
        rows, width = x.shape
        if width != weight.in_features:
            raise ValueError(f"expected rows of {weight.in_features}, got {width}")
        y = self._target((rows, weight.columns), residual)
        adds = int(residual is not None)
        if weight.activation is not None:
            return self._activated(x, weight, residual)
        source, target = calls.address(x), calls.writable(y)
        calls.call(self._library.octavo_linear, calls.context(), weight.pointer, source, rows, target, adds)
        return y

    def _activated(self, x: Array, weight: PackedWeight, residual: Array | None) -> Array:
        """A gate and an up of two formats: their products, and then the activation."""
        if residual is not None:
            raise ValueError("a gate and an up of two formats have no residual")
        calls, rows = self._calls, x.shape[0]
        both = calls.new(rows, weight.out_features)
        arguments = calls.context(), weight.pointer, calls.address(x), rows, calls.address(both), 0
        calls.call(self._library.octavo_linear, *arguments)
        return self.silu_and_multiply(both)

    def linear_heads(self, x: Array, weights: NativeHeads) -> Array:
        """[t, n * in] -> [t, n * out]: each head's part times its own weight."""
        calls, heads = self._calls, weights.heads
        rows, width = x.shape
        if width != len(heads) * heads[0].in_features:
            raise ValueError(f"expected rows of {len(heads)} * {heads[0].in_features}, got {width}")
        y = calls.new(rows, len(heads) * heads[0].columns)
        pointers = calls.address(weights.pointers, INT64)
        function, source, target = self._library.octavo_linear_heads, calls.address(x), calls.address(y)
        calls.call(function, calls.context(), pointers, len(heads), source, rows, target)
        return y

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """[t, w_i] each -> [t, sum of w_i]."""
        calls, rows = self._calls, parts[0].shape[0]
        if any(part.ndim != 2 or part.shape[0] != rows for part in parts):
            raise ValueError(f"parts with as many rows were expected, got shapes {[part.shape for part in parts]}")
        width, first = sum(part.shape[1] for part in parts), 0
        y = calls.new(rows, width)
        for part in parts:
            own, source, target = part.shape[1], calls.address(part), calls.address(y)
            calls.call(self._library.octavo_copy_columns, calls.context(), source, rows, own, target, width, first)
            first += own
        return y

    def route(self, logits: Array, routing: Routing, bias: Array | None = None) -> Array:
        """[t, e] -> [t, e]: the scores of those that are chosen, else 0."""
        calls = self._calls
        rows, experts = logits.shape
        problem = routing.problem(experts)
        if problem is not None:
            raise ValueError(problem)
        if bias is not None and bias.shape != (experts,):
            raise ValueError(f"expected a bias of {experts} values, got shape {bias.shape}")
        y = calls.new(rows, experts)
        calls.call(
            self._library.octavo_route,
            calls.context(),
            calls.address(logits),
            rows,
            experts,
            _SCORINGS[routing.scoring],
            routing.groups,
            routing.chosen_groups,
            routing.group_best,
            routing.chosen,
            int(routing.normalise),
            routing.scale,
            None if bias is None else calls.address(bias),
            calls.address(y),
        )
        return y

    def experts(self, x: Array, routing: Array, weights: NativeExperts, residual: Array | None = None) -> Array:
        """[t, h] -> [t, h]: the experts' results, times routing [t, e], added in the order of the experts; with `residual`,
        into it, in place."""
        calls = self._calls
        rows, width = x.shape
        count = len(weights.down)
        if routing.shape != (rows, count):
            raise ValueError(f"expected routing of shape {(rows, count)}, got {routing.shape}")
        y = self._target((rows, width), residual)
        calls.call(
            self._library.octavo_experts,
            calls.context(),
            calls.address(weights.gate_up_pointers, INT64),
            calls.address(weights.down_pointers, INT64),
            count,
            calls.address(x),
            rows,
            width,
            calls.address(routing),
            calls.writable(y),
            int(residual is not None),
        )
        return y

    def rms_norm(self, x: Array, weight: Array, epsilon: float, residual: Array | None = None) -> Array:
        """x / sqrt(mean(x^2) + epsilon) * weight over the last axis. Contiguous [..., h]; with `residual` of that shape,
        added into it, in place."""
        calls = self._calls
        *outer, width = x.shape
        _check_vector(weight, width)
        y = self._target(x.shape, residual)
        calls.call(
            self._library.octavo_rms_norm,
            calls.context(),
            calls.address(x),
            calls.address(weight),
            math.prod(outer),
            width,
            epsilon,
            calls.writable(y),
            int(residual is not None),
        )
        return y

    def rms_norm_columns(self, x: Array, weight: Array, epsilon: float, first: int, count: int) -> None:
        """The norm of runs of columns of x [t, w], in place."""
        calls = self._calls
        (rows, stride), (width,) = x.shape, weight.shape
        if first < 0 or count < 0 or first + count * width > stride:
            raise ValueError(f"{count} runs of {width} columns from {first} on are not in rows of {stride}")
        function, own = self._library.octavo_rms_norm_columns, calls.writable(x)
        calls.call(function, calls.context(), own, rows, stride, first, count, calls.address(weight), width, epsilon)

    def layer_norm(self, x: Array, weight: Array, bias: Array | None, epsilon: float, *, in_place: bool = False) -> Array:
        """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis of [t, h]."""
        calls = self._calls
        rows, width = x.shape
        _check_vector(weight, width)
        if bias is not None:
            _check_vector(bias, width)
        y = x if in_place else calls.new(rows, width)
        shift = None if bias is None else calls.address(bias)
        source, scale, target = calls.address(x), calls.address(weight), calls.writable(y)
        function = self._library.octavo_layer_norm
        calls.call(function, calls.context(), source, scale, shift, rows, width, epsilon, target)
        return y

    def soft_cap(self, x: Array, cap: float) -> Array:
        """cap * tanh(x / cap), in place."""
        calls = self._calls
        rows, width = x.shape
        calls.call(self._library.octavo_soft_cap, calls.context(), calls.writable(x), rows, width, cap)
        return x

    def silu_and_multiply(self, gate_up: Array) -> Array:
        """[t, 2i] -> [t, i]: silu(first half) * second half."""
        calls = self._calls
        rows, width = gate_up.shape
        if width % 2:
            raise ValueError(f"expected rows of an even width, got {width}")
        y = calls.new(rows, width // 2)
        function = self._library.octavo_silu_and_multiply
        calls.call(function, calls.context(), calls.address(gate_up), rows, width // 2, calls.address(y))
        return y

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
        """Rotate q and k, and store k and v in `batch.slot_mapping`. IndexError for a slot, a layer, or a position of the
        table that does not exist."""
        calls = self._calls
        tokens = _qkv_tokens(qkv, heads)
        own = calls.cache(_own(cache, heads))
        slots, positions = batch.slot_mapping, batch.positions
        if slots.shape != (tokens,):
            raise ValueError(f"expected {tokens} slots, got shape {slots.shape}")
        if table is not None and positions.shape != (tokens,):
            raise ValueError(f"expected {tokens} positions, got shape {positions.shape}")
        rotation = (None, 0, 0) if table is None else calls.rotary_table(table, positions)
        calls.call(
            self._library.octavo_cache_write,
            calls.context(),
            own,
            layer,
            calls.address(qkv) if table is None else calls.writable(qkv),
            heads[0],
            calls.address(slots, INT64),
            tokens,
            *rotation,
            None if table is None else calls.address(positions, INT32),
            int(interleaved),
        )

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
        """Attention of the q heads over the paged cache: [t, n * d]. IndexError for a block that does not exist."""
        calls = self._calls
        tokens = _qkv_tokens(qkv, heads)
        own = calls.cache(_own(cache, heads))
        lengths, starts, tables = batch.seq_lens, batch.query_starts, batch.block_tables
        (sequences,) = lengths.shape
        if starts.shape != (sequences + 1,) or tables.ndim != 2 or tables.shape[0] != sequences:
            raise ValueError(f"{sequences} lengths, {starts.shape} query starts and tables of shape {tables.shape} differ")
        if sinks is not None and sinks.shape != heads[:1]:
            raise ValueError(f"expected {heads[0]} sinks, got shape {sinks.shape}")
        out = calls.new(tokens, heads[0] * heads[2])
        calls.call(
            self._library.octavo_attention,
            calls.context(),
            own,
            layer,
            calls.address(qkv),
            heads[0],
            tokens,
            calls.address(starts, INT32),
            calls.address(lengths, INT32),
            sequences,
            calls.address(tables, INT32),
            tables.shape[1],
            scale,
            _ALL_KEYS if window is None else window,
            soft_cap or 0.0,
            None if sinks is None else calls.address(sinks),
            int(causal),
            calls.address(out),
        )
        return out

    def sample(
        self, logits: Array, states: Sequence[SamplingState], logprobs_mode: str = "raw_logprobs"
    ) -> list[SampleResult]:
        """The next token of each sequence from `logits` [r, v]; one row never affects another."""
        tokens = SamplingRows(states).draw(self._library, self._context, logits)
        if min(tokens, default=0) < 0:
            results = [SampleResult(None if id < 0 else id, None, ERRORS.get(id)) for id in tokens]
        else:
            results = [SampleResult(id) for id in tokens]
        special = [row for row, state in enumerate(states) if state.is_special]
        for row in special:
            matcher = states[row].matcher
            if matcher is not None and matcher.error is not None:
                results[row] = SampleResult(None, None, matcher.error)
        scored = [row for row in special if states[row].params.logprobs is not None and results[row].error is None]
        if scored and logprobs_mode == "raw_logprobs":
            self._score_sampled(logits, states, results, scored)
        elif scored:
            for row in scored:
                token_id = results[row].token_id
                assert token_id is not None
                results[row].logprobs = sampled_logprobs(logits[row], states[row], token_id, logprobs_mode)
        return results

    def token_logprobs(self, logits: Array, token_ids: Sequence[int], top: int) -> list[TokenLogprobs]:
        """Logprobs of `token_ids` [r] and of the `top` (-1: all) most likely tokens in each row."""
        rows, width = logits.shape
        return self._score(logits, [width] * rows, token_ids, [width if top < 0 else min(top, width)] * rows)

    def _score_sampled(
        self, logits: Array, states: Sequence[SamplingState], results: Sequence[SampleResult], rows: list[int]
    ) -> None:
        sizes = [states[row].vocab_size for row in rows]
        tops = [states[row].params.logprobs or 0 for row in rows]
        tops = [size if top < 0 else min(top, size) for top, size in zip(tops, sizes, strict=True)]
        part = logits if len(rows) == len(logits) else logits[rows]
        tokens = [results[row].token_id or 0 for row in rows]
        for row, scores in zip(rows, self._score(part, sizes, tokens, tops), strict=True):
            results[row].logprobs = scores

    def _score(
        self, logits: Array, vocab_sizes: Sequence[int], token_ids: Sequence[int], tops: Sequence[int]
    ) -> list[TokenLogprobs]:
        rows, scores = score_rows(logits, vocab_sizes, token_ids, tops)
        self._check(self._library.octavo_score_rows(self._context, rows.ctypes.data, len(rows)))
        return scores.token_logprobs()

    def _check(self, status: int) -> None:
        if status:
            raise failure(status)

    def kv_cache(
        self, layers: int, blocks: int, block_size: int, kv_heads: int, head_size: int, dtype: np.dtype[Any]
    ) -> NativeCache:
        """A zeroed cache. MemoryError if the address space is not to be had; memory is touched as blocks are written."""
        return NativeCache(self._library, self._context, self.isa, layers, blocks, block_size, kv_heads, head_size, dtype)

    def close(self) -> None:
        """Give back this backend's scratch memory; the threads end with the last backend. Later calls are ValueErrors."""
        if self._context is not None:
            self._library.octavo_close(self._context)
            self._context = None
            self._calls = Immediate(None)

    def __del__(self) -> None:
        if self._context is not None:
            self._library.octavo_close(self._context)


def _alike(parts: Sequence[WeightPart], quantization: Quantization | None) -> list[list[WeightPart]]:
    """The parts in runs that one format and one order of the inputs can hold."""
    runs: list[list[WeightPart]] = []
    for part in parts:
        if runs and _is_alike(runs[-1][0], part, quantization):
            runs[-1].append(part)
        else:
            runs.append([part])
    return runs


def _is_alike(first: WeightPart, second: WeightPart, quantization: Quantization | None) -> bool:
    if WeightFormat.of(first, quantization) != WeightFormat.of(second, quantization):
        return False
    if not isinstance(first, PackedTensor) or not isinstance(second, PackedTensor):
        return first.dtype == second.dtype if isinstance(first, np.ndarray) and isinstance(second, np.ndarray) else False
    if first.order is None or second.order is None:
        return first.order is second.order
    return np.array_equal(first.order, second.order)


def _choose_isa(isa: str) -> str:
    supported = supported_isas()
    if isa == "auto":
        return supported[0]
    if isa not in (*supported, *EMULATED_ISAS):
        raise ConfigError(f"--cpu-isa {isa} is not available here; choose auto or one of: {', '.join(supported)}")
    return isa


def _check_vector(weight: Array, width: int) -> None:
    if weight.shape != (width,):
        raise ValueError(f"expected a weight of shape {(width,)}, got {weight.shape}")


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
