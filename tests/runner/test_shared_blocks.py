"""The cpu backend's promise where blocks are shared: what a request gets does not depend on what the prefix cache held, on a
preemption, or on which of n it is. Token ids and logprobs, to the last bit, on the real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

from octavo.engine.engine import Engine
from octavo.engine.request import Request
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.ops import Ops
from octavo.models.registry import Model
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams
from tests.models.backends import BACKENDS
from tests.models.smollm2 import load_model
from tests.models.tiny import tiny_checkpoint, tiny_config, tiny_model

POISON = 99
Answer = list[Any]  # (token ids, logprobs, prompt logprobs) of each delta
RANDOM = np.random.RandomState(3)
PROMPT: list[int] = RANDOM.randint(1000, 40_000, 45).tolist()
OTHER: list[int] = RANDOM.randint(1000, 40_000, 40).tolist()
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "logprobs": 2},
    "sampled": {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 5, "logprobs": 2},
    "scored": {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 2},
}


def request(prompt: list[int], kind: str, max_tokens: int = 7, n: int = 1, name: str = "r") -> Request:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, n=n, **KINDS[kind])
    return Request(name, prompt, params, arrival_time=0.0)


class Bench:
    """Engines of different sizes on one model."""

    def __init__(self, model: Model, ops: Ops, dtype: Any) -> None:
        self.model, self.ops, self.dtype = model, ops, np.dtype(dtype)
        self._alone: dict[bytes, dict[int, Answer]] = {}

    def engine(self, *, caching: bool, blocks: int = 32, budget: int = 512, seqs: int = 8) -> Engine:
        config = self.model.config
        cache = self.ops.kv_cache(config.num_layers, blocks, 16, config.num_kv_heads, config.head_dim, self.dtype)
        return Engine(
            ModelRunner(self.model, self.ops, cache, max_num_seqs=seqs, max_model_len=128),
            block_size=16,
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            max_model_len=128,
            enable_prefix_caching=caching,
        )

    def alone(self, wanted: Request) -> dict[int, Answer]:
        """What each of n gets if nothing is shared: they run one after the other, each from the prompt's first token."""
        key = msgspec.json.encode((wanted.prompt_token_ids, wanted.params))
        if key not in self._alone:
            self._alone[key] = run(self.engine(caching=False, seqs=1), wanted)[wanted.request_id]
        return self._alone[key]


@pytest.fixture(scope="module", params=[ml_dtypes.bfloat16, np.float32], ids=["bfloat16", "float32"])
def bench(smollm2: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    ops = CpuOps()
    yield Bench(load_model(smollm2, ops, request.param), ops, request.param)
    ops.close()


def run(engine: Engine, *requests: Request) -> dict[str, dict[int, Answer]]:
    """The answers, by request and index."""
    answers: dict[str, dict[int, Answer]] = {}
    for each in requests:
        engine.add(each)
    while engine.has_work:
        for delta in engine.step().deltas:
            assert delta.error is None
            answer = answers.setdefault(delta.request_id, {}).setdefault(delta.index, [])
            answer.append((delta.token_ids, delta.logprobs, delta.prompt_logprobs))
    assert engine.check_integrity()["held"] == 0
    return answers


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_the_prefix_cache_held(bench: Bench, kind: str) -> None:
    wanted = request(PROMPT, kind)
    alone = bench.alone(wanted)
    engine = bench.engine(caching=True, budget=33)
    hits = []
    for before in ([], [*PROMPT[:20], *OTHER], PROMPT, [*PROMPT, *[id for ids, *_ in alone[0] for id in ids]]):
        if before:
            run(engine, request(before, "greedy", 1, name="before"))
        counted = engine.stats().prefix_cache_hits
        assert run(engine, wanted)["r"] == alone, "with what came before"
        hits.append(engine.stats().prefix_cache_hits - counted)
        engine.reset_prefix_cache()
    assert hits == ([0] * 4 if kind == "scored" else [0, 16, 32, 32])


def test_whoever_computed_it_in_the_same_step(bench: Bench) -> None:
    kinds = list(KINDS)
    alone = {kind: bench.alone(request(PROMPT, kind))[0] for kind in kinds}
    engine = bench.engine(caching=True)
    together = run(engine, *(request(PROMPT, kind, name=kind) for kind in kinds))
    assert {kind: answer[0] for kind, answer in together.items()} == alone
    assert engine.stats().prefix_cache_hits == 32


@pytest.mark.parametrize("caching", [True, False])
def test_after_a_preemption(bench: Bench, caching: bool) -> None:
    wanted = [request(PROMPT, kind, 12, name=kind) for kind in KINDS]
    engine = bench.engine(caching=caching, blocks=11, budget=29)
    answers = run(engine, request(OTHER, "greedy", 36, name="older"), *wanted)
    assert engine.stats().num_preemptions > 0
    for each in wanted:
        assert answers[each.request_id] == bench.alone(each)


@pytest.mark.filterwarnings("ignore:invalid value encountered")
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_block_held_before_does_not_matter(backend: str) -> None:
    """Not even keys and values that are not finite, in the slots that a sequence has not reached yet."""
    ops, checkpoint = BACKENDS[backend](), tiny_checkpoint(tiny_config(), seed=11)
    checkpoint.tensors["model.embed_tokens.weight"][POISON] = np.nan
    bench = Bench(tiny_model(ops, checkpoint), ops, np.float32)
    good = request([20, 30, 40], "greedy", 10, name="good")
    engine = bench.engine(caching=True, blocks=1)
    engine.add(request([POISON] * 14, "greedy", 1, name="bad"))
    assert [delta.finish_reason for delta in engine.step().deltas] == ["error"]
    assert run(engine, good)["good"] == bench.alone(good)


LIMITS = [{"caching": False}, {"caching": True, "blocks": 7, "budget": 9}, {"caching": True, "seqs": 2}]


@pytest.mark.parametrize("length", [45, 32])
def test_as_any_of_n(bench: Bench, length: int) -> None:
    wanted = request(PROMPT[:length], "sampled", n=3)
    alone = bench.alone(wanted)
    assert len({msgspec.json.encode(answer) for answer in alone.values()}) == 3
    for limits in LIMITS:
        engine = bench.engine(**limits)  # type: ignore[arg-type]
        assert run(engine, wanted)["r"] == alone, limits
    assert run(engine, wanted)["r"] == alone, "again, from the cache"
