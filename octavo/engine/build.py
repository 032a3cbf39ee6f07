"""From an `EngineConfig` to a running engine, reporting each phase and its seconds."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from octavo.config import EngineConfig
from octavo.engine.engine import Engine
from octavo.engine.intake import all_eos_token_ids, open_tokenizer
from octavo.engine.plan import Runner
from octavo.engine.planning import PlannedModel, plan_model
from octavo.engine.request import EngineStatus
from octavo.engine.self_check import check_model
from octavo.engine.swap_space import open_directory, open_host_memory, swap_factory
from octavo.grammar.matchers import Matchers
from octavo.models.registry import Model, build_model
from octavo.models.transformers import TransformersModel
from octavo.runner.model_runner import ModelRunner
from octavo.runner.pooling_runner import PoolingRunner
from octavo.weights.checkpoint import Weights
from octavo.weights.hub import resolve_model
from octavo.weights.loader import open_checkpoint, packed_activation_bits

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
    planned = plan_model(config, path)
    model_config, ops, plan = planned.model, planned.ops, planned.memory
    config = planned.config
    directory = open_directory(config)
    phases.begin("loading weights")
    model = _load_model(planned, lambda done, total: phases.progress(100.0 * done / max(1, total)))
    phases.begin("allocating cache")
    _, kv_heads, head_size = model_config.qkv_heads
    cache = ops.kv_cache(
        model_config.cached_layers, plan.num_blocks, plan.block_size, kv_heads, head_size, planned.cache_dtype
    )
    check_model(model, cache, planned.checkpoint.path, pools=planned.pooling is not None)
    limits = plan.limits
    matchers = Matchers(
        lambda: open_tokenizer(config, open_checkpoint(path)), lambda tokenizer: all_eos_token_ids(tokenizer, model_config)
    )
    host = open_host_memory(plan, cache)
    sizes = {"max_num_seqs": limits.max_num_seqs, "max_model_len": limits.max_model_len}
    runner: Runner
    if planned.pooling is not None:
        runner = PoolingRunner(model, ops, cache, planned.pooling, **sizes)
    else:
        runner = ModelRunner(model, ops, cache, matchers=matchers, logprobs_mode=config.logprobs_mode, host=host, **sizes)
    engine = Engine(
        runner,
        block_size=plan.block_size,
        max_num_seqs=limits.max_num_seqs,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        max_model_len=limits.max_model_len,
        enable_chunked_prefill=config.enable_chunked_prefill,
        enable_prefix_caching=config.enable_prefix_caching,
        scheduling_policy=config.scheduling_policy,
        long_prefill_token_threshold=config.long_prefill_token_threshold,
        max_itl_ms=config.max_itl_ms,
        matchers=matchers,
        window=limits.window,
        swap=swap_factory(planned, host, cache.layout, directory) if host is not None else None,
    )
    phases.ready(limits.max_model_len, planned.table())
    return engine


def _load_model(planned: PlannedModel, progress: Callable[[int, int], None]) -> Model:
    config, ops, dtype = planned.config, planned.ops, planned.dtype
    if planned.model.is_foreign:
        trust, threads = config.trust_remote_code, config.cpu_threads
        path = planned.checkpoint.path
        return TransformersModel(planned.model, path, dtype, ops, trust_remote_code=trust, threads=threads)
    bits = packed_activation_bits(config)
    weights = Weights(planned.checkpoint, dtype, ops, progress, quantization=planned.quantization, activation_bits=bits)
    return build_model(planned.model, weights, ops)


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

    def ready(self, max_model_len: int, table: dict[str, str]) -> None:
        """All is done."""
        self._finish()
        self._report(EngineStatus("ready", 100.0, seconds=self._seconds, table=table, max_model_len=max_model_len))

    def _finish(self) -> None:
        now = time.perf_counter()
        if self._phase:
            self._seconds[self._phase] = now - self._began
        self._began = now
