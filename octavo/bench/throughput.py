"""Tokens per second of many prompts at once, in this process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from octavo.bench.conditions import conditions, in_one_line
from octavo.bench.datasets import Lengths, file_samples, random_samples
from octavo.config import EngineConfig
from octavo.options.description import option

SHOWS_ENGINE = True  # the engine's options are this benchmark's


@dataclass
class Options:
    """Names and defaults of `vllm bench throughput`."""

    dataset_name: str = option("random", "Random tokens, or the lines of --dataset-path", choices=("random", "custom"))
    dataset_path: str | None = option(None, 'A file with an object like {"prompt": "text"} on each line')
    num_prompts: int = option(1000, "How many prompts", minimum=1)
    input_len: int = option(1024, "Tokens of a random prompt", flags=("--random-input-len",), minimum=1)
    output_len: int = option(128, "Tokens of an answer", flags=("--random-output-len",), minimum=1)
    prefix_len: int = option(0, "Tokens that begin all random prompts", flags=("--random-prefix-len",), minimum=0)
    random_range_ratio: float = option(0.0, "Lengths differ by up to this share", minimum=0.0, maximum=1.0)
    n: int = option(1, "Answers to each prompt", minimum=1)
    output_json: str | None = option(None, "Write the result to this file, too")


def run(config: EngineConfig, options: Options) -> dict[str, Any]:
    """The result, under vLLM's names and a few more. Prompts that are refused raise ValidationError."""
    from octavo.llm import LLM
    from octavo.sampling.params import SamplingParams

    with LLM.from_config(config) as llm:
        tokenizer, seed = llm.get_tokenizer(), config.seed or 0
        if options.dataset_name == "custom":
            samples = file_samples(options.dataset_path or "", tokenizer, options.num_prompts, options.output_len)
        else:
            lengths = Lengths(options.input_len, options.output_len, options.prefix_len, options.random_range_ratio)
            samples = random_samples(tokenizer, options.num_prompts, lengths, seed)
        params = [
            SamplingParams(n=options.n, temperature=1.0, seed=seed, ignore_eos=True, max_tokens=sample.output_len)
            for sample in samples
        ]
        start = time.perf_counter()
        outputs = llm.generate(
            [{"prompt_token_ids": sample.token_ids} for sample in samples], params, use_tqdm=not config.disable_progress
        )
        seconds = time.perf_counter() - start
        engine = conditions(llm.start_table)
    prompt_tokens = sum(len(output.prompt_token_ids or ()) for output in outputs)
    output_tokens = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    return {
        "elapsed_time": seconds,
        "num_requests": len(outputs),
        "failed": sum(output.error is not None for output in outputs),
        "total_num_tokens": prompt_tokens + output_tokens,
        "total_output_tokens": output_tokens,
        "requests_per_second": len(outputs) / seconds,
        "tokens_per_second": (prompt_tokens + output_tokens) / seconds,
        "output_tokens_per_second": output_tokens / seconds,
        "engine": engine,
    }


def text(result: dict[str, Any]) -> str:
    """What ran, vLLM's line, and how much of it was in vain."""
    failed = f"\nFailed requests: {result['failed']}" if result["failed"] else ""
    return (
        f"{in_one_line(result['engine'])}\n"
        f"Throughput: {result['requests_per_second']:.2f} requests/s, {result['tokens_per_second']:.2f} total tokens/s, "
        f"{result['output_tokens_per_second']:.2f} output tokens/s{failed}"
    )
