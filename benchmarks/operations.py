"""What each operation of a step takes, beside what the machine could do: python -m benchmarks.operations

    python -m benchmarks.operations [--model DIRECTORY] [--quantization int8|int4] [--threads 2] [--steps 8x256x256 8x320x1]

SmolLM2-135M in bfloat16 by default; `int8` and `int4` (groups of 64) with activations of 8 bits. A step is sequences x keys
x queries of each. For every operation: how often a step calls it, the median of its time in all, what it reads (weights and
cache) and computes (products and attention) a second, and the time that the slower of the two would take at the limits
measured in the same run. Operations are called one by one here, with all rows in the last layer; `recorded` is the step as
the engine runs it (of a plain one, the engine calls the head's product together with the rest).
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.kernels import Limits
from benchmarks.steps import BFLOAT16, BLOCK_SIZE, make_batch
from octavo.kernels.cpu.calls import Immediate
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.cpu.weights import PackedWeight
from octavo.kernels.ops import Array, Quantization
from octavo.models.config import ModelConfig, read_model_config
from octavo.models.registry import Model, build_model
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Weights
from octavo.weights.loader import open_checkpoint
from tests.tools.write_safetensors import smollm2_directory

QUANTIZATIONS = {"int8": Quantization(8, activation_bits=8), "int4": Quantization(4, 64, 8)}


@dataclass
class Operation:
    """Of one step: seconds of its calls, and what they read and compute."""

    seconds: list[float] = field(default_factory=list)
    calls: int = 0
    bytes: int = 0
    operations: int = 0


class Timed(Immediate):
    """Calls that are timed by name, products by the shape of their weight. Arrays are used again once nobody holds them, as
    fresh memory would be cleared within the calls."""

    def __init__(self, ops: CpuOps, weights: dict[int, PackedWeight]) -> None:
        super().__init__(ops._library, ops.context)
        self.steps: dict[str, list[float]] = defaultdict(list)
        self.work: dict[str, Operation] = defaultdict(Operation)
        self._weights = weights
        self._arrays: dict[tuple[Any, ...], list[Array]] = defaultdict(list)

    def new(self, *shape: Any) -> Array:
        """One that is free: held by the list, this loop and the count alone."""
        arrays = self._arrays[shape]
        for array in arrays:
            if sys.getrefcount(array) == 3:
                return array
        arrays.append(super().new(*shape))
        return arrays[-1]

    def call(self, function: str, *arguments: Any) -> None:
        """Call it, and note how long that took."""
        start = time.perf_counter()
        super().call(function, *arguments)
        seconds = time.perf_counter() - start
        name = function.removeprefix("octavo_").replace("_", " ")
        if function == "octavo_linear":
            weight = self._weights[arguments[0]]
            name = f"product [{weight.out_features}, {weight.in_features}]"
            operation = self.work[name]
            operation.bytes += weight.nbytes
            operation.operations += 2 * arguments[2] * weight.out_features * weight.in_features
        operation = self.work[name]
        operation.calls += 1
        operation.seconds.append(seconds)

    @contextmanager
    def step(self) -> Iterator[None]:
        """The calls meanwhile are one step."""
        self.work = defaultdict(Operation)
        yield
        for name, operation in self.work.items():
            self.steps[name].append(sum(operation.seconds))


class NotedWeights(CpuOps):
    """The backend, and what its weights are."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.weights: dict[int, PackedWeight] = {}

    def linear_weight(self, *given: Any, **named: Any) -> PackedWeight:
        """As of `Ops`."""
        weight = super().linear_weight(*given, **named)
        assert weight.pointer is not None
        self.weights[weight.pointer] = weight
        return weight


def measure(ops: NotedWeights, model: Model, shape: str, quantization: str | None, seconds: float) -> None:
    """Print the table of one step."""
    sequences, keys, queries = map(int, shape.split("x"))
    config = model.config
    _, k, d = config.qkv_heads
    cache = ops.kv_cache(config.num_layers, sequences * -(-keys // BLOCK_SIZE), BLOCK_SIZE, k, d, BFLOAT16)
    recorded = ops.record(model.forward)
    recorded(make_batch(sequences, keys, keys), cache)
    batch = make_batch(sequences, keys, queries)
    timed = Timed(ops, ops.weights)
    limits, whole = [Limits.measure(ops.threads)], []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(whole) < 3:
        start = time.perf_counter()
        model.logits(recorded(batch, cache))
        whole.append(time.perf_counter() - start)
        with ops.recording(timed), timed.step():
            model.logits(model.forward(batch, cache))
    limits.append(Limits.measure(ops.threads))
    read = max(each.read for each in limits) * 1e9
    bf16, int8 = (max(getattr(each, name) for each in limits) * 1e9 for name in ("bf16", "int8"))
    _count_attention(timed.work["attention"], config, batch)
    peaks = f"{read / 1e9:.1f} GB/s, {bf16 / 1e9:.0f} GFLOP/s in bfloat16, {int8 / 1e9:.0f} in int8"
    print(f"{shape}: recorded {1e3 * statistics.median(whole):.2f} ms; limits {peaks}")
    total = least = 0.0
    for name, operation in timed.work.items():
        took = statistics.median(timed.steps[name])
        peak = int8 if quantization and name.startswith("product") else bf16
        limit = max(operation.bytes / read, operation.operations / peak)
        total, least = total + took, least + limit
        print(
            f"  {operation.calls:4} x {name:24} {1e3 * took:9.2f} ms {operation.bytes / took / 1e9:7.1f} GB/s "
            f"{operation.operations / took / 1e9:7.1f} GFLOP/s, at the limit {1e3 * limit:8.2f} ms"
        )
    print(f"  {'':6} {'all':24} {1e3 * total:9.2f} ms {'':32} at the limit {1e3 * least:8.2f} ms", flush=True)
    cache.close()


def _count_attention(operation: Operation, config: ModelConfig, batch: Batch) -> None:
    n, k, d = config.qkv_heads
    scored = int((batch.positions.astype(np.int64) + 1).sum())
    operation.operations = 4 * n * d * scored * config.num_layers
    operation.bytes = 2 * 2 * k * d * int(batch.seq_lens.sum()) * config.num_layers


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--quantization", choices=QUANTIZATIONS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--steps", nargs="*", default=["1x320x1", "8x320x1", "32x320x1", "8x256x256", "1x2000x2000"])
    options = parser.parse_args()
    ops = NotedWeights(options.threads)
    checkpoint = open_checkpoint(options.model or smollm2_directory("bfloat16"))
    quantization = QUANTIZATIONS.get(options.quantization)
    weights = Weights(checkpoint, np.dtype(ml_dtypes.bfloat16), ops, quantization=quantization)
    model = build_model(read_model_config(checkpoint), weights, ops)
    print(ops.description)
    for shape in options.steps:
        measure(ops, model, shape, options.quantization, options.seconds)


if __name__ == "__main__":
    main()
