"""Every format of weights at the same shape, taking turns, so that the ratios hold on a machine that others use too.

    python -m benchmarks.formats [--seconds 60] [--threads 2] [--out 8192] [--width 2048]

For each format and number of rows: the quickest call in microseconds, what it reads of the weight in GB/s and what it
computes in GFLOP/s (two operations for each weight and row), beside the machine's limits from the same run.
"""

from __future__ import annotations

import argparse
import itertools
import time

import ml_dtypes
import numpy as np

from benchmarks.kernels import FORMATS, Limits
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.ops import Quantization
from octavo.kernels.packed import INTEGER_BITS, PackedTensor, Packing, WeightPart

ROWS = (1, 4, 8, 16, 32, 128)
COPIES = 3  # used in turn; together with the other formats they exceed the caches


# As checkpoints have them.
PACKINGS = {
    "awq-128": Packing("int4", 128, np.dtype(np.float16), "zero"),
    "w4a16-32": Packing("int4", 32, np.dtype(ml_dtypes.bfloat16)),
    "w8a16-128": Packing("int8", 128, np.dtype(ml_dtypes.bfloat16)),
    "fp8-block": Packing("fp8_e4m3", 128, np.dtype(np.float32)),
    "q4_k": Packing("int4", 32, np.dtype(np.int8), "least"),
    "q5_k": Packing("int5", 32, np.dtype(np.int8), "least"),
    "q6_k": Packing("int6", 16, np.dtype(np.int8)),
}


def _packed(packing: Packing, shape: tuple[int, ...]) -> PackedTensor:
    """Codes that all stand for numbers of one size."""
    outputs, inputs = shape
    groups, offset = (outputs, packing.groups(inputs)), packing.offset_dtype
    zeros = None if offset is None else np.full(groups, 8, offset)
    codes = np.random.default_rng(0).integers(0, 16, (outputs, inputs), np.uint8)
    if INTEGER_BITS.get(packing.codes, 8) == 8:
        codes += np.uint8(40)
    if packing.has_factors:
        factors = np.full((outputs, packing.factors(inputs)), 0.001, np.float16)
        return PackedTensor(packing, codes, np.full(groups, 10, np.int8), zeros, factors=factors)
    return PackedTensor(packing, codes, np.full(groups, 0.01, packing.scale), zeros)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa", default="auto")
    parser.add_argument("--out", type=int, default=8192)
    parser.add_argument("--width", type=int, default=2048)
    options = parser.parse_args()
    ops, random = CpuOps(options.threads, options.isa), np.random.default_rng(0)
    part = random.standard_normal((options.out, options.width), np.float32).astype(ml_dtypes.bfloat16)
    kinds: dict[str, tuple[WeightPart, Quantization | None]] = {"bfloat16": (part, None)}
    kinds |= {kind: (part, quantization) for kind, quantization in FORMATS.items()}
    kinds |= {kind: (_packed(packing, part.shape), None) for kind, packing in PACKINGS.items()}
    weights = {kind: [ops.linear_weight([each], quantization=q) for _ in range(COPIES)] for kind, (each, q) in kinds.items()}
    inputs = {rows: random.standard_normal((rows, options.width), np.float32) for rows in ROWS}
    best = dict.fromkeys(itertools.product(kinds, ROWS), float("inf"))
    end = time.perf_counter() + options.seconds
    for turn in itertools.takewhile(lambda _: time.perf_counter() < end, itertools.count()):
        for kind, rows in best:
            start = time.perf_counter()
            ops.linear(inputs[rows], weights[kind][turn % COPIES])
            best[kind, rows] = min(best[kind, rows], time.perf_counter() - start)
    limits = Limits.measure(ops.threads)
    print(
        f"[{options.out}, {options.width}], {ops.description}; reads {limits.read:.1f} GB/s, bf16 {limits.bf16:.0f} GFLOP/s,"
    )
    print(f"int8 {limits.int8:.0f} GOP/s. Rows {', '.join(map(str, ROWS))}:")
    for kind in kinds:
        took = [best[kind, rows] for rows in ROWS]
        nbytes, work = weights[kind][0].nbytes, 2 * options.out * options.width
        print(f"{kind:12} us      " + "".join(f"{seconds * 1e6:9.0f}" for seconds in took))
        print(f"{'':12} GB/s    " + "".join(f"{nbytes / seconds / 1e9:9.1f}" for seconds in took))
        print(
            f"{'':12} GFLOP/s " + "".join(f"{work * rows / each / 1e9:9.0f}" for rows, each in zip(ROWS, took, strict=True))
        )


if __name__ == "__main__":
    main()
