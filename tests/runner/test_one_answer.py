"""The cpu backend's promise: a request's tokens and logprobs depend on the request alone, to the last bit."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from octavo.engine.engine import Engine
from octavo.engine.request import Request, RequestDelta
from octavo.kernels.cpu.library import supported_isas
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.ops import Quantization
from octavo.models.config import read_model_config
from octavo.models.registry import Model, build_model
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams
from octavo.weights.checkpoint import Weights
from tests.models.tiny import tiny_checkpoint, tiny_config

BLOCKS_FOR_FEWER_THAN_8 = 30
"""A request of mixed_requests takes up to 8 blocks, 4 on average."""


def mixed_requests(count: int, vocab_size: int) -> list[Request]:
    """Prompts of 1 to 40 tokens, 1 to 80 new ones; greedy and sampled, with penalties, with logprobs."""
    random = np.random.RandomState(2)
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {"temperature": 0.8, "top_p": 0.9},
        {"temperature": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
        {"temperature": 0.0, "logprobs": 2, "prompt_logprobs": 1},
    ]
    requests = []
    for i in range(count):
        prompt = random.randint(3, vocab_size, random.randint(1, 41)).tolist()
        params = SamplingParams(max_tokens=int(random.randint(1, 81)), seed=i, ignore_eos=True, **kinds[i % len(kinds)])
        requests.append(Request(f"{i}", prompt, params, arrival_time=0.0))
    return requests


class Runs:
    """Engines of different sizes on one model."""

    def __init__(self, model: Model, ops: CpuOps, dtype: Any) -> None:
        self.model, self.ops, self.dtype = model, ops, np.dtype(dtype)

    def run(self, requests: list[Request], blocks: int = 64, budget: int = 2048) -> tuple[dict[str, list[Any]], int]:
        """What each request got, and how often one was preempted."""
        config = self.model.config
        cache = self.ops.kv_cache(config.num_layers, blocks, 16, config.num_kv_heads, config.head_dim, self.dtype)
        runner = ModelRunner(self.model, self.ops, cache, max_num_seqs=64, max_model_len=128)
        engine = Engine(runner, block_size=16, max_num_seqs=64, max_num_batched_tokens=budget, max_model_len=128)
        answers: dict[str, list[Any]] = {request.request_id: [] for request in requests}
        for request in requests:
            engine.add(request)
        while engine.has_work:
            for delta in engine.step().deltas:
                answers[delta.request_id].append(_answer(delta))
        assert engine.check_integrity()["held"] == 0
        cache.close()
        return answers, engine.stats().num_preemptions


def _answer(delta: RequestDelta) -> Any:
    return delta.token_ids, delta.logprobs, delta.prompt_logprobs, delta.finish_reason, delta.error


def assert_each_as_alone(runs: Runs, requests: list[Request]) -> None:
    together, preemptions = runs.run(requests, BLOCKS_FOR_FEWER_THAN_8, budget=100)
    assert preemptions > 0
    for request in requests:
        alone = runs.run([request])[0][request.request_id]
        assert alone[-1][3] == "length"
        assert together[request.request_id] == alone, request


@pytest.mark.parametrize(
    ("dtype", "cache_dtype", "isa"),
    [
        (ml_dtypes.bfloat16, ml_dtypes.bfloat16, "auto"),
        (np.float32, np.float32, "generic"),
        (ml_dtypes.bfloat16, np.int8, "auto"),
        (np.float32, ml_dtypes.float8_e4m3fn, "avx2"),
    ],
    ids=["bfloat16", "float32", "int8-cache", "float8-cache"],
)
@pytest.mark.parametrize("count", [80, pytest.param(200, marks=pytest.mark.nightly)])
def test_requests_through_a_pool_too_small_for_8(dtype: Any, cache_dtype: Any, isa: str, count: int) -> None:
    checkpoint, ops = tiny_checkpoint(tiny_config(), seed=11), CpuOps(2, isa if isa in supported_isas() else "auto")
    model = build_model(read_model_config(checkpoint), Weights(checkpoint, np.dtype(dtype), ops), ops)
    assert_each_as_alone(Runs(model, ops, cache_dtype), mixed_requests(count, 160))


@pytest.mark.parametrize("quantization", [Quantization(8), Quantization(8, 0, 8), Quantization(4, 32, 8)], ids=str)
def test_quantized_weights(quantization: Quantization) -> None:
    checkpoint, ops, dtype = tiny_checkpoint(tiny_config(), seed=11), CpuOps(2), np.dtype(ml_dtypes.bfloat16)
    model = build_model(read_model_config(checkpoint), Weights(checkpoint, dtype, ops, quantization=quantization), ops)
    assert_each_as_alone(Runs(model, ops, dtype), mixed_requests(60, 160))
