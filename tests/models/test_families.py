"""Every family against Transformers' stored logits, and through the engine against its stored continuation."""

from __future__ import annotations

import time

import numpy as np
import pytest

from octavo.engine.engine import Engine
from octavo.engine.request import Request
from octavo.kernels.ops import Ops
from octavo.models.registry import Model
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams
from tests.golden.derive_families import OUTPUT_LENGTH, SEED, load, prompt_of
from tests.models.backends import BACKENDS
from tests.models.driver import BLOCK_SIZE, logits_of
from tests.models.families import FAMILIES
from tests.models.golden_values import TOLERANCE, logits_error
from tests.models.tiny import tiny_model

GOLDEN = load()


def greedy(model: Model, ops: Ops, prompts: list[list[int]]) -> tuple[list[list[int]], list[int]]:
    """Continuations by the engine, one request after the other, prompts in chunks of 24 tokens; and how many tokens of each
    prompt were cached."""
    config, longest = model.config, len(prompts[0]) + OUTPUT_LENGTH
    cache = ops.kv_cache(config.num_layers, 16, BLOCK_SIZE, config.num_kv_heads, config.head_dim, np.dtype(np.float32))
    runner = ModelRunner(model, ops, cache, max_num_seqs=2, max_model_len=longest)
    engine = Engine(runner, block_size=BLOCK_SIZE, max_num_seqs=2, max_num_batched_tokens=24, max_model_len=longest)
    params = SamplingParams(temperature=0.0, max_tokens=OUTPUT_LENGTH, ignore_eos=True)
    outputs, cached = [], []
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), prompt, params, time.time()))
        deltas = []
        while engine.has_work:
            deltas += engine.step().deltas
        outputs.append([token for delta in deltas for token in delta.token_ids])
        cached.append(max(delta.num_cached_tokens or 0 for delta in deltas))
    cache.close()
    return outputs, cached


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_in_chunks_and_greedy_ids_with_a_cached_prefix(name: str, backend: str) -> None:
    golden, ops = GOLDEN[name], BACKENDS[backend]()
    model = tiny_model(ops, FAMILIES[name].checkpoint(golden["shapes"], SEED))
    prompt = prompt_of(golden["prompt_seed"])
    for chunk in (64, 7):
        assert logits_error(logits_of(model, ops, prompt, chunk), golden) < TOLERANCE, chunk
    outputs, cached = greedy(model, ops, [prompt, prompt])
    assert outputs == [golden["greedy"]] * 2
    assert cached == [0, 48]
    ops.close()
