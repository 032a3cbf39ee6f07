"""What a step costs beside its kernels, in Python functions called: nothing for idle rows, little for those that run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from octavo.engine.engine import Engine
from octavo.engine.request import Request
from octavo.kernels.cpu.calls import Immediate
from octavo.kernels.cpu.ops import CpuOps
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams
from tests.engine.test_engine import count_calls
from tests.models.tiny import tiny_checkpoint, tiny_config, tiny_model

OPS = CpuOps(1)
MODEL = tiny_model(OPS, tiny_checkpoint(tiny_config(), seed=11))


def engine_in_its_stride(running: int, *, rows: int, blocks: int, **params: object) -> Engine:
    """In its next step each of `running` sequences goes on in its block."""
    cache = OPS.kv_cache(MODEL.config.num_layers, blocks, 16, 2, 16, np.dtype(np.float32))
    runner = ModelRunner(MODEL, OPS, cache, max_num_seqs=rows, max_model_len=64)
    engine = Engine(runner, block_size=16, max_num_seqs=rows, max_num_batched_tokens=4096, max_model_len=64)
    sampling = SamplingParams(max_tokens=None, ignore_eos=True, seed=3, **params)  # type: ignore[arg-type]
    for i in range(running):
        engine.add(Request(str(i), [5 + i % 100, 6, 7], sampling, 0.0))
    for _ in range(3):
        engine.step()
    return engine


def calls_of_a_step(running: int, *, rows: int, blocks: int, **params: object) -> int:
    return count_calls(engine_in_its_stride(running, rows=rows, blocks=blocks, **params))


def test_idle_rows_and_free_blocks_cost_nothing() -> None:
    few = calls_of_a_step(4, rows=4, blocks=8, temperature=0.0)
    assert calls_of_a_step(4, rows=500, blocks=8, temperature=0.0) == few
    assert calls_of_a_step(4, rows=500, blocks=5000, temperature=0.0) == few


def test_a_running_sequence_costs_few_calls() -> None:
    for params in ({"temperature": 0.0}, {"top_p": 0.9}):
        ten, hundred = (calls_of_a_step(n, rows=100, blocks=200, **params) for n in (10, 100))
        assert (hundred - ten) / 90 < 22
        assert ten < 420


class Noted:
    """Notes which functions of something are looked up, each for one call."""

    def __init__(self, functions: object, names: list[str]) -> None:
        self._functions = functions
        self._names = names

    def __getattr__(self, name: str) -> object:
        self._names.append(name)
        return getattr(self._functions, name)


@pytest.mark.parametrize(
    ("prompt", "calls"), [((), ["run", "octavo_sample"]), ((5, 6), ["run", "octavo_linear", "octavo_sample"])]
)
def test_a_plain_step_computes_its_logits_in_one_call(
    monkeypatch: pytest.MonkeyPatch, prompt: Sequence[int], calls: list[str]
) -> None:
    """One with a prompt in it has the head's product apart."""
    engine = engine_in_its_stride(3, rows=4, blocks=8, temperature=0.0)
    runner = engine._runner
    assert isinstance(runner, ModelRunner)
    names: list[str] = []
    for forward in (runner._forward, runner._to_logits):
        monkeypatch.setattr(forward, "_program", Noted(forward._program, names))  # type: ignore[attr-defined]
    library = Noted(OPS._library, names)
    monkeypatch.setattr(OPS, "_library", library)
    monkeypatch.setattr(OPS, "calls", Immediate(library, OPS.context))  # type: ignore[arg-type]
    if prompt:
        engine.add(Request("new", [*prompt], SamplingParams(temperature=0.0, max_tokens=4), 0.0))
    engine.step()
    assert names == calls
