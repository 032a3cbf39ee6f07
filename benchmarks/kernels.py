"""The native kernels beside the limits of the machine, measured in the same run.

    python -m benchmarks.kernels [--isa avx512_bf16] [--threads 2] [--only linear]

Weights are cold: copies are used in turn that together exceed the caches. The limits are the best of short windows."""

from __future__ import annotations

import argparse
import itertools
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from octavo.kernels.cpu.elementwise import silu_and_multiply
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.ops import Quantization, Routing
from octavo.runner.batch import Batch

FORMATS = {
    "int8": Quantization(8),
    "int8-a8": Quantization(8, activation_bits=8),
    "int4-32": Quantization(4, 32),
    "int4-32-a8": Quantization(4, 32, 8),
    "int4-64": Quantization(4, 64),
    "int4-64-a8": Quantization(4, 64, 8),
    "int4-128": Quantization(4, 128),
    "fp8": Quantization(8, is_float=True),
}
DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float32": np.dtype(np.float32), "float16": np.dtype(np.float16)}
CACHE_DTYPES = {**DTYPES, "int8": np.dtype(np.int8), "fp8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn)}
COLD_BYTES = 384 << 20
ROUNDS = 5
BEST, BEST_SECONDS = False, 3.0


@dataclass
class Limits:
    """GB/s of plain reading, GFLOP/s of chains in registers, over all threads."""

    read: float
    fma: float
    bf16: float
    int8: float

    def peak(self, isa: str, weights: str) -> float:
        """Of products with weights of a dtype or format, in two bytes if activations have 16 bits."""
        if weights in FORMATS and FORMATS[weights].rounds_activations and isa == "avx512_bf16":
            return self.int8 * 8 / FORMATS[weights].activation_bits
        return self.bf16 if isa == "avx512_bf16" and weights in ("bfloat16", "fp8") else self.fma

    @classmethod
    def measure(cls, threads: int) -> Limits:
        """By limits.cpp, compiled for this processor; takes some seconds."""
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "limits"
            source = Path(__file__).with_name("limits.cpp")
            subprocess.run(["c++", "-O3", "-march=native", "-pthread", str(source), "-o", str(program)], check=True)
            output = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True).stdout
        return cls(*map(float, output.split()))


def seconds(call: Callable[[int], object], repeats: int) -> float:
    """Seconds of one call: call(0), call(1), ... in turn. Median of rounds, or with --best the quickest call of all."""
    call(0)
    if BEST:
        end = time.perf_counter() + BEST_SECONDS
        return min(timed(call, i, 1) for i in itertools.takewhile(lambda _: time.perf_counter() < end, itertools.count()))
    return statistics.median(timed(call, 0, repeats) for _ in range(ROUNDS))


def timed(call: Callable[[int], object], first: int, count: int) -> float:
    """Seconds of one call: the mean of call(first), call(first + 1), ..."""
    start = time.perf_counter()
    for i in range(first, first + count):
        call(i)
    return (time.perf_counter() - start) / count


def linear(ops: CpuOps, limits: Limits, kind: str, out: int, width: int, all_rows: list[int]) -> None:
    """A line for each number of rows by a weight [out, width]. `kind`: a dtype or a format."""
    random = np.random.default_rng(0)
    part = random.standard_normal((out, width), np.float32).astype(DTYPES.get(kind, DTYPES["bfloat16"]))
    weights = [ops.linear_weight([part], quantization=FORMATS.get(kind))]
    nbytes = weights[0].nbytes
    weights += [ops.linear_weight([part], quantization=FORMATS.get(kind)) for _ in range(COLD_BYTES // nbytes - 1)]
    peak = limits.peak(ops.isa, kind)
    print(f"linear {kind} [{out}, {width}]")
    for rows in all_rows:
        x = random.standard_normal((rows, width), np.float32)
        work = 2 * rows * out * width
        repeats = max(2, min(3 * len(weights), int(6e10 / work)))
        took = seconds(lambda i, x=x: ops.linear(x, weights[i % len(weights)]), repeats)
        bandwidth, speed = nbytes / took / 1e9, work / took / 1e9
        print(
            f"  {rows:5} rows {took * 1e6:10.1f} us   {bandwidth:6.2f} GB/s ({bandwidth / limits.read:4.0%} of reading)"
            f"   {speed:7.1f} GFLOP/s ({speed / peak:4.0%} of the peak)"
        )


def attention(
    ops: CpuOps, limits: Limits, dtype: str, heads: tuple[int, int, int], lengths: list[int], queries: int
) -> None:
    """One line: the last `queries` tokens of each of some sequences. `lengths`: keys of each; `heads`: (n, k, d)."""
    random = np.random.default_rng(0)
    n, k, d = heads
    size = 16
    counts = [-(-length // size) for length in lengths]
    ids = random.permutation(sum(counts)).astype(np.int32)
    tables = np.zeros((len(lengths), max(counts)), np.int32)
    for row, count in enumerate(counts):
        tables[row, :count], ids = ids[:count], ids[count:]
    starts = np.arange(len(lengths) + 1, dtype=np.int32) * queries
    tokens = int(starts[-1])
    step = sum(counts) * size * 2 * k * d * CACHE_DTYPES[dtype].itemsize
    layers = max(1, min(40, COLD_BYTES // step))
    cache = ops.kv_cache(layers, sum(counts), size, k, d, CACHE_DTYPES[dtype])
    nothing = np.zeros(0, np.int32)
    everywhere = Batch(nothing, nothing, np.arange(sum(counts) * size), starts, nothing, tables, nothing)
    for layer in range(layers):
        ops.write_cache(
            random.standard_normal((sum(counts) * size, (n + 2 * k) * d), np.float32), cache, layer, everywhere, heads
        )
    batch = Batch(nothing, nothing, np.zeros(0, np.int64), starts, np.array(lengths, np.int32), tables, nothing)
    qkv = random.standard_normal((tokens, (n + 2 * k) * d), np.float32)
    work = sum(4 * n * d * (length - queries + (i + 1)) for length in lengths for i in range(queries))
    took = seconds(lambda i: ops.attention(qkv, cache, i % layers, batch, heads, 0.1), max(3, min(200, int(4e9 / work))))
    read = sum(lengths) * 2 * k * (d * CACHE_DTYPES[dtype].itemsize + (4 if dtype == "int8" else 0))
    peak = limits.peak(ops.isa, "bfloat16" if dtype in ("int8", "fp8_e4m3") else dtype)
    print(
        f"attention {dtype} {heads}: {len(lengths)} x {queries} queries, {lengths[0]} keys {took * 1e6:10.1f} us"
        f"   {read / took / 1e9:6.2f} GB/s ({read / took / 1e9 / limits.read:4.0%})   {work / took / 1e9:7.1f} GFLOP/s"
        f" ({work / took / 1e9 / peak:4.0%})"
    )


def experts(ops: CpuOps, limits: Limits, dtype: str, count: int, width: int, inner: int, chosen: int) -> None:
    """A line for each number of rows, of which each goes through `chosen` of `count` experts."""
    random = np.random.default_rng(0)
    plain = DTYPES.get(dtype, DTYPES["bfloat16"])
    gate, down = (random.standard_normal(shape, np.float32).astype(plain) for shape in ((inner, width), (width, inner)))
    made = [
        (
            ops.linear_weight([gate, gate], quantization=FORMATS.get(dtype), activation="silu"),
            ops.linear_weight([down], quantization=FORMATS.get(dtype)),
        )
        for _ in range(count)
    ]
    weights = ops.expert_weights(*zip(*made, strict=True))
    nbytes = sum(part.nbytes for part in made[0])
    print(f"experts {dtype}: {chosen} of {count} for each row, {width} -> {inner} -> {width}")
    for rows in (1, 4, 16, 64, 256, 1024):
        x = random.standard_normal((rows, width), np.float32)
        routings = [
            ops.route(random.standard_normal((rows, count), np.float32), Routing(chosen, normalise=True)) for _ in range(16)
        ]
        read = nbytes * statistics.mean(int((routing != 0).any(axis=0).sum()) for routing in routings)
        work = 6 * rows * chosen * width * inner
        took = seconds(lambda i, x=x, r=routings: ops.experts(x, r[i % 16], weights), max(2, min(64, int(6e10 / work))))
        bandwidth = read / took / 1e9
        print(
            f"  {rows:5} rows {took * 1e6:10.1f} us   {bandwidth:6.2f} GB/s ({bandwidth / limits.read:4.0%} of reading)"
            f"   {work / took / 1e9:7.1f} GFLOP/s"
        )


def elementwise(ops: CpuOps) -> None:
    """A line for each number of rows: the small operations of a layer of SmolLM2."""
    random = np.random.default_rng(0)
    for rows in (1, 32, 2048):
        x, weight = random.standard_normal((rows, 576), np.float32), random.standard_normal(576, np.float32)
        gate_up = random.standard_normal((rows, 3072), np.float32)
        table, positions = random.standard_normal((2048, 64), np.float32), np.arange(rows, dtype=np.int32)
        qkv = random.standard_normal((rows, 960), np.float32)
        small = ops.linear_weight([np.ones((16, 16), np.float32)])
        narrow = random.standard_normal((rows, 16), np.float32)
        nothing = np.zeros(0, np.int32)
        cache = ops.kv_cache(1, -(-rows // 16), 16, 3, 64, DTYPES["bfloat16"])
        batch = Batch(nothing, positions, np.arange(rows, dtype=np.int64), nothing, nothing, nothing, nothing)
        times = {
            "rms_norm 576": seconds(lambda i, x=x, w=weight: ops.rms_norm(x, w, 1e-5), 200),
            "silu 1536": seconds(lambda i, g=gate_up: silu_and_multiply(ops.calls, g), 200),
            "rotary and cache 15 x 64": seconds(
                lambda i, q=qkv, c=cache, b=batch, t=table: ops.write_cache(q, c, 0, b, (9, 3, 64), lambda _: t), 200
            ),
            "linear 16 x 16": seconds(lambda i, x=narrow, w=small: ops.linear(x, w), 200),
        }
        print(f"{rows:5} rows: " + ", ".join(f"{name} {took * 1e6:.1f} us" for name, took in times.items()))


def dequantize(ops: CpuOps) -> None:
    """A line for each GGUF type."""
    count = 135_000_000 // 256 * 256
    for name, bits in (("Q4_1", 5), ("Q8_0", 8.5), ("Q4_K", 4.5), ("Q6_K", 6.5625)):
        raw = np.random.default_rng(0).integers(0, 255, int(count * bits / 8), np.uint8)
        took = seconds(lambda i, raw=raw, name=name: ops.dequantize(raw, name, (count,), DTYPES["bfloat16"]), 1)
        print(f"dequantize {name} to bfloat16: 135M values in {took * 1e3:.0f} ms")


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--dtype", default="bfloat16", choices=[*DTYPES, *FORMATS], help="of weights")
    parser.add_argument("--cache-dtype", default="bfloat16", choices=sorted(CACHE_DTYPES))
    parser.add_argument("--only", choices=("linear", "attention", "experts", "elementwise", "dequantize"))
    parser.add_argument("--best", action="store_true", help="the quickest call counts: for a machine shared with others")
    options = parser.parse_args()
    global BEST
    BEST = options.best
    ops = CpuOps(options.threads, options.isa)
    limits = Limits.measure(ops.threads)
    print(f"{ops.description}: reads {limits.read:.1f} GB/s, FMA {limits.fma:.0f} GFLOP/s, bf16 {limits.bf16:.0f} GFLOP/s")
    print(f"int8 {limits.int8:.0f} GOP/s")
    if options.only in (None, "linear"):
        linear(ops, limits, options.dtype, 8192, 2048, [1, 2, 4, 8, 12, 16, 24, 32, 64, 128, 256, 512, 2048])
        for out, width in ((960, 576), (576, 576), (3072, 576), (576, 1536), (49152, 576)):
            linear(ops, limits, options.dtype, out, width, [1, 8, 32, 256])
    if options.only in (None, "attention") and options.dtype in DTYPES:
        for heads in ((9, 3, 64), (32, 8, 128)):
            for sequences, queries, length in (
                (1, 1, 300),
                (1, 1, 8000),
                (32, 1, 320),
                (8, 1, 2000),
                (64, 1, 2000),
                (1, 256, 256),
                (1, 2000, 2000),
            ):
                attention(ops, limits, options.cache_dtype, heads, [length] * sequences, queries)
    if options.only in (None, "experts"):
        experts(ops, limits, options.dtype, count=32, width=2048, inner=768, chosen=4)
    if options.only in (None, "elementwise"):
        elementwise(ops)
    if options.only in (None, "dequantize"):
        dequantize(ops)


if __name__ == "__main__":
    main()
