"""The points of `benchmarks.peers` on OpenVINO GenAI, which has no server of its own: in process, without HTTP.

    optimum-cli export openvino --model DIRECTORY --task text-generation-with-past --weight-format fp16 EXPORTED
    python -m benchmarks.openvino EXPORTED --points 1:4,8:16,32:64

Runs in an environment with `openvino-genai`. bfloat16, its continuous batching with prefix cache, 2 threads.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

import numpy as np


def run(pipeline: Any, prompts: list[Any], at_once: int, config: Any) -> tuple[float, int, list[float]]:
    """Seconds, tokens, and seconds to each first token."""
    from openvino_genai import GenerationStatus

    running: dict[int, Any] = {}
    begun: dict[int, float] = {}
    first: list[float] = []
    tokens = 0
    start = time.perf_counter()
    number = 0
    while number < len(prompts) or running:
        while number < len(prompts) and len(running) < at_once:
            begun[number] = time.perf_counter()
            running[number] = pipeline.add_request(number, prompts[number], config)
            number += 1
        pipeline.step()
        for key, handle in list(running.items()):
            while handle.can_read():
                tokens += sum(len(output.generated_ids) for output in handle.read().values())
                if key in begun:
                    first.append(time.perf_counter() - begun.pop(key))
            if handle.get_status() == GenerationStatus.FINISHED:
                del running[key]
    return time.perf_counter() - start, tokens, first


def main() -> None:
    """See the top of the file."""
    import openvino
    import openvino_genai

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--points", default="1:4,8:16,32:64")
    parser.add_argument("--prefix", type=int, default=0)
    parser.add_argument("--input", type=int, default=256)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=49_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size, scheduler.max_num_seqs, scheduler.max_num_batched_tokens = 3, 128, 512
    scheduler.enable_prefix_caching = scheduler.dynamic_split_fuse = True
    properties = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 2}
    pipeline = openvino_genai.ContinuousBatchingPipeline(options.model, scheduler, "CPU", properties)
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = options.output, True, False
    generator = random.Random(options.seed)

    def tokens(length: int) -> list[int]:
        return [generator.randrange(1000, options.vocabulary) for _ in range(length)]

    def tensor(ids: list[int]) -> Any:
        return openvino.Tensor(np.array([ids], np.int64))

    for point in options.points.split(","):
        at_once, count = map(int, point.split(":"))
        run(pipeline, [tensor(tokens(options.prefix + options.input))], 1, config)
        prefix = tokens(options.prefix)
        prompts = [tensor(prefix + tokens(options.input)) for _ in range(count)]
        seconds, produced, first = run(pipeline, prompts, at_once, config)
        print(
            f"{point:>7} openvino   {count / seconds:7.2f} requests/s {produced / seconds:7.1f} tokens/s, "
            f"first token {1000 * statistics.median(first):7.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
