"""From an `EngineConfig` and a model's path to the plan of its memory, without reading a weight."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from octavo.cache.memory import usable_memory
from octavo.cache.plan import MemoryPlan, Sizes, in_words, plan_memory, resolve_limits
from octavo.config import OPTIONS, EngineConfig
from octavo.errors import ConfigError, LoadError
from octavo.kernels.ops import Ops, Quantization
from octavo.kernels.packed import Packing
from octavo.kernels.select import select_ops
from octavo.models.config import ModelConfig
from octavo.models.sizes import activation_bytes, block_bytes, weights_bytes
from octavo.models.transformers import foreign_bytes
from octavo.pooling.resolve import open_served, pooling_options
from octavo.pooling.settings import Pooling
from octavo.runner.model_runner import LOGITS_BYTES
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.loader import packed_activation_bits, weights_dtype, weights_quantization

_CACHE_DTYPES = {
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
    "int8": np.dtype(np.int8),
}
_RESIZING = {"kv_cache_dtype": "int8", "quantization": "int8"}  # what makes blocks or weights smaller
_SHOWN_LENGTHS = (1024, 4096)  # tokens, beside max_model_len


@dataclass(frozen=True)
class PlannedModel:
    """An opened checkpoint, the backend that is to run it, and what goes where."""

    config: EngineConfig
    checkpoint: Checkpoint
    model: ModelConfig
    dtype: np.dtype[Any]  # of the weights
    cache_dtype: np.dtype[Any]
    quantization: Quantization | None  # of projections
    ops: Ops
    memory: MemoryPlan
    pooling: Pooling | None = None  # of a model that generates no text

    def table(self) -> dict[str, str]:
        """Names and values for people."""
        model, plan, sizes, limits = self.model, self.memory, self.memory.sizes, self.memory.limits
        rows = {
            "model": str(self.checkpoint.path),
            "architecture": f"{model.architecture}, {model.num_layers} layers, hidden size {model.hidden_size}"
            + (", by Transformers' code" if model.is_foreign else ""),
            **({} if self.pooling is None else {"pooling": self.pooling.describe()}),
            "dtype": self.dtype.name + self._quantized(),
            "backend": f"{self.ops.name} ({self.ops.description})",
            "memory": f"{in_words(plan.usable)} usable, {in_words(plan.budget)} of it allowed by --memory-utilization "
            f"{self.config.memory_utilization:g}",
            "weights": f"{sizes.weights / 2**20:,.0f} MiB",
            "activations": f"{sizes.activations / 2**20:,.0f} MiB at most",
            "KV cache dtype": self.cache_dtype.name,
            "KV cache": f"{plan.num_blocks:,} blocks of {plan.block_size} tokens, {in_words(plan.kv_cache)} at most",
            "KV bytes per token": f"{-(-sizes.block // plan.block_size):,}",
            "requests that fit": ", ".join(self._requests()),
            "limits": f"max_model_len {limits.max_model_len:,}, max_num_seqs {limits.max_num_seqs:,}, "
            f"max_num_batched_tokens {limits.max_num_batched_tokens:,}",
        }
        if plan.swap_space:
            rows["swap space"] = f"{in_words(plan.swap_space)} at most"
        if more := self.more_room():
            rows["more would fit with"] = ", ".join(f"{flag} ({count:,.1f})" for flag, count in more.items())
        return rows

    def _quantized(self) -> str:
        method = self.checkpoint.quantization_method
        if self.quantization is not None:
            shown = f", weights {self.quantization}"
        elif method is not None:
            shown = f", weights as {method} stored them{self._activations()}"
        elif packings := sorted({str(packing) for packing in self._packings()}):
            shown = f", weights as they are stored: {' and '.join(packings)}{self._activations()}"
        else:
            return ""
        return shown + (" (numpy unpacks them: nothing is saved)" if self.ops.name == "numpy" else "")

    def _activations(self) -> str:
        """What they are rounded to beside weights that stay packed."""
        bits = packed_activation_bits(self.config)
        return f" (activations int{bits})" if any(packing.rounds_activations for packing in self._packings()) else ""

    def check_activations(self) -> None:
        """ConfigError for a rounding of activations that no weight has a use for."""
        if self.config.quantization_activations == "auto" or self.quantization or self.checkpoint.quantization_method:
            return
        if not self._activations():
            raise OPTIONS["quantization_activations"].error(
                f"has no meaning here: {self.checkpoint.path} keeps no weights as integers in {self.dtype.name}; "
                "--quantization int8 or int4 makes them so"
            )

    def _packings(self) -> set[Packing]:
        """Of the tensors that stay packed."""
        names = {name.rpartition(".")[0] for name in self.checkpoint.shapes()}
        found = (self.checkpoint.projection(name) for name in names)
        return {each.packing for each in found if each is not None and each.stays_packed(self.dtype, None)}

    def more_room(self) -> dict[str, float]:
        """Flags, each with a value under which more requests of max_model_len would fit, and how many."""
        found = {}
        for name, value in self._candidates().items():
            sizes, usable = self.memory.sizes, self.memory.usable
            try:
                config = replace(self.config, **{name: value})
                if name in _RESIZING:
                    sizes = _sizes(config, self.checkpoint, self.model, self.ops)
                other = _divide(config, self.model, sizes, usable)
            except ConfigError:
                continue  # it does not go together with the other options
            count = other.requests_of(self.memory.limits.max_model_len)
            if math.floor(count) > self.memory.requests_of(self.memory.limits.max_model_len):
                found[f"{OPTIONS[name].flag} {value}"] = count
        return found

    def _candidates(self) -> dict[str, Any]:
        config, plan = self.config, self.memory
        left = plan.budget - plan.fixed
        if config.num_gpu_blocks_override is not None:
            return {"num_gpu_blocks_override": left // plan.sizes.block}
        if config.kv_cache_memory_bytes is not None:
            return {"kv_cache_memory_bytes": left}
        values: dict[str, Any] = {
            "memory_utilization": 1.0,
            "max_num_batched_tokens": plan.limits.max_num_batched_tokens // 4,
            "max_num_seqs": 2 * plan.limits.max_num_seqs,
            "preemption_mode": "recompute",
        }
        unset = {name: value for name, value in _RESIZING.items() if getattr(config, name) == OPTIONS[name].default}
        return values | unset

    def _requests(self) -> list[str]:
        longest = self.memory.limits.max_model_len
        lengths = [*(length for length in _SHOWN_LENGTHS if length < longest), longest]
        return [f"{self.memory.requests_of(length):,.1f} of {length:,} tokens" for length in lengths]


def plan_model(config: EngineConfig, path: Path, usable: int | None = None) -> PlannedModel:
    """Open the model, choose its backend and divide `usable` bytes (None: what this process may use). LoadError and
    ConfigError name what is wrong with the model's files, or what does not fit and what would."""
    served = open_served(config, path)
    checkpoint, model = served.checkpoint, served.model
    if served.pooling is not None:
        config = pooling_options(config, model)
    ops = select_ops(config)
    sizes = _sizes(config, checkpoint, model, ops)
    memory = _divide(config, model, sizes, usable_memory() if usable is None else usable)
    dtype = weights_dtype(config.dtype, model.dtype)
    model = model.with_sequences_of(memory.limits.max_model_len)
    planned = PlannedModel(
        config,
        checkpoint,
        model,
        dtype,
        _cache_dtype(config, dtype),
        weights_quantization(config, checkpoint),
        ops,
        memory,
        served.pooling,
    )
    planned.check_activations()
    return planned


def _cache_dtype(config: EngineConfig, weights: np.dtype[Any]) -> np.dtype[Any]:
    choice = config.kv_cache_dtype
    return weights if choice == "auto" else _CACHE_DTYPES[choice]


def _sizes(config: EngineConfig, checkpoint: Checkpoint, model: ModelConfig, ops: Ops) -> Sizes:
    """All but the activations, which depend on the limits."""
    dtype, quantization = weights_dtype(config.dtype, model.dtype), weights_quantization(config, checkpoint)
    if not model.is_foreign:
        weights = weights_bytes(model, checkpoint, dtype, ops, quantization)
    elif checkpoint.quantization_method is not None:
        raise LoadError(
            f"{checkpoint.path} is quantized with {checkpoint.quantization_method}, and of an architecture that only "
            "Transformers' code computes (--model-impl); take its 16-bit original"
        )
    elif quantization is None:
        weights = foreign_bytes(checkpoint, dtype)
    else:
        raise ConfigError("--quantization is not for models that Transformers' code computes (--model-impl)")
    return Sizes(weights, block_bytes(model, config.block_size, _cache_dtype(config, dtype), ops), 0)


def _divide(config: EngineConfig, model: ModelConfig, sizes: Sizes, usable: int) -> MemoryPlan:
    """The plan with the activations that the configuration's limits need."""
    limits = resolve_limits(config, model)
    tokens = max(limits.max_num_batched_tokens, limits.max_num_seqs)
    activations = activation_bytes(model, tokens, LOGITS_BYTES)
    return plan_memory(config, limits, replace(sizes, activations=activations), usable)
