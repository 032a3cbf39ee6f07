"""Seconds that one batch of prompts takes, in this process."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Any

from octavo.bench.conditions import conditions, in_one_line
from octavo.bench.datasets import Lengths, random_samples
from octavo.bench.percentiles import percentile
from octavo.config import EngineConfig
from octavo.options.description import option

SHOWS_ENGINE = True
PERCENTS = (10, 25, 50, 75, 90, 99)


@dataclass
class Options:
    """Names and defaults of `vllm bench latency`."""

    input_len: int = option(32, "Tokens of a prompt", minimum=1)
    output_len: int = option(128, "Tokens of an answer", minimum=1)
    batch_size: int = option(8, "How many prompts at once", minimum=1)
    n: int = option(1, "Answers to each prompt", minimum=1)
    num_iters_warmup: int = option(10, "Batches before those that count", minimum=0)
    num_iters: int = option(30, "Batches", minimum=1)
    output_json: str | None = option(None, "Write the result to this file, too")


def run(config: EngineConfig, options: Options) -> dict[str, Any]:
    """The result, under vLLM's names."""
    from octavo.llm import LLM
    from octavo.offline.progress import ProgressBar
    from octavo.sampling.params import SamplingParams

    params = SamplingParams(
        n=options.n, temperature=1.0, seed=config.seed or 0, ignore_eos=True, max_tokens=options.output_len
    )
    lengths = Lengths(options.input_len, options.output_len)
    latencies = []
    batches, shows_bar = options.num_iters_warmup + options.num_iters, not config.disable_progress
    with LLM.from_config(config) as llm, ProgressBar(batches, shows_bar, "Batches, with warm-up", "batch") as bar:
        engine = conditions(llm.start_table)
        for number in range(batches):
            samples = random_samples(llm.get_tokenizer(), options.batch_size, lengths, (config.seed or 0) + number)
            prompts = [{"prompt_token_ids": sample.token_ids} for sample in samples]
            start = time.perf_counter()
            llm.generate(prompts, params, use_tqdm=False)
            latencies.append(time.perf_counter() - start)
            bar.update(1)
    latencies = latencies[options.num_iters_warmup :]
    return {
        "avg_latency": statistics.fmean(latencies),
        "latencies": latencies,
        "percentiles": {str(percent): percentile(latencies, percent) for percent in PERCENTS},
        "engine": engine,
    }


def text(result: dict[str, Any]) -> str:
    """What ran, and the rest as vLLM prints it."""
    lines = [f"{percent}% percentile latency: {seconds} seconds" for percent, seconds in result["percentiles"].items()]
    return "\n".join([in_one_line(result["engine"]), f"Avg latency: {result['avg_latency']} seconds", *lines])
