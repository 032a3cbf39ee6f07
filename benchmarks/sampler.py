"""Microseconds per row of the native sampler (all threads together), and of the reference: python -m benchmarks.sampler"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from octavo.engine.request import Request
from octavo.kernels.cpu.ops import CpuOps
from octavo.sampling.params import SamplingParams
from octavo.sampling.sampler import sample
from octavo.sampling.state import SamplingState

OPS = CpuOps()
CASES = {
    "greedy": {"temperature": 0},
    "temperature 0.8": {"temperature": 0.8},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9},
    "min_p 0.05": {"min_p": 0.05},
    "greedy, penalties": {"temperature": 0, "repetition_penalty": 1.2, "frequency_penalty": 0.5},
    "greedy, logprobs 5": {"temperature": 0, "logprobs": 5},
}


def measure(rows: int, vocab_size: int) -> None:
    """Print the best of 7 runs for each case, over logits as peaked as a model's (normal, deviation 3, a few high ones)."""
    random = np.random.default_rng(0)
    logits = (random.standard_normal((rows, vocab_size)) * 2.0).astype(np.float32)
    for row in logits:
        row[random.integers(0, vocab_size, 40)] += np.linspace(4, 12, 40).astype(np.float32)
    prompt = random.integers(0, vocab_size, 256).tolist()
    for name, fields in CASES.items():
        request = Request("r", prompt, SamplingParams(seed=1, max_tokens=None, **fields), 0.0, [2])
        states = [SamplingState(request, i, prompt[:100], vocab_size) for i in range(rows)]
        native, reference = (_quickest(function, logits, states) / rows * 1e6 for function in (OPS.sample, sample))
        print(f"{rows:3} x {vocab_size:7}  {name:22}{native:8.1f} us a row, reference {reference:8.1f}")


def _quickest(function: Callable[..., Any], logits: np.ndarray, states: list[SamplingState]) -> float:
    times = []
    for _ in range(7):
        start = time.perf_counter()
        function(logits, states)
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    measure(32, 49_152)
    measure(8, 151_936)
    measure(1, 49_152)
