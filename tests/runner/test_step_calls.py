"""What a step costs beside its kernels, in Python functions called: nothing for idle rows, little for those that run."""

from __future__ import annotations

import numpy as np

from octavo.engine.engine import Engine
from octavo.engine.request import Request
from octavo.kernels.cpu.ops import CpuOps
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams
from tests.engine.test_engine import count_calls
from tests.models.tiny import tiny_checkpoint, tiny_config, tiny_model

OPS = CpuOps(1)
MODEL = tiny_model(OPS, tiny_checkpoint(tiny_config(), seed=11))


def calls_of_a_step(running: int, *, rows: int, blocks: int, **params: object) -> int:
    """Of a step in which each of `running` sequences goes on in its block."""
    cache = OPS.kv_cache(MODEL.config.num_layers, blocks, 16, 2, 16, np.dtype(np.float32))
    runner = ModelRunner(MODEL, OPS, cache, max_num_seqs=rows, max_model_len=64)
    engine = Engine(runner, block_size=16, max_num_seqs=rows, max_num_batched_tokens=4096, max_model_len=64)
    sampling = SamplingParams(max_tokens=None, ignore_eos=True, seed=3, **params)  # type: ignore[arg-type]
    for i in range(running):
        engine.add(Request(str(i), [5 + i % 100, 6, 7], sampling, 0.0))
    for _ in range(3):
        engine.step()
    return count_calls(engine)


def test_idle_rows_and_free_blocks_cost_nothing() -> None:
    few = calls_of_a_step(4, rows=4, blocks=8, temperature=0.0)
    assert calls_of_a_step(4, rows=500, blocks=8, temperature=0.0) == few
    assert calls_of_a_step(4, rows=500, blocks=5000, temperature=0.0) == few


def test_a_running_sequence_costs_few_calls() -> None:
    for params in ({"temperature": 0.0}, {"top_p": 0.9}):
        ten, hundred = (calls_of_a_step(n, rows=100, blocks=200, **params) for n in (10, 100))
        assert (hundred - ten) / 90 < 22
        assert ten < 420
