"""One answer: what a request gets does not depend on who shares the batch, on chunks, on what was cached, on preemptions,
on threads, on which of n it is, nor on the way in. Token ids and logprobs of the real model on the cpu backend, by ==.

Every circumstance is compared with one reference: the request alone, in one piece, on one thread, with nothing cached.
Cases: C113, C170.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo import LLM
from octavo.cache.block_files import BlockFiles, LockedDirectory
from octavo.cache.block_pool import BlockPool
from octavo.cache.host_pool import HostPool
from octavo.engine.engine import Engine
from octavo.engine.preemption import PreemptionPolicy
from octavo.engine.request import EngineStats, Request, RequestDelta
from octavo.engine.swap import SwapManager
from octavo.kernels.cpu.ops import CpuOps
from octavo.models.registry import Model
from octavo.runner.host_memory import HostMemory
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams
from tests.e2e.conftest import serve
from tests.models.smollm2 import load_model
from tests.server.process import ServerProcess

Answer = tuple[list[int], list[float]]  # token ids, and each one's logprob
DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32)}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 0.9, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 5},
}
RANDOM = random.Random(8)
PROMPT = [RANDOM.randrange(1000, 40_000) for _ in range(45)]
OTHER = [RANDOM.randrange(1000, 40_000) for _ in range(40)]
LENGTH = 24  # tokens of the answer
NUM_SLOTS = 64


def params(kind: str, n: int = 1) -> SamplingParams:
    return SamplingParams(max_tokens=LENGTH, ignore_eos=True, logprobs=1, n=n, **KINDS[kind])


@dataclass
class Setting:
    """A model in memory, and where else things are."""

    model: Model
    ops: CpuOps
    dtype: str
    threads: int
    kind: str
    path: Path
    folder: Path
    shared_server: Callable[[], ServerProcess]
    opened: list[HostMemory] = field(default_factory=list)

    def engine(
        self,
        *,
        blocks: int = 200,
        budget: int = 2048,
        seqs: int = 40,
        caching: bool = True,
        mode: str = "recompute",
        has_files: bool = False,
    ) -> Engine:
        """A new engine on the model."""
        config = self.model.config
        cache = self.ops.kv_cache(config.num_layers, blocks, 16, config.num_kv_heads, config.head_dim, DTYPES[self.dtype])
        host = HostMemory(cache, NUM_SLOTS)
        self.opened.append(host)

        def manager(pool: BlockPool) -> SwapManager:
            files = None
            if has_files:
                reader, writer = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
                files = BlockFiles(LockedDirectory(self.folder), 1 << 30, b"i" * 32, host.slot, reader=reader, writer=writer)
            return SwapManager(pool, HostPool(NUM_SLOTS), PreemptionPolicy(mode, 16, 0.0), blocks_per_step=2, files=files)

        return Engine(
            ModelRunner(self.model, self.ops, cache, max_num_seqs=seqs, max_model_len=256, host=host),
            block_size=16,
            max_num_seqs=seqs,
            max_num_batched_tokens=budget,
            max_model_len=256,
            enable_prefix_caching=caching,
            swap=manager if mode != "recompute" else None,
        )

    def golden(self, n: int = 1) -> Request:
        return Request("golden", PROMPT, params(self.kind, n), arrival_time=0.0)


def other(name: str, prompt: list[int], max_tokens: int) -> Request:
    """A request that is only there to be in the way."""
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=1, ignore_eos=True), 0.0)


class Answers:
    """What the golden request's sequences get."""

    def __init__(self) -> None:
        self.by_index: dict[int, Answer] = {}

    def add(self, deltas: list[RequestDelta]) -> None:
        for delta in deltas:
            assert delta.error is None
            if delta.request_id == "golden":
                ids, logprobs = self.by_index.setdefault(delta.index, ([], []))
                ids += delta.token_ids
                logprobs += [each.logprobs[0] for each in delta.logprobs or ()]


def run(engine: Engine, *requests: Request) -> dict[int, Answer]:
    """All of them together, to the end."""
    answers = Answers()
    for each in requests:
        engine.add(each)
    while engine.has_work:
        answers.add(engine.step().deltas)
    assert engine.check_integrity()["held"] == 0
    return answers.by_index


def preempted(setting: Setting, mode: str, *, has_files: bool = False) -> tuple[dict[int, Answer], EngineStats]:
    """An older request grows until the golden one gives way, and overwrites what that has computed."""
    engine = setting.engine(blocks=8, mode=mode, has_files=has_files)
    answers = run(engine, other("older", OTHER, 60), setting.golden())
    stats = engine.stats()
    if has_files:
        engine._swap.close()  # type: ignore[union-attr]
    assert stats.num_preemptions > 0
    return answers, stats


def alone(setting: Setting) -> dict[int, Answer]:
    return run(setting.engine(), setting.golden())


def among_31_others(setting: Setting) -> dict[int, Answer]:
    """Of random lengths, that arrive at random times."""
    generator, engine, answers = random.Random(setting.kind), setting.engine(budget=256), Answers()
    names = [f"r{i}" for i in range(31)]
    names.insert(generator.randrange(8, 24), "golden")
    for name in names:
        prompt = [generator.randrange(1000, 40_000) for _ in range(generator.randrange(1, 60))]
        engine.add(setting.golden() if name == "golden" else other(name, prompt, generator.randrange(1, 30)))
        for _ in range(generator.choice([0, 0, 1, 2])):
            answers.add(engine.step().deltas)
    while engine.has_work:
        answers.add(engine.step().deltas)
    return answers.by_index


def in_batches_of_every_size(setting: Setting) -> dict[int, Answer]:
    """From 64 rows down to its own: of the others one ends with each step."""
    answers = []
    for most in (64, 40, 24):
        others = [other(f"r{i}", [*OTHER[i % 40 :], *OTHER][:5], i) for i in range(1, most)]
        answers.append(run(setting.engine(blocks=400, seqs=64), setting.golden(), *others))
    assert answers[0] == answers[1] == answers[2]
    return answers[0]


def in_chunks(size: int) -> Callable[[Setting], dict[int, Answer]]:
    return lambda setting: run(setting.engine(budget=size), setting.golden())


def after_a_hit(prefix: list[int], num_cached: int) -> Callable[[Setting], dict[int, Answer]]:
    def circumstance(setting: Setting) -> dict[int, Answer]:
        engine = setting.engine()
        run(engine, other("before", prefix, 1))
        answers = run(engine, setting.golden())
        assert engine.stats().prefix_cache_hits == num_cached
        return answers

    return circumstance


def recomputed(setting: Setting) -> dict[int, Answer]:
    answers, stats = preempted(setting, "recompute")
    assert stats.num_swap_preemptions == 0
    return answers


def swapped(setting: Setting) -> dict[int, Answer]:
    answers, stats = preempted(setting, "swap")
    assert stats.num_swap_preemptions > 0
    assert stats.num_swapped_in_blocks > 0
    return answers


def swapped_to_files(setting: Setting) -> dict[int, Answer]:
    answers, stats = preempted(setting, "swap", has_files=True)
    assert stats.num_swapped_in_blocks > 0
    return answers


def after_another_start(setting: Setting) -> dict[int, Answer]:
    """The prompt's blocks are in files."""
    first = setting.engine(mode="swap", has_files=True)
    run(first, setting.golden())
    first._swap.close()  # type: ignore[union-attr]
    second = setting.engine(mode="swap", has_files=True)
    answers = run(second, setting.golden())
    second._swap.close()  # type: ignore[union-attr]
    assert second.stats().external_cache_hits == 32
    return answers


def as_child_of_n(setting: Setting) -> dict[int, Answer]:
    return run(setting.engine(budget=33), setting.golden(n=3), other("beside", OTHER, 20))


def in_llm(setting: Setting) -> dict[int, Answer]:
    options = {"dtype": setting.dtype, "cpu_threads": setting.threads, "num_gpu_blocks_override": 32, "max_model_len": 256}
    with LLM(str(setting.path), backend="cpu", **options) as llm:
        (result,) = llm.generate({"prompt_token_ids": PROMPT}, params(setting.kind), use_tqdm=False)
    (output,) = result.outputs
    ids = list(output.token_ids)
    return {0: (ids, [entry[token].logprob for token, entry in zip(ids, output.logprobs or [], strict=True)])}


def over_http(setting: Setting) -> dict[int, Answer]:
    body = {"prompt": PROMPT, "max_tokens": LENGTH, "ignore_eos": True, "logprobs": 1, "return_token_ids": True}
    if (setting.dtype, setting.threads) == SHARED_SERVER:
        return _ask(setting.shared_server(), body | KINDS[setting.kind])
    with serve(setting.path, "--dtype", setting.dtype, "--cpu-threads", str(setting.threads)) as server:
        server.wait_for_log("  ready ")
        return _ask(server, body | KINDS[setting.kind])


def _ask(server: ServerProcess, body: dict[str, Any]) -> dict[int, Answer]:
    (choice,) = server.http.post("/v1/completions", json=body).json()["choices"]
    return {0: (choice["token_ids"], choice["logprobs"]["token_logprobs"])}


CIRCUMSTANCES: dict[str, Callable[[Setting], dict[int, Answer]]] = {
    "alone": alone,
    "among 31 others": among_31_others,
    "in batches of 1 to 64": in_batches_of_every_size,
    **{f"in chunks of {size}": in_chunks(size) for size in (1, 7, 16, 33)},
    "after another prompt": after_a_hit(OTHER, 0),
    "after a part of it": after_a_hit([*PROMPT[:20], *OTHER], 16),
    "after itself": after_a_hit(PROMPT, 32),
    "preempted and recomputed": recomputed,
    "preempted and swapped": swapped,
    "preempted and swapped to files": swapped_to_files,
    "after another start": after_another_start,
    "as a child of n": as_child_of_n,
    "in LLM": in_llm,
    "over HTTP": over_http,
}
SHARED_SERVER = ("bfloat16", 2)
# What runs every day: everything once, and in the other dtype, on the other number of threads, what could differ most.
EVERY_DAY = {
    "bfloat16 on 2 threads, seeded": set(CIRCUMSTANCES),
    "bfloat16 on 2 threads, greedy": {"among 31 others", "preempted and swapped"},
    "float32 on 1 threads, seeded": {"in chunks of 7", "after a part of it", "preempted and swapped", "as a child of n"},
}


def matrix() -> Iterator[Any]:
    """dtype, threads, kind and circumstance: all of them, those of other days marked."""
    for dtype in DTYPES:
        for threads in (1, 2):
            for kind in KINDS:
                setting = f"{dtype} on {threads} threads, {kind}"
                for name in CIRCUMSTANCES:
                    if name == "as a child of n" and kind == "greedy":
                        continue  # n greedy answers would be one
                    marks = () if name in EVERY_DAY.get(setting, ()) else (pytest.mark.nightly,)
                    yield pytest.param(dtype, threads, kind, name, id=f"{setting}: {name}", marks=marks)


@pytest.fixture(scope="module")
def loaded(smollm2: Path) -> Iterator[Callable[[str, int], tuple[Model, CpuOps]]]:
    """The model by dtype and threads, each read once."""
    opened: list[CpuOps] = []

    @cache
    def load(dtype: str, threads: int) -> tuple[Model, CpuOps]:
        opened.append(CpuOps(threads))
        return load_model(smollm2, opened[-1], DTYPES[dtype]), opened[-1]

    yield load
    for ops in opened:
        ops.close()


@pytest.fixture(scope="module")
def reference(loaded: Callable[[str, int], tuple[Model, CpuOps]], smollm2: Path) -> Callable[[str, str], dict[int, Answer]]:
    """What each of n gets if they run one after the other."""

    @cache
    def answers(dtype: str, kind: str) -> dict[int, Answer]:
        model, ops = loaded(dtype, 1)
        setting = Setting(model, ops, dtype, 1, kind, smollm2, smollm2, lambda: pytest.fail("no server"))
        n = 1 if kind == "greedy" else 3
        return run(setting.engine(seqs=1, caching=False), setting.golden(n))

    return answers


@pytest.mark.parametrize(("dtype", "threads", "kind", "circumstance"), list(matrix()))
def test_one_answer(
    dtype: str,
    threads: int,
    kind: str,
    circumstance: str,
    loaded: Callable[[str, int], tuple[Model, CpuOps]],
    reference: Callable[[str, str], dict[int, Answer]],
    smollm2: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    model, ops = loaded(dtype, threads)
    server = lambda: request.getfixturevalue("octavo")  # noqa: E731
    setting = Setting(model, ops, dtype, threads, kind, smollm2, tmp_path, server)
    answers = CIRCUMSTANCES[circumstance](setting)
    expected = reference(dtype, kind)
    assert len(expected[0][0]) == len(expected[0][1]) == LENGTH
    assert answers == {index: expected[index] for index in (range(3) if circumstance == "as a child of n" else range(1))}
    for host in setting.opened:
        host.close()
