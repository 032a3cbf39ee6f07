"""A checkpoint as the rest sees it: a configuration and named tensors, whatever the file format."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from octavo.errors import LoadError
from octavo.kernels.ops import Ops, Quantization
from octavo.kernels.packed import PackedTensor, Packing, WeightPart
from octavo.weights import mxfp4
from octavo.weights.finite import are_finite

logger = logging.getLogger(__name__)

# Types that are stored number by number, under the names that safetensors and GGUF both have for them.
PLAIN_TYPES: Mapping[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
# Buffers that old checkpoints carry and every model computes for itself; scales of a cache of 8 bits, which finds its own.
_RECOMPUTED = (
    *(".rotary_emb.inv_freq", ".rotary_emb.cos_cached", ".rotary_emb.sin_cached"),
    "embeddings.position_ids",
    *(".q_scale", ".k_scale", ".v_scale", ".prob_output_scale"),
)
_FUSED = 8  # tensors that are taken before anything is made of them, or more


@dataclass(frozen=True)
class StoredProjection:
    """A projection that is stored in few bits, in one tensor or several; nothing of it is read yet."""

    shape: tuple[int, int]  # (out, in)
    packing: Packing
    names: tuple[str, ...]  # of its tensors, without the bias
    read: Callable[[], PackedTensor]  # its codes and scales; LoadError where the tensors do not fit each other
    can_unpack: bool = False  # whether `Checkpoint.read` gives its numbers too

    def stays_packed(self, dtype: np.dtype[Any], quantization: Quantization | None) -> bool:
        """Not to be rounded otherwise, nor beside float32: a packed one takes activations of 16 bits."""
        return not self.can_unpack or (quantization is None and dtype != np.float32)


class Checkpoint(Protocol):
    """An opened model. Tensor names and `hf_config` keys are Hugging Face's; the GGUF reader translates (and undoes
    llama.cpp's permutation of q and k)."""

    path: Path
    hf_config: dict[str, Any]  # config.json
    generation_config: dict[str, Any]  # generation_config.json, {} if there is none

    @property
    def dtype(self) -> str:
        """float32, float16 or bfloat16: what a configuration that does not say it gets. bfloat16 for GGUF."""

    @property
    def quantization_method(self) -> str | None:
        """By which name its configuration calls the method that it was quantized with; None where it does not."""

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name -> shape of every tensor, without reading any."""

    def nbytes(self, name: str) -> int:
        """Bytes of the tensor in the file, for the progress bar."""

    def read(self, name: str, dtype: np.dtype[Any], ops: Ops) -> NDArray[Any]:
        """The tensor as `dtype` (float32, float16 or bfloat16 of ml_dtypes): a read-only view on the mapped file if it
        is stored so, else converted, or dequantised by `ops`. uint8: of a tensor of bytes, as they are. KeyError for an
        unknown name; LoadError for a stored type that cannot be read."""

    def release(self, names: Iterable[str]) -> None:
        """Their pages of the mapped file need not stay in memory; views of them stay valid."""

    def projection(self, name: str) -> StoredProjection | None:
        """The projection whose matrix would be `name.weight`, where it is to stay packed; None where it is an ordinary
        tensor, or not there. LoadError where it is stored in a way that is not supported."""


Change = Callable[[NDArray[Any]], NDArray[Any]]


@dataclass(frozen=True)
class _View:
    """What a name, and all names below it, mean: other names, and what `change` makes of their tensors (None: nothing)."""

    stored: str
    change: Change | None


class _Ledger:
    """What all scopes of one load share: which tensors nobody took yet, and how many bytes are done."""

    def __init__(self, checkpoint: Checkpoint, ops: Ops, progress: Callable[[int, int], None] | None) -> None:
        self.checkpoint = checkpoint
        self.ops = ops
        self.shapes = checkpoint.shapes()
        self.pending = set(self.shapes)
        self.aliases: dict[str, str] = {}  # name asked for -> name stored
        self.views: dict[str, _View] = {}
        self.total = sum(checkpoint.nbytes(name) for name in self.shapes)
        self.done = 0
        self.progress = progress
        self.recent: deque[str] = deque(maxlen=_FUSED)  # tensors that may be looked at until others are taken

    def settle(self, name: str) -> None:
        """Mark a stored tensor as dealt with (once) and report the progress."""
        self.checkpoint.release(self.recent)
        self.recent.append(name)
        if name not in self.pending:
            return
        self.pending.discard(name)
        self.done += self.checkpoint.nbytes(name)
        if self.progress is not None:
            self.progress(self.done, self.total)


class Weights:
    """Strict, pull-based loading: building a model takes each tensor by name and shape; `finish` refuses leftovers.

    `scope("model").scope("layers.3")` prefixes names. A family's file is then its own mapping. `progress` is called with
    (bytes done, bytes in all), in file bytes, after each tensor. Whoever takes a projection has the backend round it as
    `quantization` says, so that no more than one layer is in memory unrounded. Those that a checkpoint has packed stay as
    they are, unless it can unpack them to be rounded or to be float32; `activation_bits` is what activations are rounded to
    beside their integers.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: np.dtype[Any],
        ops: Ops,
        progress: Callable[[int, int], None] | None = None,
        *,
        quantization: Quantization | None = None,
        activation_bits: int = 16,
    ) -> None:
        self.dtype = dtype
        self.quantization = quantization  # of projections
        self._activation_bits = activation_bits  # beside packed ones
        self._ledger = _Ledger(checkpoint, ops, progress)
        self._prefix = ""

    def scope(self, name: str) -> Weights:
        """The same weights, with `name.` before every name asked for."""
        scoped = copy.copy(self)
        scoped._prefix = f"{self._prefix}{name}."
        return scoped

    def has(self, name: str) -> bool:
        """Whether a tensor of that name is stored, or a packed projection in place of a `.weight`."""
        full = self._prefix + name
        if full in self._ledger.shapes:
            return True
        return full.endswith(".weight") and self._ledger.checkpoint.projection(full.removesuffix(".weight")) is not None

    def view(self, name: str, stored: str, change: Change | None = None) -> None:
        """Let `name`.weight and all other names that begin with `name` be those that begin with `stored`, which may be names
        of another view, as `change` makes each of the tensors."""
        self._ledger.views[self._prefix + name] = _View(self._prefix + stored, change)

    def split(self, stored: str, rows: Mapping[str, int]) -> None:
        """Let the first rows of the projection `stored` be one of the first name in `rows`, the next ones of the second.
        LoadError where it has more rows or fewer."""
        weight, changes = self._resolve(f"{self._prefix}{stored}.weight")
        shape, wanted = self._ledger.shapes.get(weight), sum(rows.values())
        if shape is not None and not changes and shape[0] != wanted:
            raise self._misshapen(weight, (wanted, *shape[1:]))
        packed = self._ledger.checkpoint.projection(weight.removesuffix(".weight")) if shape is None else None
        if packed is not None and not changes and packed.shape[0] != wanted:
            raise self._misshapen_projection(weight.removesuffix(".weight"), packed, (wanted, *packed.shape[1:]))
        start = 0
        for name, size in rows.items():
            self.view(name, stored, itemgetter(slice(start, start + size)))
            start += size

    def ignore(self, name: str) -> None:
        """Let a tensor be stored that no model needs, or all whose names begin with `name` and a dot."""
        stored = self._resolve(self._prefix + name)[0]
        for each in [each for each in self._ledger.pending if each == stored or each.startswith(f"{stored}.")]:
            self._ledger.settle(each)

    def ignore_all(self, name: str) -> None:
        """The same for all tensors of this scope, as they are stored, whose names begin with `name` and a dot."""
        for stored in [each for each in self._ledger.pending if each.startswith(f"{self._prefix}{name}.")]:
            self._ledger.settle(stored)

    def take(self, name: str, shape: Sequence[int], dtype: np.dtype[Any] | None = None) -> NDArray[Any]:
        """The tensor as `dtype`, by default that of all weights (converted only if the file differs). LoadError names a
        missing tensor or both shapes."""
        full = self._prefix + name
        stored, changes = self._resolve(self._ledger.aliases.get(full, full))
        if stored not in self._ledger.shapes:
            raise LoadError(f"{self._ledger.checkpoint.path} has no tensor {stored}, which this architecture needs")
        if not changes and self._ledger.shapes[stored] != tuple(shape):
            raise self._misshapen(stored, shape)  # before anything is read
        tensor = self._read(stored, dtype or self.dtype)
        try:
            for change in changes:
                tensor = change(tensor)
        except ValueError:  # it cannot be cut into heads of the configuration
            raise self._misshapen(stored, shape, f" for {full}") from None
        if tensor.shape != tuple(shape):
            raise self._misshapen(stored, shape, f" for {full}")
        self._ledger.settle(stored)
        return tensor

    def take_projection(
        self, name: str, shape: tuple[int, int], *, bias: bool = False
    ) -> tuple[WeightPart, NDArray[Any] | None]:
        """The matrix [out, in] of the projection `name` and its bias [out]: an array of `dtype`, or packed as the checkpoint
        has it. A packed one may have a bias that the architecture does not speak of. LoadError as `take`."""
        ledger, full = self._ledger, f"{self._prefix}{name}.weight"
        stored, changes = self._resolve(ledger.aliases.get(full, full))
        stored = stored.removesuffix(".weight")
        packed = ledger.checkpoint.projection(stored)
        if packed is None or not packed.stays_packed(self.dtype, self.quantization):
            return self.take(f"{name}.weight", shape), self.take(f"{name}.bias", shape[:1]) if bias else None
        matrix = self._read_packed(packed)
        matrix = replace(matrix, packing=matrix.packing.with_activations(self._activation_bits))
        use = f" for {self._prefix}{name}" if changes else ""
        try:
            for change in changes:
                matrix = matrix.changed(change)
        except ValueError:  # it cannot be cut into heads of the configuration
            raise self._misshapen_projection(stored, packed, shape, use) from None
        if matrix.shape != shape:
            raise self._misshapen_projection(stored, packed, shape, use)
        for tensor in packed.names:
            ledger.settle(tensor)
        has_bias = bias or f"{stored}.bias" in ledger.shapes
        return matrix, self.take(f"{name}.bias", shape[:1]) if has_bias else None

    def _resolve(self, name: str) -> tuple[str, list[Change]]:
        """The stored tensor that a whole name means, and what is done with it, in order."""
        views, changes = dict(self._ledger.views), list[Change]()
        while (prefix := _longest_prefix(views, name)) is not None:
            view = views.pop(prefix)  # each counts once: `model` may be `model.decoder`
            name = (view.stored + name[len(prefix) :]).lstrip(".")
            if view.change is not None:
                changes.insert(0, view.change)
        return name, changes

    def _misshapen(self, stored: str, wanted: Sequence[int], use: str = "") -> LoadError:
        path, found = self._ledger.checkpoint.path, list(self._ledger.shapes[stored])
        return LoadError(f"{path}: tensor {stored} has shape {found}, but the configuration needs {list(wanted)}{use}")

    def _misshapen_projection(
        self, stored: str, packed: StoredProjection, wanted: Sequence[int], use: str = ""
    ) -> LoadError:
        path, found = self._ledger.checkpoint.path, list(packed.shape)
        return LoadError(f"{path}: projection {stored} has shape {found}, but the configuration needs {list(wanted)}{use}")

    def tie(self, name: str, other: str) -> None:
        """Declare that both names mean one tensor (input and output embedding), then `take(name)`. Either may be the only
        one stored; when both are, `other` is not used, with a warning if it differs."""
        ledger = self._ledger
        first, second = (self._resolve(self._prefix + each)[0] for each in (name, other))
        if second not in ledger.shapes:
            return
        if first not in ledger.shapes:
            ledger.aliases[self._prefix + name] = self._prefix + other
            return
        if not self._is_equal(first, second):
            logger.warning(
                "%s: %s is stored but tied to %s, and differs from it; it is not used", ledger.checkpoint.path, second, first
            )
        ledger.settle(second)

    def finish(self) -> None:
        """LoadError naming the tensors that nobody took. Buffers that models compute for themselves are no error."""
        ledger = self._ledger
        unused = sorted(name for name in ledger.pending if not name.endswith(_RECOMPUTED))
        if unused:
            more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
            raise LoadError(
                f"{ledger.checkpoint.path}: this architecture does not use {'tensors' if len(unused) > 1 else 'tensor'} "
                f"{', '.join(unused[:3])}{more}"
            )
        for name in sorted(ledger.pending):
            ledger.settle(name)
        ledger.checkpoint.release(ledger.shapes)  # the system maps more pages than are asked for

    def take_matrices(self, name: str, shape: tuple[int, int, int]) -> Iterator[WeightPart]:
        """The matrices [out, in] of `shape` [count, out, in], one by one: of the tensor `name` [count, in, out] as
        `dtype`, or packed as MXFP4 where there are `name`_blocks and `name`_scales. LoadError as `take`, with the first."""
        count, outputs, inputs = shape
        if not self.has(f"{name}_blocks"):
            yield from self.take(name, (count, inputs, outputs)).transpose(0, 2, 1)
            return
        groups, bytes8 = (count, outputs, inputs // mxfp4.GROUP), np.dtype(np.uint8)
        blocks = self.take(f"{name}_blocks", (*groups, mxfp4.GROUP // 2), bytes8)
        scales = self.take(f"{name}_scales", groups, bytes8)
        for number in range(count):
            matrix = self._packed_mxfp4(f"{name}_scales", blocks[number], scales[number])
            yield replace(matrix, packing=matrix.packing.with_activations(self._activation_bits))

    def _packed_mxfp4(self, name: str, blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> PackedTensor:
        return mxfp4.mxfp4_tensor(f"{self._prefix}{name}", blocks, scales)

    def _read(self, stored: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """LoadError for a matrix that is to be rounded and is not finite: the rounding would hide it."""
        ledger = self._ledger
        tensor = ledger.checkpoint.read(stored, dtype, ledger.ops)
        if self.quantization is not None and tensor.ndim > 1 and tensor.dtype == self.dtype and not are_finite(tensor):
            raise LoadError(
                f"{ledger.checkpoint.path}: tensor {stored} holds numbers that are not finite in {dtype}, and cannot be "
                "rounded as --quantization asks; the file may be damaged"
            )
        return tensor

    def _read_packed(self, projection: StoredProjection) -> PackedTensor:
        return projection.read()

    def _is_equal(self, name: str, other: str) -> bool:
        ledger = self._ledger
        if ledger.shapes[name] != ledger.shapes[other]:
            return False
        first, second = self._read(name, self.dtype), self._read(other, self.dtype)
        return bool(np.array_equal(first.view(np.uint8), second.view(np.uint8)))


class WeightShapes(Weights):
    """The same tensors by name, shape and dtype, without content: nothing is read, and they take no memory."""

    def _read(self, stored: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        return np.broadcast_to(np.zeros((), dtype), self._ledger.shapes[stored])

    def _packed_mxfp4(self, name: str, blocks: NDArray[np.uint8], scales: NDArray[np.uint8]) -> PackedTensor:
        return PackedTensor.without_content(mxfp4.PACKING, (len(scales), mxfp4.GROUP * scales.shape[1]))

    def _read_packed(self, projection: StoredProjection) -> PackedTensor:
        return PackedTensor.without_content(projection.packing, projection.shape)

    def _is_equal(self, name: str, other: str) -> bool:
        return True  # nobody knows yet


def _longest_prefix(views: Mapping[str, object], name: str) -> str | None:
    """Of the names in `views` that are whole parts of `name`'s beginning."""
    parts = name.split(".")
    found = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((prefix for prefix in found if prefix in views), None)
