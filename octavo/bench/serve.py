"""Latencies and tokens per second of a running server, any that has the OpenAI API."""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.bench.datasets import Lengths, Sample, file_samples, random_samples
from octavo.bench.percentiles import percentile, read_percents
from octavo.bench.target import Target
from octavo.config import EngineConfig
from octavo.errors import UnavailableError
from octavo.options.description import option

SHOWS_ENGINE = False
_METRICS = {"ttft": "Time to First Token", "tpot": "Time per Output Token (excl. 1st token)", "itl": "Inter-token Latency",
            "e2el": "End-to-end Latency"}  # fmt: skip


@dataclass
class Options:
    """Names and defaults of `vllm bench serve`. Host, port and model are the options of `octavo serve`."""

    base_url: str | None = option(None, "The server, in place of --host and --port")
    endpoint: str = option("/v1/completions", "Completions, or /v1/chat/completions")
    dataset_name: str = option("random", "Random tokens, or the lines of --dataset-path", choices=("random", "custom"))
    dataset_path: str | None = option(None, 'A file with an object like {"prompt": "text"} on each line')
    num_prompts: int = option(1000, "How many requests", minimum=1)
    random_input_len: int = option(1024, "Tokens of a random prompt", flags=("--input-len",), minimum=1)
    random_output_len: int = option(128, "Tokens of an answer", flags=("--output-len",), minimum=1)
    random_prefix_len: int = option(0, "Tokens that begin all random prompts", minimum=0)
    random_range_ratio: float = option(0.0, "Lengths differ by up to this share", minimum=0.0, maximum=1.0)
    request_rate: float = option(float("inf"), "Requests a second, as a Poisson process; inf: all at once", above=0.0)
    max_concurrency: int | None = option(None, "How many requests may run at a time", minimum=1)
    num_warmups: int = option(0, "Requests before those that count", minimum=0)
    temperature: float = option(0.0, "Of every request", minimum=0.0, maximum=2.0)
    ignore_eos: bool = option(False, "Let no answer end before its length")
    metric_percentiles: str = option("99", "Which percentiles are shown, separated by commas")
    output_json: str | None = option(None, "Write the result to this file, too", flags=("--result-filename",))


@dataclass
class Answer:
    """What became of one request, times in seconds."""

    prompt_tokens: int
    output_tokens: int = 0
    first: float = 0.0  # since it was sent
    gaps: list[float] = field(default_factory=list)  # between events
    total: float = 0.0
    error: str | None = None


def run(config: EngineConfig, options: Options) -> dict[str, Any]:
    """The result, under vLLM's names. UnavailableError if there is no server."""
    from octavo.offline.progress import ProgressBar
    from octavo.text.tokenizer import load_tokenizer
    from octavo.weights.hub import resolve_model

    percents = read_percents(options.metric_percentiles)
    tokenizer = load_tokenizer(resolve_model(config))
    count = options.num_prompts + options.num_warmups
    if options.dataset_name == "custom":
        samples = file_samples(options.dataset_path or "", tokenizer, count, options.random_output_len)
    else:
        lengths = Lengths(
            options.random_input_len, options.random_output_len, options.random_prefix_len, options.random_range_ratio
        )
        samples = random_samples(tokenizer, count, lengths, config.seed or 0)
    host = f"[{config.host}]" if ":" in config.host else config.host
    target = Target(options.base_url or f"http://{host}:{config.port}", config.api_key[0] if config.api_key else None)
    chat = options.endpoint.endswith("/chat/completions")
    model = config.served_model_name[0] if config.served_model_name else asyncio.run(target.first_model())
    bodies = [_body(model, sample, tokenizer.decode(sample.token_ids) if chat else None, options) for sample in samples]
    with ProgressBar(options.num_prompts, not config.disable_progress, "Requests", "request") as bar:
        seconds, answers = asyncio.run(_measure(target, options, samples, bodies, config.seed or 0, lambda: bar.update(1)))
    rate = "inf" if math.isinf(options.request_rate) else options.request_rate  # JSON has no infinity
    return {"model_id": model, "request_rate": rate, **_summary(seconds, answers, percents)}


def text(result: dict[str, Any]) -> str:
    """A table like vLLM's."""
    rows = [
        ("Successful requests", result["completed"]),
        ("Failed requests", result["failed"]),
        ("Benchmark duration (s)", result["duration"]),
        ("Total input tokens", result["total_input_tokens"]),
        ("Total generated tokens", result["total_output_tokens"]),
        ("Request throughput (req/s)", result["request_throughput"]),
        ("Output token throughput (tok/s)", result["output_throughput"]),
        ("Total token throughput (tok/s)", result["total_token_throughput"]),
    ]
    lines = ["{s:{c}^{n}}".format(s=" Serving Benchmark Result ", n=50, c="="), *(_line(*row) for row in rows)]
    for name, title in _METRICS.items():
        lines.append("{s:{c}^{n}}".format(s=title, n=50, c="-"))
        shown = [key for key in result if key.endswith(f"_{name}_ms") and not key.startswith("std")]
        lines += [_line(f"{key.split('_')[0].title()} {name.upper()} (ms)", result[key]) for key in shown]
    if result["errors"]:
        lines.append(f"First error: {result['errors'][0]}")
    return "\n".join([*lines, "=" * 50])


async def _measure(
    target: Target,
    options: Options,
    samples: Sequence[Sample],
    bodies: Sequence[bytes],
    seed: int,
    answered: Callable[[], None],
) -> tuple[float, list[Answer]]:
    for i in range(options.num_prompts, len(bodies)):
        await _ask(target, options.endpoint, samples[i], bodies[i])
    limit = asyncio.Semaphore(options.max_concurrency or options.num_prompts)
    pauses = random.Random(seed)

    async def ask(i: int) -> Answer:
        async with limit:
            answer = await _ask(target, options.endpoint, samples[i], bodies[i])
        answered()
        return answer

    start = time.perf_counter()
    tasks = []
    for i in range(options.num_prompts):
        tasks.append(asyncio.create_task(ask(i)))
        if options.request_rate != float("inf"):
            await asyncio.sleep(pauses.expovariate(options.request_rate))
    answers = await asyncio.gather(*tasks)
    return time.perf_counter() - start, answers


async def _ask(target: Target, endpoint: str, sample: Sample, body: bytes) -> Answer:
    answer = Answer(len(sample.token_ids))
    start = last = time.perf_counter()
    try:
        async for line in target.lines("POST", endpoint, body):
            if not line.startswith(b"data: {"):
                continue
            now = time.perf_counter()
            event = json.loads(line[6:])
            if "error" in event:
                answer.error = str(event["error"])
            elif event.get("choices"):
                if answer.first:
                    answer.gaps.append(now - last)
                else:
                    answer.first = now - start
                last = now
            if usage := event.get("usage"):
                answer.output_tokens, answer.prompt_tokens = int(usage["completion_tokens"]), int(usage["prompt_tokens"])
    except (UnavailableError, OSError, ValueError, asyncio.IncompleteReadError) as error:
        answer.error = str(error)
    except (KeyError, TypeError, OverflowError, RecursionError) as error:
        answer.error = f"no event of the OpenAI API: {type(error).__name__}: {error}"
    answer.total = last - start
    if not answer.first and answer.error is None:
        answer.error = "the answer ended before its first token"
    return answer


def _body(model: str, sample: Sample, message: str | None, options: Options) -> bytes:
    """Of a completion of the token ids, or of a chat with one message."""
    prompt = {"prompt": sample.token_ids} if message is None else {"messages": [{"role": "user", "content": message}]}
    return json.dumps(
        {
            "model": model,
            **prompt,
            "max_tokens": sample.output_len,
            "temperature": options.temperature,
            "ignore_eos": options.ignore_eos,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


def _summary(seconds: float, answers: Sequence[Answer], percents: Sequence[float]) -> dict[str, Any]:
    good = [answer for answer in answers if answer.error is None]
    inputs, outputs = sum(answer.prompt_tokens for answer in good), sum(answer.output_tokens for answer in good)
    values = {
        "ttft": [answer.first for answer in good],
        "tpot": [(answer.total - answer.first) / (answer.output_tokens - 1) for answer in good if answer.output_tokens > 1],
        "itl": [gap for answer in good for gap in answer.gaps],
        "e2el": [answer.total for answer in good],
    }
    result: dict[str, Any] = {
        "duration": seconds,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(good) / seconds,
        "output_throughput": outputs / seconds,
        "total_token_throughput": (inputs + outputs) / seconds,
        "errors": [answer.error for answer in answers if answer.error is not None],
    }
    for name, each in values.items():
        result[f"mean_{name}_ms"] = 1e3 * statistics.fmean(each) if each else 0.0
        result[f"median_{name}_ms"] = 1e3 * percentile(each, 50)
        result[f"std_{name}_ms"] = 1e3 * statistics.pstdev(each) if each else 0.0
        for percent in percents:
            result[f"p{percent:g}_{name}_ms"] = 1e3 * percentile(each, percent)
    return result


def _line(name: str, value: float) -> str:
    return f"{name + ':':<40} {value:<10.2f}" if isinstance(value, float) else f"{name + ':':<40} {value:<10}"
