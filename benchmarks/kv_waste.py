"""How much of the KV cache is held and not written, and how full it is while requests wait.

    python -m benchmarks.kv_waste [--requests 500] [--blocks 4096]

The scheduler and the cache's bookkeeping are the real ones; the model is left out, since waste does not depend on it.
Requests are 20 to 2,000 tokens long, of which a random share is the prompt."""

from __future__ import annotations

import argparse
import itertools
import random
from dataclasses import dataclass, field

from octavo.engine.engine import Engine
from octavo.engine.plan import RowResult, StepPlan
from octavo.engine.request import Request
from octavo.sampling.params import SamplingParams

BLOCK_SIZE = 16
MAX_NUM_SEQS = 100  # as many as `debug_state` describes


class NoModel:
    """A runner that draws the same token always."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def execute(self, plan: StepPlan) -> list[RowResult]:
        """See `Runner`."""
        return [RowResult(7 if each.sample else None) for each in plan.scheduled]

    def close(self) -> None:
        """See `Runner`."""


@dataclass
class Shares:
    """One value a step."""

    unwritten: list[float] = field(default_factory=list)  # slots of held blocks
    used: list[float] = field(default_factory=list)  # slots of the whole cache that are written, while requests wait


def mixed_requests(count: int) -> list[Request]:
    """The same ones each time."""
    generator = random.Random(1)
    requests = []
    for i in range(count):
        length = generator.randint(20, 2000)
        prompt = [generator.randrange(50_000) for _ in range(generator.randint(1, length - 1))]
        params = SamplingParams(temperature=0.0, max_tokens=length - len(prompt), ignore_eos=True)
        requests.append(Request(f"{i}", prompt, params, arrival_time=0.0))
    return requests


def measure(engine: Engine, num_blocks: int) -> Shares:
    """Step until nothing is left."""
    shares = Shares()
    while engine.has_work:
        engine.step()
        state = engine.debug_state()
        held = state["blocks"]["held"] * BLOCK_SIZE
        written = sum(sequence["computed_tokens"] for sequence in state["running"])
        if held:
            shares.unwritten.append(1 - written / held)
        if state["num_waiting"]:
            shares.used.append(written / (num_blocks * BLOCK_SIZE))
    return shares


def main() -> None:
    """See the top of the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--blocks", type=int, default=4096)
    options = parser.parse_args()
    engine = Engine(
        NoModel(options.blocks),
        block_size=BLOCK_SIZE,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=2048,
        max_model_len=2048,
    )
    for request in mixed_requests(options.requests):
        engine.add(request)
    shares = measure(engine, options.blocks)
    mean = sum(shares.unwritten) / len(shares.unwritten)
    print(f"{options.requests} requests, {options.blocks} blocks of {BLOCK_SIZE}, {len(shares.unwritten)} steps")
    print(f"held and not written: {mean:.2%} of held slots on average, {max(shares.unwritten):.2%} at most")
    filled = list(itertools.dropwhile(lambda used: used < 0.9, shares.used))
    print(f"used while requests wait: {sum(filled) / len(filled):.2%} on average once filled, {min(filled):.2%} at least")
    print(f"preemptions: {engine.stats().num_preemptions}")


if __name__ == "__main__":
    main()
