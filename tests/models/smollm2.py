"""The real model in tests: loading it, and greedy generation through the engine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from octavo.engine.engine import Engine
from octavo.engine.request import Request
from octavo.kernels.ops import Ops
from octavo.models.config import read_model_config
from octavo.models.registry import Model, build_model
from octavo.runner.model_runner import ModelRunner
from octavo.sampling.params import SamplingParams
from octavo.weights.checkpoint import Weights
from octavo.weights.loader import open_checkpoint


def load_model(path: Path, ops: Ops, dtype: Any = np.float32) -> Model:
    """Directory or .gguf file."""
    checkpoint = open_checkpoint(path)
    return build_model(read_model_config(checkpoint), Weights(checkpoint, np.dtype(dtype), ops), ops)


def generate(model: Model, ops: Ops, prompts: list[list[int]], count: int) -> list[list[int]]:
    """`count` greedy tokens after each prompt, past any EOS, all prompts together; float32 cache."""
    config = model.config
    blocks = sum(-(-(len(prompt) + count) // 16) for prompt in prompts)
    cache = ops.kv_cache(config.num_layers, blocks, 16, config.num_kv_heads, config.head_dim, np.dtype(np.float32))
    runner = ModelRunner(model, ops, cache, max_num_seqs=len(prompts), max_model_len=1024)
    engine = Engine(runner, block_size=16, max_num_seqs=len(prompts), max_num_batched_tokens=256, max_model_len=1024)
    params = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)
    for i, prompt in enumerate(prompts):
        engine.add(Request(str(i), prompt, params, time.time()))
    outputs: list[list[int]] = [[] for _ in prompts]
    while engine.has_work:
        for delta in engine.step().deltas:
            outputs[int(delta.request_id)] += delta.token_ids
    return outputs
