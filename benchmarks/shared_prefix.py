"""Requests that begin alike, with and without the prefix cache, in turn on one engine.

    python -m benchmarks.shared_prefix --output 1 --at-once 32     time to first token
    python -m benchmarks.shared_prefix                             requests/s, 8 at a time, 32 tokens out

Without means that every request has a `cache_salt` of its own; everything else is equal. The cache is emptied before each
round. Times to first token count from when a request was handed to the engine."""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass

from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.request import Request
from octavo.sampling.params import SamplingParams


@dataclass
class Round:
    """What one pass over all requests took."""

    first_token_seconds: list[float]
    seconds: float
    cached_tokens: int


def run(engine: Engine, prompts: list[list[int]], options: argparse.Namespace, *, caching: bool) -> Round:
    """All prompts, `options.at_once` of them at a time, on an empty cache."""
    engine.reset_prefix_cache()
    params = SamplingParams(temperature=0.0, max_tokens=options.output, ignore_eos=True)
    waiting = list(enumerate(prompts))
    begun: dict[str, float] = {}
    result = Round([], 0.0, 0)
    start = time.perf_counter()
    running = 0
    while waiting or engine.has_work:
        while waiting and running < options.at_once:
            number, prompt = waiting.pop(0)
            engine.add(Request(f"{number}", prompt, params, 0.0, cache_salt=None if caching else f"{number}"))
            begun[f"{number}"] = time.perf_counter()
            running += 1
        for delta in engine.step().deltas:
            if delta.request_id in begun:
                result.first_token_seconds.append(time.perf_counter() - begun.pop(delta.request_id))
                result.cached_tokens += delta.num_cached_tokens
            running -= delta.finish_reason is not None
    result.seconds = time.perf_counter() - start
    return result


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory, .gguf file or hub id (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--dtype", default="bfloat16")
    for name, default in (("requests", 32), ("common", 1000), ("own", 50), ("output", 32), ("at-once", 8), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    engine = build_engine(EngineConfig(model=options.model, dtype=options.dtype), lambda status: None)
    generator = random.Random(1)
    common = [generator.randrange(1000, 40_000) for _ in range(options.common)]
    prompts = [common + [generator.randrange(1000, 40_000) for _ in range(options.own)] for _ in range(options.requests)]
    run(engine, prompts[:2], options, caching=True)  # warm up
    rounds: dict[bool, list[Round]] = {False: [], True: []}
    for _ in range(options.rounds):
        for caching in rounds:
            rounds[caching].append(run(engine, prompts, options, caching=caching))
    print(f"{options.requests} requests of {options.common} common + {options.own} own tokens, {options.output} out")
    print(f"{options.at_once} at a time, {options.rounds} rounds each; seconds to first token: mean, median, slowest")
    means = {}
    for caching, each in rounds.items():
        firsts = [seconds for one in each for seconds in one.first_token_seconds]
        means[caching] = statistics.mean(firsts)
        total = statistics.median(one.seconds for one in each)
        name = "with" if caching else "without"
        print(
            f"{name:>8} {means[caching]:7.3f} {statistics.median(firsts):7.3f} {max(firsts):7.3f}"
            f"   {options.requests / total:6.2f} requests/s, {options.requests * options.output / total:6.1f} tokens/s,"
            f" {each[0].cached_tokens} prompt tokens from the cache"
        )
    print(f"time to first token with : without, of the means: {means[True] / means[False]:.3f}")
    engine.close()


if __name__ == "__main__":
    main()
