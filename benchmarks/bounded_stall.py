"""How long answers that are being written stand still while a long prompt is computed, with and without --max-itl-ms.

    python -m benchmarks.bounded_stall --max-itl-ms 60

A few streams write; then a prompt of 6,000 tokens comes. Printed are the times between two tokens of a stream from then
until the prompt's own first token, what that took, and the ratio of the 99th percentiles. With and without take turns, and
all answers must be the same. Wall times of a shared machine: compare only what one run printed."""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import dataclass, field

from octavo.bench.percentiles import percentile
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.engine.engine import Engine
from octavo.engine.request import Request
from octavo.sampling.params import SamplingParams


@dataclass
class Round:
    """One long prompt among streams."""

    gaps: list[float] = field(default_factory=list)  # seconds between two tokens of a stream while the prompt is computed
    usual: float = 0.0  # median of the gaps before
    prompt_seconds: float = 0.0  # until the prompt's first token
    token_ids: dict[str, list[int]] = field(default_factory=dict)


def request(name: str, length: int, output: int) -> Request:
    """Random tokens in, the same ones for the same name; `output` tokens out."""
    generator = random.Random(name)
    prompt = [generator.randrange(1000, 40_000) for _ in range(length)]
    params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    return Request(name, prompt, params, 0.0)


def run(engine: Engine, options: argparse.Namespace) -> Round:
    """Streams until they are in their stride, then the long prompt until its first token."""
    engine.reset_prefix_cache()
    result = Round()
    for number in range(options.streams):
        engine.add(request(f"stream {number}", 32, 10_000))
    before = [step(engine, result) for _ in range(options.warm_up)]
    result.usual = statistics.median(before[1:])
    engine.add(request("long", options.prompt, 1))
    start = time.perf_counter()
    while "long" not in result.token_ids:
        result.gaps.append(step(engine, result))
    result.prompt_seconds = time.perf_counter() - start
    for number in range(options.streams):
        engine.abort(f"stream {number}")
    engine.step()
    return result


def step(engine: Engine, result: Round) -> float:
    """The seconds that one step takes; every stream gets a token in it."""
    start = time.perf_counter()
    for delta in engine.step().deltas:
        result.token_ids.setdefault(delta.request_id, []).extend(delta.token_ids)
    return time.perf_counter() - start


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="directory, .gguf file or hub id (default: SmolLM2-135M-Instruct)")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--max-itl-ms", type=float, default=60.0)
    for name, default in (("prompt", 6000), ("streams", 4), ("warm-up", 40), ("rounds", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    config = {"model": options.model, "dtype": options.dtype, "num_gpu_blocks_override": 1024}
    engines = {
        "without": build_engine(EngineConfig(**config), lambda status: None),
        "with": build_engine(EngineConfig(**config, max_itl_ms=options.max_itl_ms), lambda status: None),
    }
    rounds: dict[str, list[Round]] = {name: [] for name in engines}
    for _ in range(options.rounds):
        for name, engine in engines.items():
            rounds[name].append(run(engine, options))
    print(f"{options.streams} streams, a prompt of {options.prompt} tokens, {options.rounds} rounds each; ms between tokens")
    print(f"{'':>8}   usual  median     p99 longest   seconds to the prompt's first token")
    worst = {}
    for name, each in rounds.items():
        gaps = [1000 * gap for one in each for gap in one.gaps]
        worst[name] = percentile(gaps, 99)
        usual = 1000 * statistics.median(one.usual for one in each)
        seconds = statistics.median(one.prompt_seconds for one in each)
        print(f"{name:>8} {usual:7.1f} {statistics.median(gaps):7.1f} {worst[name]:7.1f} {max(gaps):7.1f}   {seconds:7.2f}")
    print(f"99th percentile with : without {worst['with'] / worst['without']:.3f} (limit {options.max_itl_ms:g} ms)")
    answers = [one.token_ids for each in rounds.values() for one in each]
    shortest = {name: min(len(answer[name]) for answer in answers) for name in answers[0]}
    assert all(answer[name][:count] == answers[0][name][:count] for answer in answers for name, count in shortest.items())
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
