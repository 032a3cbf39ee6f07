"""What a step costs beside its kernels: python -m benchmarks.host

One sequence on SmolLM2-135M in bfloat16, and 1,000 on a tiny model, greedy and with top_p. Prints, in microseconds of the
calling thread (so that other programs disturb little), median and least of a step's time outside of the native library
and inside of it, and of encoding its output for another process; last the first as a share of the step's wall time.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.steps import smollm2
from octavo.engine.engine import Engine
from octavo.engine.messages import encode
from octavo.engine.request import Request
from octavo.kernels.cpu.ops import CpuOps
from octavo.models.registry import Model
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams
from tests.models.tiny import tiny_checkpoint, tiny_config, tiny_model

STEPS = 150


class Clock:
    """Adds up the seconds that are spent in functions of the library."""

    def __init__(self, functions: Any) -> None:
        self.seconds = 0.0
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._functions, name)
        if callable(function):
            function = self._timed(function)
            setattr(self, name, function)  # what is measured is not to be the looking up of what measures
        return function

    def _timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*arguments)
            finally:
                self.seconds += time.thread_time() - start

        return call


def tiny(ops: CpuOps) -> Model:
    """Two layers of 64."""
    return tiny_model(ops, tiny_checkpoint(tiny_config(vocab_size=1024), seed=1))


def measure(name: str, build: Callable[[CpuOps], Model], rows: int, params: dict[str, Any]) -> None:
    """Print one line."""
    ops = CpuOps()
    model = build(ops)
    config = model.config
    cache = ops.kv_cache(config.num_layers, rows * 20, 16, config.num_kv_heads, config.head_dim, np.dtype(np.float32))
    runner = ModelRunner(model, ops, cache, max_num_seqs=rows, max_model_len=320)
    engine = Engine(runner, block_size=16, max_num_seqs=rows, max_num_batched_tokens=64 * rows, max_model_len=320)
    for i in range(rows):
        fields = SamplingParams(max_tokens=None, ignore_eos=True, seed=i, **params)
        engine.add(Request(str(i), np.random.default_rng(i).integers(3, 1000, 8).tolist(), fields, 0.0))
    engine.step()
    engine.step()
    gc.collect()
    gc.freeze()
    forward: Any = runner._to_logits
    clocks = [Clock(forward._program), Clock(ops._library)]
    forward._program, ops._library = clocks
    host, library, encoding, whole = [], [], [], []
    for _ in range(STEPS):
        for clock in clocks:
            clock.seconds = 0.0
        began = time.perf_counter()
        start = time.thread_time()
        output = engine.step()
        seconds = time.thread_time() - start
        whole.append(time.perf_counter() - began)
        library.append(sum(clock.seconds for clock in clocks))
        host.append(seconds - library[-1])
        start = time.thread_time()
        encode(output)
        encoding.append(time.thread_time() - start)
    shown = [
        f"{what} {1e6 * statistics.median(v):7.0f} ({1e6 * min(v):6.0f})"
        for what, v in (("host", host), ("library", library), ("encoding", encoding))
    ]
    share = statistics.median(host) / statistics.median(whole)
    print(f"{name:34}{'   '.join(shown)}   {share:.1%} of the step's wall time", flush=True)
    ops._library = clocks[1]._functions
    engine.close()


if __name__ == "__main__":
    print("microseconds of CPU a step: median (least)")
    measure("SmolLM2-135M bf16, 1 row, greedy", smollm2, 1, {"temperature": 0.0})
    measure("SmolLM2-135M bf16, 1 row, top_p", smollm2, 1, {"top_p": 0.9})
    measure("tiny, 1000 rows, greedy", tiny, 1000, {"temperature": 0.0})
    measure("tiny, 1000 rows, top_p", tiny, 1000, {"top_p": 0.9})
