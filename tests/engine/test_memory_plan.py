"""The plan against what a process really takes, in processes of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.config import EngineConfig
from octavo.engine.planning import plan_model

ROOT = Path(__file__).resolve().parent.parent.parent
MIB = 1 << 20

SCRIPT = """
import json, sys
import octavo.kernels.cpu.ops, octavo.models.llama, octavo.weights.gguf  # what a start imports is not the plan's
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.request import Request
from octavo.offline.memory import release_freed_memory
from octavo.sampling.params import SamplingParams

def resident(key="VmRSS"):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))

def settled():
    release_freed_memory()
    return resident()

def forget_peak():
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")

def run(name, lengths, **params):
    for i, length in enumerate(lengths):
        tokens = [(7 * i + 3 * j) % 40000 + 500 for j in range(length)]
        params = {"max_tokens": 1, "temperature": 0.0, **params}
        engine.add(Request(f"{name}{i}", tokens, SamplingParams(**params), arrival_time=0.0))
    while engine.has_work:
        assert all(delta.error is None for delta in engine.step().deltas)

options, steps = json.loads(sys.argv[1])
report = {"imported": settled()}
engine = build_engine(EngineConfig(**options), lambda status: None)
report["loaded"] = settled()
for name, lengths, params in steps:
    forget_peak()
    run(name, lengths, **params)
    report[name + " peak"] = resident("VmHWM")
    report[name] = settled()
engine.reset_prefix_cache()
report["reset"] = settled()
engine.close()
del engine
report["closed"] = settled()
print(json.dumps(report))
"""


def measure(options: dict[str, Any], *steps: tuple[str, list[int], dict[str, Any]]) -> dict[str, int]:
    """Resident bytes after each stage, freed memory given back, and the peak within it."""
    command = [sys.executable, "-c", SCRIPT, json.dumps([options, steps])]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    report: dict[str, int] = json.loads(process.stdout)
    return report


@pytest.mark.parametrize(
    ("dtype", "quantization", "cache", "length"),
    [("bfloat16", None, "auto", 1024), ("float32", None, "int8", 512), ("bfloat16", "int4", "auto", 512)],
)
def test_a_full_cache_takes_what_was_planned(
    smollm2: Path, dtype: str, quantization: str | None, cache: str, length: int
) -> None:
    """Weights and cache with the little that allocators, scratch memory and the header of the file take; a step of as many
    tokens as may be, with logprobs of each, stays below the activations planned, and not far below. What of these is kept
    for the next step is a small part."""
    options = {"model": str(smollm2), "dtype": dtype, "quantization": quantization, "backend": "cpu"}
    options |= {"max_num_batched_tokens": length, "max_model_len": length, "num_gpu_blocks_override": length // 8}
    options |= {"kv_cache_dtype": cache}
    plan = plan_model(EngineConfig(**options), smollm2).memory
    fill = ("fill", [length - 1, length - 1], {})
    seen = measure(options, ("score", [length - 1], {"prompt_logprobs": 3}), fill)
    assert 0 < seen["loaded"] - seen["imported"] - plan.sizes.weights < 20 * MIB
    assert 0 < seen["fill"] - seen["loaded"] - plan.kv_cache < 8 * MIB + plan.sizes.activations // 6
    peak = seen["score peak"] - seen["loaded"]
    assert 0.5 * plan.sizes.activations < peak - plan.kv_cache < plan.sizes.activations
    assert seen["closed"] - seen["imported"] < 24 * MIB


def test_a_large_cache_that_is_little_used_stays_small(smollm2: Path) -> None:
    """20 requests of 100 tokens in a cache of 8 GiB: no more than their blocks, in whole huge pages for each layer."""
    options = {"model": str(smollm2), "dtype": "bfloat16", "backend": "cpu", "max_num_batched_tokens": 256}
    options |= {"kv_cache_memory_bytes": 8 << 30, "memory_utilization": 1.0}
    plan = plan_model(EngineConfig(**options), smollm2).memory
    assert plan.kv_cache > 7.9 * (1 << 30)
    seen = measure(options, ("use", [100] * 20, {}))
    used = 20 * plan.blocks_for(100) * plan.sizes.block
    assert used - 8 * MIB < seen["use"] - seen["reset"]
    assert seen["reset"] - seen["loaded"] < 8 * MIB
    assert seen["use"] - seen["loaded"] < used + 30 * 2 * MIB + 16 * MIB
    assert seen["loaded"] - seen["imported"] < plan.sizes.weights + 20 * MIB
    assert seen["closed"] - seen["imported"] < 24 * MIB


CYCLES = """
import random, sys
import numpy as np
from octavo.engine.engine import Engine
from octavo.engine.request import Request
from octavo.kernels.cpu.ops import CpuOps
from octavo.offline.memory import release_freed_memory
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams
from tests.models.tiny import tiny_checkpoint, tiny_config, tiny_model

def resident():
    release_freed_memory()
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))

ops = CpuOps(1)
model = tiny_model(ops, tiny_checkpoint(tiny_config(vocab_size=4096)))
cache = ops.kv_cache(2, 40, 16, 2, 16, np.dtype(np.float32))
engine = Engine(
    ModelRunner(model, ops, cache, max_num_seqs=8, max_model_len=256),
    block_size=16, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=256,
)
generator = random.Random(121)

def golden(name):
    request = Request(name, list(range(5, 77)), SamplingParams(temperature=0.0, max_tokens=20, logprobs=3), arrival_time=0.0)
    engine.add(request)
    answer = []
    while engine.has_work:
        answer += [(delta.token_ids, delta.logprobs) for delta in engine.step().deltas if delta.request_id == name]
    return answer

def cycles(first, last):
    for i in range(first, last):
        prompt = [generator.randrange(3, 4096) for _ in range(generator.randrange(1, 100))]
        temperature, n = generator.choice([(0.0, 1), (1.0, 1), (1.0, 3)])
        params = SamplingParams(
            temperature=temperature, seed=i, n=n, max_tokens=30,
            logprobs=generator.choice([None, 2]), prompt_logprobs=generator.choice([None, None, 1]),
        )
        engine.add(Request(str(i), prompt, params, arrival_time=0.0))
        for _ in range(generator.randrange(4)):
            engine.step()
        who, index = str(i - generator.randrange(4)), generator.choice([None, None, 0, 1])
        engine.abort(who, index, generator.choice(["abort", "stop"]))

before = golden("before")
cycles(0, 100)
start = resident()
cycles(100, int(sys.argv[1]))
assert golden("after") == before
assert engine.check_integrity()["held"] == 0
print(resident() - start)
"""


@pytest.mark.parametrize("cycles", [500, pytest.param(5000, marks=pytest.mark.nightly)])
def test_c121_starts_and_ends_at_random_times_leave_memory_as_it_was(cycles: int) -> None:
    command = [sys.executable, "-c", CYCLES, str(cycles)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert int(process.stdout) < 4 * MIB


def test_the_cache_dtype_sets_the_size_of_a_block(smollm2: Path) -> None:
    """30 layers, 3 heads of 64, keys and values, 16 tokens; an int8 head has a scale of 4 bytes."""
    sizes = {"auto": 128, "bfloat16": 128, "float16": 128, "float32": 256, "fp8": 64, "fp8_e4m3": 64, "int8": 68}
    for choice, head in sizes.items():
        config = EngineConfig(model=str(smollm2), kv_cache_dtype=choice, max_model_len=1024)
        assert plan_model(config, smollm2).memory.sizes.block == 30 * 3 * 2 * 16 * head, choice
