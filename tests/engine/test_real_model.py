"""The engine on the real model: built from a configuration, and under a cache that is far too small."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.request import EngineStatus, Request, RequestDelta, Thinking
from octavo.errors import ConfigError
from octavo.sampling.params import SamplingParams

PROMPT_LENGTHS = (13, 14, 15, 16, 29, 30, 31, 32, 45, 46)
LENGTHS = (1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 8, 9, 10, 18, 20, 22, 24)  # output tokens: 20 requests of each prompt
NUM_BLOCKS = 11


def config(smollm2: Path, **options: object) -> EngineConfig:
    """Blocks of 16 tokens; no request is longer than 96."""
    return EngineConfig(model=str(smollm2), max_model_len=96, num_gpu_blocks_override=NUM_BLOCKS, **options)


def build(config: EngineConfig) -> tuple[Engine, list[EngineStatus]]:
    statuses: list[EngineStatus] = []
    return build_engine(config, statuses.append), statuses


def prompts() -> list[list[int]]:
    """Arbitrary tokens."""
    generator = random.Random(7)
    return [[generator.randrange(1000, 40000) for _ in range(length)] for length in PROMPT_LENGTHS]


def request(number: int, prompt: list[int], variant: int) -> Request:
    """Every other prompt is sampled, and every one has logprobs, which have to be the same to the last bit as well."""
    temperature = 0.0 if number % 2 else 0.9
    params = SamplingParams(temperature=temperature, seed=number, max_tokens=LENGTHS[variant], logprobs=2)
    return Request(f"{number}/{variant}", prompt, params, arrival_time=0.0)


def run(engine: Engine) -> dict[str, list[RequestDelta]]:
    deltas: dict[str, list[RequestDelta]] = {}
    while engine.has_work:
        for delta in engine.step().deltas:
            deltas.setdefault(delta.request_id, []).append(delta)
    return deltas


def answer(deltas: list[RequestDelta]) -> list[tuple[int, object]]:
    """Token ids, each with its logprobs."""
    return [(token, delta.logprobs) for delta in deltas for token in delta.token_ids]


def test_200_requests_through_a_cache_too_small_for_8_get_what_they_get_alone(smollm2: Path) -> None:
    engine, _ = build(config(smollm2, backend="cpu", max_num_batched_tokens=64))
    alone = {}
    for number, prompt in enumerate(prompts()):
        engine.add(request(number, prompt, LENGTHS.index(max(LENGTHS))))
        alone[number] = answer(run(engine).popitem()[1])
    crowd = [request(number, prompt, i) for number, prompt in enumerate(prompts()) for i in range(len(LENGTHS))]
    random.Random(11).shuffle(crowd)
    blocks = [-(-(len(each.prompt_token_ids) + LENGTHS[int(each.request_id.split("/")[1])] - 1) // 16) for each in crowd]
    assert 8 * sum(blocks) / len(blocks) > 1.5 * NUM_BLOCKS, "the cache is too small for 8 of them"
    for each in crowd:
        engine.add(each)
    together = run(engine)
    assert len(together) == 200
    for each in crowd:
        number, variant = map(int, each.request_id.split("/"))
        assert answer(together[each.request_id]) == alone[number][: LENGTHS[variant]]
        assert together[each.request_id][-1].finish_reason == "length"
    assert engine.stats().num_preemptions > 5
    assert engine.check_integrity()["held"] == 0
    engine.close()


def test_a_start_reports_its_phases_and_the_table(smollm2: Path) -> None:
    engine, statuses = build(config(smollm2, max_num_seqs=8))
    phases = list(dict.fromkeys(status.phase for status in statuses))
    assert phases == ["starting", "planning", "loading weights", "allocating cache", "ready"]
    percents = [status.percent for status in statuses if status.phase == "loading weights"]
    assert percents == sorted(percents)
    assert percents[-1] == 100.0
    ready = statuses[-1]
    assert list(ready.seconds) == phases[:-1]
    assert engine.max_model_len == ready.max_model_len == 96
    assert ready.table["architecture"] == "LlamaForCausalLM, 30 layers, hidden size 576"
    stored = "int4 in groups of 32 and int8 in groups of 32 (activations int16)"
    assert ready.table["dtype"] == f"bfloat16, weights as they are stored: {stored}"
    assert ready.table["weights"] == "92 MiB"
    assert ready.table["activations"] == "210 MiB at most"
    assert ready.table["KV cache"] == "11 blocks of 16 tokens, 3.9 MiB at most"
    assert ready.table["KV bytes per token"] == "23,040"
    assert ready.table["requests that fit"] == "1.8 of 96 tokens"
    assert ready.table["limits"] == "max_model_len 96, max_num_seqs 8, max_num_batched_tokens 2,048"
    assert ready.table["backend"].startswith("cpu (")
    engine.close()


def test_what_cannot_work_is_refused_before_weights_are_read(smollm2: Path) -> None:
    statuses: list[EngineStatus] = []
    with pytest.raises(ConfigError, match=r"max seq len \(8192\) is larger .* stored in KV cache \(320\)"):
        build_engine(EngineConfig(model=str(smollm2), num_gpu_blocks_override=20), statuses.append)
    assert {status.phase for status in statuses} == {"starting", "planning"}


def test_thinking_ends_behind_its_budget(smollm2: Path) -> None:
    engine, _ = build(config(smollm2, backend="cpu"))
    (prompt, *_) = prompts()
    bounds = {"free": None, "bound": Thinking(5, None, [1000, 2000]), "closed": Thinking(0, None, [1000])}
    for name, thinking in bounds.items():
        params = SamplingParams(temperature=0.0, max_tokens=9, ignore_eos=True)
        engine.add(Request(name, prompt, params, arrival_time=0.0, thinking=thinking))
    ids = {name: [token for token, _ in answer(deltas)] for name, deltas in run(engine).items()}
    engine.close()
    assert ids["bound"][:7] == [*ids["free"][:5], 1000, 2000]
    assert ids["closed"][0] == 1000
    assert len(ids["bound"]) == len(ids["closed"]) == 9
