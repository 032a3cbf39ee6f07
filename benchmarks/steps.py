"""Whole steps of SmolLM2-135M in bfloat16 without the engine: prompts, and decoding beside a filled cache.

    python -m benchmarks.steps [--threads 1] [--prompts 8x256 1x2048] [--decode 1x320 8x320 32x320] [--seconds 5]
                               [--wall]

Prints tokens per second of CPU time (all threads together, so that other programs disturb little), the least of all steps,
and the GFLOP/s and GB/s that this is: of products and attention, and of weights and cache. With --wall it is the median of
the time that passes, beside what the machine can do at most, measured right before and after each line.
"""

from __future__ import annotations

import argparse
import statistics
import time

import ml_dtypes
import numpy as np

from benchmarks.kernels import Limits
from octavo.kernels.cpu.ops import CpuOps
from octavo.models.config import read_model_config
from octavo.models.registry import Model, build_model
from octavo.runner.batch import Batch
from octavo.weights.checkpoint import Weights
from octavo.weights.loader import open_checkpoint
from tests.tools.write_safetensors import smollm2_directory

BLOCK_SIZE = 16
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def smollm2(ops: CpuOps) -> Model:
    """The real model."""
    checkpoint = open_checkpoint(smollm2_directory("bfloat16"))
    return build_model(read_model_config(checkpoint), Weights(checkpoint, BFLOAT16, ops, lambda done, total: None), ops)


def make_batch(sequences: int, length: int, queries: int) -> Batch:
    """The last `queries` tokens of each of some sequences of one length."""
    blocks = -(-length // BLOCK_SIZE)
    positions = np.tile(np.arange(length - queries, length, dtype=np.int32), sequences)
    starts = np.arange(sequences + 1, dtype=np.int32) * queries
    return Batch(
        token_ids=np.random.default_rng(0).integers(3, 40000, len(positions)).astype(np.int32),
        positions=positions,
        slot_mapping=np.repeat(np.arange(sequences) * blocks * BLOCK_SIZE, queries) + positions,
        query_starts=starts,
        seq_lens=np.full(sequences, length, np.int32),
        block_tables=np.arange(sequences * blocks, dtype=np.int32).reshape(sequences, blocks),
        logits_rows=starts[1:] - 1,
    )


def measure(ops: CpuOps, model: Model, sequences: int, length: int, queries: int, options: argparse.Namespace) -> None:
    """Print one line."""
    config = model.config
    n, k, d = config.qkv_heads
    blocks = sequences * -(-length // BLOCK_SIZE)
    cache = ops.kv_cache(config.num_layers, blocks, BLOCK_SIZE, k, d, BFLOAT16)
    forward = ops.record(model.forward)
    forward(make_batch(sequences, length, length), cache)
    batch = make_batch(sequences, length, queries)
    clock = time.perf_counter if options.wall else time.process_time
    limits = [Limits.measure(options.threads)] if options.wall else []
    took = []
    end = time.perf_counter() + options.seconds
    while time.perf_counter() < end or len(took) < 3:
        start = clock()
        model.logits(forward(batch, cache))
        took.append(clock() - start)
    cache.close()
    best, tokens = statistics.median(took) if options.wall else min(took), sequences * queries
    unit = "ms" if options.wall else "ms of CPU"
    hidden, inner, layers = config.hidden_size, config.raw["intermediate_size"], config.num_layers
    weights = layers * hidden * ((2 * n + 2 * k) * d + 3 * inner)
    head = hidden * config.vocab_size
    scored = sum(4 * n * d * (position + 1) for position in range(length - queries, length)) * sequences * layers
    work = 2 * weights * tokens + 2 * head * sequences + scored
    read = 2 * (weights + head) + 4 * k * d * length * sequences * layers
    print(
        f"{sequences:3} x {queries:4} tokens, {length:4} keys: {1e3 * best:8.1f} {unit}, {tokens / best:7.0f} tokens/s"
        f"   {work / best / 1e9:6.1f} GFLOP/s   {read / best / 1e9:5.1f} GB/s",
        flush=True,
    )
    if options.wall:
        limits.append(Limits.measure(options.threads))
        print("    at most " + " and ".join(f"{each.bf16:.0f} GFLOP/s, {each.read:.1f} GB/s" for each in limits), flush=True)


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--prompts", nargs="*", default=["8x256", "1x2048"], help="sequences x tokens")
    parser.add_argument("--decode", nargs="*", default=["1x320", "8x320", "32x320"], help="sequences x keys")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--wall", action="store_true", help="the clock's time and the machine's limits")
    options = parser.parse_args()
    ops = CpuOps(options.threads)
    model = smollm2(ops)
    print(ops.description)
    for shape in options.prompts:
        sequences, length = map(int, shape.split("x"))
        measure(ops, model, sequences, length, length, options)
    for shape in options.decode:
        sequences, length = map(int, shape.split("x"))
        measure(ops, model, sequences, length, 1, options)


if __name__ == "__main__":
    main()
