"""What `/metrics` counts, under vLLM's names, labels and buckets.

Counting is plain integers and lists, since it happens for every token; prometheus_client comes in only when somebody asks
(`octavo.server.exposition`). Sequences are counted, n for a request, as vLLM counts them. At every moment

    requests_received = request_success{stop, length} + {abort} + {error} + num_requests_running + num_requests_waiting

`requests_received` is a name of ours; the others are vLLM's. What was refused before it reached the engine is in none of
them but in `http_requests_total`.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from octavo.engine.request import EngineStats

REQUEST_LATENCY = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
TIME_TO_FIRST_TOKEN = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
INTER_TOKEN_LATENCY = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
ITERATION_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
PARAMS_N = (1, 2, 5, 10, 20)
NUM_PREEMPTIONS = (1, 2, 3, 4, 5, 10, 20)
HTTP_DURATION = (0.1, 0.5, 1)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


def request_token_buckets(limit: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50, ... up to `limit` (the largest context)."""
    series = (digit * 10**power for power in range(len(str(limit))) for digit in (1, 2, 5))
    return tuple(bound for bound in series if bound <= limit) or (1,)


class Histogram:
    """Counts per bucket (the last one open) and the sum of what was observed."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value, `times` times."""
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(slots=True)
class SequenceTimes:
    """When things happened to one sequence, in seconds of time.time(); 0 is not yet."""

    arrival: float
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0


@dataclass(slots=True)
class SequenceEnd:
    """What is known of a sequence when it ends, whichever way."""

    reason: str
    times: SequenceTimes
    num_prompt_tokens: int
    num_output_tokens: int
    num_cached_tokens: int
    num_preemptions: int
    max_tokens: int


def _success() -> dict[str, int]:
    return dict.fromkeys(FINISH_REASONS, 0)


@dataclass
class Metrics:
    """All counters of one server. `model_name` and `max_model_len` are set before the first request is counted."""

    model_name: str = ""
    max_model_len: int = 0
    received: int = 0
    success: dict[str, int] = field(default_factory=_success)
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    rejections: Mapping[str, int] = field(default_factory=dict)  # refused because the queue was full, by option
    engine: EngineStats = field(default_factory=EngineStats)
    block_size: int = 16
    histograms: dict[str, Histogram] = field(default_factory=dict)
    http_requests: dict[tuple[str, str, str], int] = field(default_factory=dict)
    http_durations: dict[tuple[str, str], Histogram] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.open(self.model_name, self.max_model_len)

    def open(self, model_name: str, max_model_len: int) -> None:
        """Set what is known only when the model is: the label, and the buckets that reach to the context's length."""
        self.model_name, self.max_model_len = model_name, max_model_len
        tokens = request_token_buckets(max_model_len or 1)
        self.time_to_first_token = Histogram(TIME_TO_FIRST_TOKEN)
        self.inter_token_latency = Histogram(INTER_TOKEN_LATENCY)
        self.iteration_tokens = Histogram(ITERATION_TOKENS)
        self.histograms = {
            "iteration_tokens_total": self.iteration_tokens,
            "time_to_first_token_seconds": self.time_to_first_token,
            "inter_token_latency_seconds": self.inter_token_latency,
            "request_prompt_tokens": Histogram(tokens),
            "request_generation_tokens": Histogram(tokens),
            "request_max_num_generation_tokens": Histogram(tokens),
            "request_params_n": Histogram(PARAMS_N),
            "request_params_max_tokens": Histogram(tokens),
            "request_prefill_kv_computed_tokens": Histogram(tokens),
            "request_time_per_output_token_seconds": Histogram(INTER_TOKEN_LATENCY),
            "e2e_request_latency_seconds": Histogram(REQUEST_LATENCY),
            "request_queue_time_seconds": Histogram(REQUEST_LATENCY),
            "request_inference_time_seconds": Histogram(REQUEST_LATENCY),
            "request_prefill_time_seconds": Histogram(REQUEST_LATENCY),
            "request_decode_time_seconds": Histogram(REQUEST_LATENCY),
            "request_num_preemptions": Histogram(NUM_PREEMPTIONS),
        }

    @property
    def num_unfinished(self) -> int:
        """Sequences received and not yet ended."""
        return self.received - sum(self.success.values())

    @property
    def num_running(self) -> int:
        """Sequences that the engine computes; its newest figure may be a step old, so never more than are unfinished."""
        return min(self.engine.num_running, self.num_unfinished)

    @property
    def num_waiting(self) -> int:
        """Sequences that wait, on their way to the engine or in its queue."""
        return self.num_unfinished - self.num_running

    @property
    def kv_cache_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        blocks = self.engine.num_blocks
        return (blocks - self.engine.num_free_blocks) / blocks if blocks else 0.0

    @property
    def swap_space_usage(self) -> float:
        """Share of the slots of host memory in use, 0 to 1."""
        slots = self.engine.num_host_blocks
        return self.engine.num_used_host_blocks / slots if slots else 0.0

    def on_received(self, num_sequences: int) -> None:
        """Count what is handed to the engine."""
        self.received += num_sequences

    def on_engine_stats(self, stats: EngineStats) -> None:
        """Take over a step's figures."""
        if stats.num_steps != self.engine.num_steps and stats.iteration_tokens:
            self.iteration_tokens.observe(stats.iteration_tokens)
        self.engine = stats

    def on_tokens(self, times: SequenceTimes, count: int, now: float) -> None:
        """Count `count` new tokens of a sequence, which came together at `now`."""
        self.generation_tokens += count
        if times.first_token == 0.0:
            times.first_token = now
            self.time_to_first_token.observe(now - times.arrival)
            count -= 1
            if count:
                self.inter_token_latency.observe(0.0, count)
        elif count:
            self.inter_token_latency.observe((now - times.last_token) / count, count)
        times.last_token = now

    def on_prefill(self, num_tokens: int, num_cached: int) -> None:
        """Count a request's prompt, once however many sequences it has, when its first token comes."""
        self.prompt_tokens += num_tokens
        self.prompt_tokens_cached += num_cached

    def on_request_end(self, n: int, most_tokens: int) -> None:
        """Count a request with all its `n` sequences, and the most tokens that one of them got."""
        self._observe("request_params_n", n)
        self._observe("request_max_num_generation_tokens", most_tokens)

    def on_end(self, end: SequenceEnd, now: float) -> None:
        """Count a sequence's end. One that never gave a token is in the counters but in no latency histogram."""
        self.success[end.reason] += 1
        observe = self._observe
        observe("request_params_max_tokens", end.max_tokens)
        observe("e2e_request_latency_seconds", now - end.times.arrival)
        observe("request_num_preemptions", end.num_preemptions)
        observe("request_generation_tokens", end.num_output_tokens)
        times = end.times
        if times.first_token == 0.0:
            return
        scheduled = times.scheduled or times.arrival
        decode = times.last_token - times.first_token
        observe("request_prompt_tokens", end.num_prompt_tokens)
        observe("request_prefill_kv_computed_tokens", end.num_prompt_tokens - end.num_cached_tokens)
        observe("request_queue_time_seconds", scheduled - times.arrival)
        observe("request_prefill_time_seconds", times.first_token - scheduled)
        observe("request_decode_time_seconds", decode)
        observe("request_inference_time_seconds", times.last_token - scheduled)
        if end.num_output_tokens > 1:
            observe("request_time_per_output_token_seconds", decode / (end.num_output_tokens - 1))

    def on_http(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count an answered HTTP request; `path` is the route's pattern, or "none"."""
        key = (path, method, f"{status // 100}xx")
        self.http_requests[key] = self.http_requests.get(key, 0) + 1
        self.http_durations.setdefault((path, method), Histogram(HTTP_DURATION)).observe(seconds)

    def _observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)
