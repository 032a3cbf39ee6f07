"""The op table: every operation that a model's forward pass is made of. One implementation per backend.

Arrays are numpy's. Activations are float32 in every CPU backend (weights and cache keep their own dtype; products
accumulate in float32), so that a layer never asks which backend it runs on. What `linear_weight` and `kv_cache` return
is opaque: its layout belongs to the backend.

The promise that the whole engine rests on: a row's result depends on that row alone, never on how many rows there are,
nor on how a prompt was cut into steps, nor on the number of threads. Bit for bit in `cpu`; `numpy` promises it only as
far as BLAS does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.engine.plan import RowResult
from octavo.engine.request import TokenLogprobs
from octavo.kernels.packed import WeightPart
from octavo.runner.batch import Batch

if TYPE_CHECKING:
    from octavo.sampling.state import SamplingState

Array = NDArray[np.float32]
Handle = Any  # what one backend made and only the same backend reads
RotaryTable = Callable[[int], Array]
"""n -> [at least n positions, r]: cosines in the first r / 2 columns, sines in the rest."""

UNGATED = "ungated_"  # before the name of an activation that is applied to every output, and multiplied by nothing
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "clamped_silu")
"""Elfwing et al. (2018), Hendrycks and Gimpel (2016) exactly and by tanh, and max(0, x); and gpt-oss's x sigmoid(1.702 x) of
x up to 7, which gates (up + 1), up within 7 of 0."""


def is_gated(activation: str | None) -> bool:
    """Whether `activation` of a `linear_weight` multiplies the second half of the outputs by the first, activated."""
    return activation is not None and not activation.startswith(UNGATED)


@dataclass(frozen=True)
class Quantization:
    """A weight rounded to the nearest of few numbers while loading, and what its activations are rounded to.

    bits 8: w = scale q, q in [-127, 127] or, where `is_float`, E4M3 up to 448, one float32 scale for each output. bits 4:
    w = scale q + least, q in [0, 15], with both (float16) for each output and `group` inputs, a multiple of 16. Beside
    integers activations become integers of `activation_bits` (8: up to 127, 16: up to 32512) times a scale for each row and
    each `activation_group` of inputs (0: all of them)."""

    bits: int
    group: int = 0
    activation_bits: int = 16
    is_float: bool = False

    @property
    def rounds_activations(self) -> bool:
        """Whether activations become integers too."""
        return not self.is_float

    @property
    def activation_group(self) -> int:
        """The weight's groups; beside 8 bits 64 inputs for 8-bit activations, since one outlier would cost a whole row."""
        return self.group if self.bits == 4 else 64 if self.activation_bits == 8 else 0

    def __str__(self) -> str:
        """For the start-up table: `int4 in groups of 32 (activations int16)`."""
        if self.is_float:
            return f"fp{self.bits}"
        groups = f" in groups of {self.group}" if self.bits == 4 else ""
        return f"int{self.bits}{groups} (activations int{self.activation_bits})"

    @property
    def of_head(self) -> Quantization:
        """Of the head, and of an embedding tied to it: 8 bits, since every logit comes straight from it. (An embedding of
        its own is read a few rows at a time, and is not rounded.)"""
        return self if self.is_float else Quantization(8, activation_bits=self.activation_bits)


@dataclass(frozen=True)
class Routing:
    """How experts are chosen. Their scores are the softmax of the logits, or each logit's sigmoid; the `chosen` largest of a
    row stay (of equal ones the first), and of these the scores are the routing weights, divided by their sum if
    `normalise`, times `scale`.

    The experts lie in `groups` of one size, and only those of the `chosen_groups` best may be chosen: a group is as good as
    the sum of its `group_best` largest scores (DeepSeek-AI, 2024)."""

    chosen: int
    normalise: bool = False
    scoring: str = "softmax"  # or "sigmoid"
    groups: int = 1
    chosen_groups: int = 1
    group_best: int = 1
    scale: float = 1.0

    def problem(self, experts: int) -> str | None:
        """What is wrong with it for so many experts."""
        if not 1 <= self.chosen <= experts:
            return f"{self.chosen} of {experts} experts cannot be chosen"
        if self.groups < 1 or experts % self.groups:
            return f"{experts} experts do not make {self.groups} groups of one size"
        size = experts // self.groups
        if not 1 <= self.chosen_groups <= self.groups or not 1 <= self.group_best <= size:
            return f"{self.chosen_groups} of {self.groups} groups of {size}, by the {self.group_best} best of each"
        if self.chosen > self.chosen_groups * size:
            return f"{self.chosen} experts cannot be chosen in {self.chosen_groups} groups of {size}"
        return None


class KVCache(Protocol):
    """K and V of all layers, in blocks. Zeroed (lazily, by the operating system) at the start."""

    num_blocks: int
    block_size: int
    nbytes: int
    block_bytes: int  # of one block, all layers

    @property
    def layout(self) -> str:
        """What the bytes of a block depend on beside the model: caches of which this is equal may read each other's."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks, all layers, from the first to the second of each pair."""

    def release(self) -> None:
        """Give the memory back until blocks are written again; what they held is lost."""

    def swap_out(self, moves: Sequence[tuple[int, int]], host: NDArray[np.uint8]) -> None:
        """Copy whole blocks, all layers, to slots of `host` [slots, block_bytes]: pairs of (block, slot)."""

    def swap_in(self, moves: Sequence[tuple[int, int]], host: NDArray[np.uint8]) -> None:
        """Copy slots of `host` [slots, block_bytes] to whole blocks: pairs of (slot, block). Other threads may use other
        blocks meanwhile."""

    def close(self) -> None:
        """Give the memory back."""


Forward = Callable[[Batch, KVCache], Array]
"""A model's forward pass, to the hidden states [r, h] of the batch's `logits_rows` or on to their logits [r, v]. It calls
operations and passes on what they return, and looks at no value of the batch: what it does is the same for every batch, so
that a backend may record it once."""


class Ops(Protocol):
    """t: tokens (rows), r: result rows, h: hidden size, n: heads, k: KV heads, d: head size. All float32 unless stated."""

    name: str  # "cpu" or "numpy"
    description: str  # for the start-up table, e.g. "avx512_bf16, 2 threads"

    # -- weights, once at load ------------------------------------------------------------------------------------

    def linear_weight(
        self,
        parts: Sequence[WeightPart],
        biases: Sequence[NDArray[Any]] | None = None,
        *,
        quantization: Quantization | None = None,
        activation: str | None = None,
    ) -> Handle:
        """Pack [out_i, in] weights, stacked along `out` (QKV and gate/up become one product). Arrays are of one dtype
        (float32, bfloat16 or float16), and rounded to integers if `quantization` says so; a `PackedTensor` keeps its codes
        and stands for just the numbers that they say, beside arrays or others too. `biases`: one [out_i] per part.
        `activation`, one of ACTIVATIONS: two parts, gate and up, of which `linear` gives silu(gate) * up; with UNGATED
        before it: `linear` gives silu(y) of every output y."""

    def weight_bytes(
        self,
        parts: Sequence[WeightPart],
        *,
        quantization: Quantization | None = None,
        activation: str | None = None,
    ) -> int:
        """Bytes that such a `linear_weight` takes in memory, padding included, biases not. The parts' contents are not
        looked at."""

    def expert_weights(self, gate_up: Sequence[Handle], down: Sequence[Handle]) -> Handle:
        """The weights of a mixture of experts: of each a `linear_weight` [2i, h] with an activation, and one [h, i]; all
        experts of one shape and format."""

    def head_weights(self, weights: Sequence[Handle]) -> Handle:
        """The weights of `linear_heads`: a `linear_weight` [out, in] for each head, all of one shape and format."""

    def vector_weight(self, weight: NDArray[Any]) -> Array:
        """A norm's weight or bias as float32 [h]."""

    def dequantize(
        self, raw: NDArray[np.uint8], type_name: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """GGUF blocks (`type_name` as in gguf.GGMLQuantizationType: Q4_1, Q6_K, ...) to `dtype` [shape], rounding the
        float32 value that the gguf library gives to nearest even."""

    # -- the step -------------------------------------------------------------------------------------------------

    def record(self, forward: Forward) -> Forward:
        """The same function in the form in which this backend repeats it best. It may run `forward` once, with stand-ins
        for a batch's arrays, note the operations, and repeat these from then on."""

    def select_rows(self, x: Array, rows: NDArray[np.int32]) -> Array:
        """[t, h] -> the rows [r, h]."""

    def embedding(
        self, token_ids: NDArray[np.int32], weight: Handle, *, scale: float = 1.0, residual: Array | None = None
    ) -> Array:
        """[t] ids -> [t, h] rows of a `linear_weight` of one part [vocabulary, h] (tied heads share it), times `scale`; with
        `residual`: added into it, in place."""

    def linear(self, x: Array, weight: Handle, residual: Array | None = None) -> Array:
        """[t, in] -> [t, out], plus bias, activated; with a gated activation [t, out / 2]. With `residual` of that shape:
        adds the result into it, in place, and returns it."""

    def linear_heads(self, x: Array, weights: Handle) -> Array:
        """[t, n * in] -> [t, n * out]: each head's part times a weight of its own (`head_weights`)."""

    def concatenate(self, parts: Sequence[Array]) -> Array:
        """[t, w_i] each -> [t, sum of w_i]; an array may be there several times."""

    def route(self, logits: Array, routing: Routing, bias: Array | None = None) -> Array:
        """[t, e] logits -> [t, e] routing weights, 0 where an expert is not chosen. `bias` [e] is added to the scores for
        the choice alone (Wang et al., 2024). A row with NaN gives NaN."""

    def experts(self, x: Array, routing: Array, weights: Handle, residual: Array | None = None) -> Array:
        """[t, h] -> [t, h]: the sum over the experts, from first to last, of routing [t, e] times the expert's result
        (Shazeer et al., 2017). Experts whose routing is 0 are left out. With `residual`: added into it, in place."""

    def rms_norm(self, x: Array, weight: Array, epsilon: float, residual: Array | None = None) -> Array:
        """x / sqrt(mean(x^2) + epsilon) * weight over the last axis (Zhang and Sennrich, 2019). Contiguous [..., h]. With
        `residual`: added into it, in place."""

    def rms_norm_columns(self, x: Array, weight: Array, epsilon: float, first: int, count: int) -> None:
        """In each row of x [t, w], in place: the `rms_norm` of each of `count` neighbouring runs of len(weight) columns,
        from column `first` on. (Of the q or k heads of qkv, one by one or all as one.)"""

    def layer_norm(self, x: Array, weight: Array, bias: Array | None, epsilon: float, *, in_place: bool = False) -> Array:
        """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis of [t, h] (Ba et al., 2016)."""

    def soft_cap(self, x: Array, cap: float) -> Array:
        """cap * tanh(x / cap), in place, of [r, v] logits; returns x."""

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
        """Store the k and v heads of qkv [t, (n + 2k) * d] in the slots `batch.slot_mapping`, rounded to the cache's
        dtype: int8 with a scale of its own for each token's k and v of each head, the largest magnitude becoming 127;
        float8_e4m3fn at +-448 where a value lies beyond. heads = (n, k, d).

        With a `table` the q and k heads are rotated by `batch.positions` before, in place, in the half-split ("neox")
        form (Su et al., 2021), or `interleaved`: pairs are neighbours; the columns of the table are as many as the
        dimensions that are rotated."""

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
        """Attention of the q heads over the paged keys and values (those of this step were written before):
        [t, n * d]. Keys are walked in fixed tiles from position 0; softmax in float32; query head i uses KV head
        i // (n / k).

        `window`: a query sees the last `window` keys up to its own; blocks of the table that lie before those of a
        sequence's first query are not looked at. `soft_cap`: scores become soft_cap * tanh(score / soft_cap) (Gemma 2).
        `sinks` [n]: a score of each head that takes part in the softmax and has no value (gpt-oss).
        Without `causal` a query sees the keys behind its own as well: all that the sequence has (encoders)."""

    def sample(self, logits: Array, states: Sequence[SamplingState], logprobs_mode: str = "raw_logprobs") -> list[RowResult]:
        """The next token of each sequence from `logits` [r, v], as `octavo.sampling.sampler` writes it, bit for bit. Neither
        the logits nor the states are changed. `logprobs_mode` is that of `EngineConfig`."""

    def token_logprobs(self, logits: Array, token_ids: Sequence[int], top: int) -> list[TokenLogprobs]:
        """Logprobs of `token_ids` [r] and of the `top` (-1: all) most likely tokens in each row of logits [r, v], as
        `octavo.sampling.logprobs` writes it, bit for bit."""

    def kv_cache(
        self, layers: int, blocks: int, block_size: int, kv_heads: int, head_size: int, dtype: np.dtype[Any]
    ) -> KVCache:
        """A zeroed cache; memory is reserved, and touched only as blocks are written. dtype: float32, bfloat16, float16,
        int8 or ml_dtypes' float8_e4m3fn."""

    def close(self) -> None:
        """Stop the backend's threads."""
