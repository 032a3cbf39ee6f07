"""Output tokens/s beside Transformers' `generate`, same weights, prompts and machine, taking turns.

    python -m benchmarks.transformers [--rounds 3] [--concurrency 32] [--batch 8]

Ours: `--concurrency` requests at once through `LLM`. Theirs: the same number of requests in static batches of `--batch`.
bf16, greedy, ignore_eos, `--input` random tokens in (other ones each round) and `--output` tokens out. Run it in the
environment of `make oracle`, which has torch and transformers. Prints each round and the medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np

from tests.tools.write_safetensors import smollm2_directory


def main() -> None:
    """Without `--engine`, start one process per engine and round, in turn, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--concurrency", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--input", type=int, default=256)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--engine", choices=("octavo", "transformers"), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.engine:
        measure = _octavo if options.engine == "octavo" else _transformers
        print(json.dumps(measure(options)))
        return
    speeds: dict[str, list[float]] = {"octavo": [], "transformers": []}
    for seed in range(options.rounds):
        for engine in speeds:
            command = [
                sys.executable,
                "-m",
                "benchmarks.transformers",
                *sys.argv[1:],
                "--engine",
                engine,
                "--seed",
                str(seed),
            ]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            speeds[engine].append(json.loads(output.splitlines()[-1]))
        print("  ".join(f"{engine} {values[-1]:7.1f} tokens/s" for engine, values in speeds.items()), flush=True)
    ours, theirs = (statistics.median(values) for values in speeds.values())
    print(f"median: octavo {ours:.1f}, transformers {theirs:.1f} output tokens/s, ratio {ours / theirs:.2f}")


def _prompts(options: argparse.Namespace, count: int, seed: int) -> list[list[int]]:
    tokens = np.random.default_rng(seed).integers(100, 49_000, (count, options.input))
    return [[int(token) for token in row] for row in tokens]


def _octavo(options: argparse.Namespace) -> float:
    from octavo import LLM, SamplingParams

    params = SamplingParams(temperature=0, max_tokens=options.output, ignore_eos=True)
    length = options.input + options.output
    with LLM(str(smollm2_directory("bfloat16")), dtype="bfloat16", max_model_len=length) as llm:
        llm.generate(_prompts(options, 1, seed=1_000 + options.seed), params, use_tqdm=False)
        prompts = _prompts(options, options.concurrency, options.seed)
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
    return sum(len(output.outputs[0].token_ids) for output in outputs) / seconds


def _transformers(options: argparse.Namespace) -> float:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(smollm2_directory("bfloat16"), dtype=torch.bfloat16).eval()

    def generate(prompts: list[list[int]]) -> int:
        ids = torch.tensor(prompts)
        limits = {"max_new_tokens": options.output, "min_new_tokens": options.output}
        with torch.inference_mode():
            out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=2, **limits)
        return int(out.numel() - ids.numel())

    generate(_prompts(options, 1, seed=1_000 + options.seed))
    prompts = _prompts(options, options.concurrency, options.seed)
    start = time.perf_counter()
    count = sum(generate(prompts[i : i + options.batch]) for i in range(0, len(prompts), options.batch))
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
