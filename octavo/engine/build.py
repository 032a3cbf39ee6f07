"""From an `EngineConfig` to a running engine, reporting each phase and its seconds."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from octavo.cache.memory import usable_memory
from octavo.cache.plan import MemoryPlan, plan_memory
from octavo.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.request import EngineStatus
from octavo.kernels.ops import Ops
from octavo.kernels.select import select_ops
from octavo.models.config import ModelConfig, read_model_config
from octavo.models.registry import build_model
from octavo.runner.model_runner import ModelRunner
from octavo.weights.checkpoint import Checkpoint, Weights
from octavo.weights.hub import resolve_model
from octavo.weights.loader import open_checkpoint, weights_dtype

Report = Callable[[EngineStatus], None]

logger = logging.getLogger(__name__)


def build_engine(config: EngineConfig, report: Report) -> Engine:
    """Find, plan, load, allocate. `report` gets the phases as they go, and last the status "ready" with the start-up table.

    StartupError (ConfigError, LoadError) with one line that says what to change.
    """
    phases = _Phases(report)
    phases.begin("starting")
    path = resolve_model(config, phases.download)
    phases.begin("planning")
    checkpoint = open_checkpoint(path)
    model_config = read_model_config(checkpoint)
    dtype = weights_dtype(config.dtype, model_config.dtype)
    ops = select_ops(config)
    plan = plan_memory(
        config,
        model_config,
        weights=_weights_bytes(checkpoint, model_config, ops.weight_itemsize(dtype)),
        itemsize=dtype.itemsize,
        usable=usable_memory(),
    )
    phases.begin("loading weights")
    weights = Weights(checkpoint, dtype, ops, lambda done, total: phases.progress(100.0 * done / max(1, total)))
    model = build_model(model_config, weights, ops)
    phases.begin("allocating cache")
    _, kv_heads, head_size = model_config.qkv_heads
    cache = ops.kv_cache(model_config.num_layers, plan.num_blocks, plan.block_size, kv_heads, head_size, dtype)
    limits = plan.limits
    engine = Engine(
        ModelRunner(model, ops, cache, max_num_seqs=limits.max_num_seqs, max_model_len=limits.max_model_len),
        block_size=plan.block_size,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        enable_chunked_prefill=config.enable_chunked_prefill,
        enable_prefix_caching=config.enable_prefix_caching,
        scheduling_policy=config.scheduling_policy,
    )
    phases.ready(_table(str(path), model_config, dtype.name, ops, plan))
    return engine


class _Phases:
    """Times the phases and reports how far they are, in whole percents."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._seconds: dict[str, float] = {}
        self._phase = ""
        self._percent = 0
        self._began = time.perf_counter()

    def begin(self, phase: str) -> None:
        """The next phase starts, the last one is over."""
        self._finish()
        self._phase, self._percent = phase, 0
        self._report(EngineStatus(phase, seconds=dict(self._seconds)))

    def download(self, percent: float) -> None:
        """`progress` of a phase that only some starts have."""
        if self._phase != "downloading":
            self.begin("downloading")
        self.progress(percent)

    def progress(self, percent: float) -> None:
        """How far the phase is, 0 to 100."""
        if int(percent) > self._percent:
            self._percent = int(percent)
            self._report(EngineStatus(self._phase, float(self._percent), seconds=dict(self._seconds)))

    def ready(self, table: dict[str, str]) -> None:
        """All is done."""
        self._finish()
        self._report(EngineStatus("ready", 100.0, seconds=self._seconds, table=table))

    def _finish(self) -> None:
        now = time.perf_counter()
        if self._phase:
            self._seconds[self._phase] = now - self._began
        self._began = now


def _weights_bytes(checkpoint: Checkpoint, model: ModelConfig, itemsize: int) -> int:
    """Of all tensors in their dtype in memory; a head that is stored and tied as well is not kept."""
    shapes = checkpoint.shapes()
    names = [name for name in shapes if not (model.tie_word_embeddings and name == "lm_head.weight")]
    return itemsize * sum(math.prod(shapes[name]) for name in names)


def _table(path: str, model: ModelConfig, dtype: str, ops: Ops, plan: MemoryPlan) -> dict[str, str]:
    limits = plan.limits
    return {
        "model": path,
        "architecture": f"{model.architecture}, {model.num_layers} layers, hidden size {model.hidden_size}",
        "dtype": dtype,
        "weights": f"{plan.weights / 2**20:,.0f} MiB",
        "backend": f"{ops.name} ({ops.description})",
        "KV cache": f"{plan.num_blocks:,} blocks of {plan.block_size} tokens, {plan.kv_cache / 2**30:,.2f} GiB at most",
        "KV bytes per token": f"{plan.bytes_per_token:,}",
        "requests that fit": f"{plan.num_full_requests:,.1f} of {limits.max_model_len:,} tokens",
        "limits": (
            f"max_model_len {limits.max_model_len:,}, max_num_seqs {limits.max_num_seqs:,}, "
            f"max_num_batched_tokens {limits.max_num_batched_tokens:,}"
        ),
    }
