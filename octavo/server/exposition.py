"""The text of `/metrics`, made from the counters when somebody asks for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo.server.metrics import Histogram, Metrics

CONTENT_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
_LABELS = ("model_name", "engine")
_HELP = {
    "iteration_tokens_total": "Tokens computed in one engine step.",
    "time_to_first_token_seconds": "From arrival to the first token.",
    "inter_token_latency_seconds": "Between two tokens of a sequence.",
    "request_prompt_tokens": "Prompt tokens of a sequence.",
    "request_generation_tokens": "Generated tokens of a sequence.",
    "request_max_num_generation_tokens": "Largest number of generated tokens of a request's sequences.",
    "request_params_n": "The request's n.",
    "request_params_max_tokens": "The request's max_tokens, after it was cut to what fits.",
    "request_prefill_kv_computed_tokens": "Prompt tokens that had to be computed.",
    "request_time_per_output_token_seconds": "Mean time per token after the first.",
    "e2e_request_latency_seconds": "From arrival to the end.",
    "request_queue_time_seconds": "From arrival to the first step.",
    "request_inference_time_seconds": "From the first step to the last token.",
    "request_prefill_time_seconds": "From the first step to the first token.",
    "request_decode_time_seconds": "From the first token to the last.",
    "request_num_preemptions": "How often a sequence was preempted.",
}


def expose(metrics: Metrics, prefix: str) -> bytes:
    """Every metric in Prometheus' text format; engine metrics have `prefix` before their names."""
    registry = CollectorRegistry()
    registry.register(_ServerCollector(metrics, prefix))
    GCCollector(registry)
    PlatformCollector(registry)
    ProcessCollector(registry=registry)
    return generate_latest(registry)


class _ServerCollector(Collector):
    def __init__(self, metrics: Metrics, prefix: str) -> None:
        self._metrics = metrics
        self._prefix = prefix
        self._values = (metrics.model_name, "0")

    def collect(self) -> Iterator[Metric]:
        yield from self._gauges()
        yield from self._counters()
        for name, histogram in self._metrics.histograms.items():
            family = HistogramMetricFamily(self._prefix + name, _HELP[name], labels=_LABELS)
            _add(family, self._values, histogram)
            yield family
        yield from self._http()

    def _gauges(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield self._gauge("num_requests_running", "Sequences that the engine computes.", metrics.num_running)
        yield self._gauge("num_requests_waiting", "Sequences that wait for the engine.", metrics.num_waiting)
        by_reason = GaugeMetricFamily(
            self._prefix + "num_requests_waiting_by_reason",
            "Waiting sequences by what they wait for.",
            labels=(*_LABELS, "reason"),
        )
        by_reason.add_metric((*self._values, "capacity"), metrics.num_waiting)
        by_reason.add_metric((*self._values, "deferred"), 0)
        yield by_reason
        yield self._gauge("cpu_cache_usage_perc", "Share of the swap space in use; 1 is all.", metrics.swap_space_usage)
        yield self._gauge("kv_cache_usage_perc", "Share of the KV blocks in use; 1 is all.", metrics.kv_cache_usage)
        num_blocks = metrics.engine.num_blocks
        if num_blocks:  # known from the first step on
            sizes = {"num_gpu_blocks": num_blocks, "kv_cache_size_tokens": num_blocks * metrics.block_size}
            labels = {"engine": "0", "block_size": metrics.block_size, **sizes}
            info = GaugeMetricFamily(self._prefix + "cache_config_info", "The KV cache.", labels=tuple(labels))
            info.add_metric(tuple(map(str, labels.values())), 1)
            yield info

    def _counters(self) -> Iterator[Metric]:
        metrics = self._metrics
        yield self._counter("requests_received", "Sequences handed to the engine.", metrics.received)
        success = CounterMetricFamily(
            self._prefix + "request_success", "Sequences that ended, by reason.", labels=(*_LABELS, "finished_reason")
        )
        for reason, count in metrics.success.items():
            success.add_metric((*self._values, reason), count)
        yield success
        yield self._counter("prompt_tokens", "Prompt tokens prefilled.", metrics.prompt_tokens)
        yield self._counter("prompt_tokens_cached", "Prompt tokens found in the prefix cache.", metrics.prompt_tokens_cached)
        yield self._counter("generation_tokens", "Tokens generated.", metrics.generation_tokens)
        yield self._counter("num_preemptions", "Preemptions.", metrics.engine.num_preemptions)
        yield from self._block_counters()
        yield self._counter(
            "prefix_cache_queries", "Tokens looked up in the prefix cache.", metrics.engine.prefix_cache_queries
        )
        yield self._counter("prefix_cache_hits", "Tokens found in the prefix cache.", metrics.engine.prefix_cache_hits)
        rejections = CounterMetricFamily(
            self._prefix + "admission_rejections",
            "Requests refused because the queue was full, by the option that limits it.",
            labels=("model_name", "reason"),
        )
        for reason, count in metrics.rejections.items():
            rejections.add_metric((metrics.model_name, reason), count)
        yield rejections

    def _block_counters(self) -> Iterator[Metric]:
        engine = self._metrics.engine
        by_source = CounterMetricFamily(
            self._prefix + "prompt_tokens_cached_by_source",
            "Prompt tokens found in the prefix cache (device), or in host memory and files (host).",
            labels=(*_LABELS, "source"),
        )
        by_source.add_metric((*self._values, "device"), engine.prefix_cache_hits)
        by_source.add_metric((*self._values, "host"), engine.external_cache_hits)
        yield by_source
        by_mode = CounterMetricFamily(
            self._prefix + "num_preemptions_by_mode",
            "Preemptions by what becomes of the cache: kept to be moved back (swap), or computed again (recompute).",
            labels=(*_LABELS, "mode"),
        )
        by_mode.add_metric((*self._values, "recompute"), engine.num_preemptions - engine.num_swap_preemptions)
        by_mode.add_metric((*self._values, "swap"), engine.num_swap_preemptions)
        yield by_mode
        counters = {
            "kv_blocks_evicted": ("Cached KV blocks that were overwritten.", engine.num_evicted_blocks),
            "kv_blocks_copied": ("KV blocks copied because one of several holders wrote to them.", engine.num_copied_blocks),
            "kv_blocks_swapped_out": ("KV blocks copied to host memory.", engine.num_swapped_out_blocks),
            "kv_blocks_swapped_in": ("KV blocks copied back from host memory.", engine.num_swapped_in_blocks),
            "external_prefix_cache_queries": (
                "Tokens looked up in host memory and files, since the cache did not have them.",
                engine.external_cache_queries,
            ),
            "external_prefix_cache_hits": ("Tokens found in host memory and files.", engine.external_cache_hits),
        }
        for name, (help, value) in counters.items():
            yield self._counter(name, help, value)

    def _http(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("http_requests", "HTTP requests answered.", labels=("handler", "method", "status"))
        for key, count in self._metrics.http_requests.items():
            requests.add_metric(key, count)
        yield requests
        durations = HistogramMetricFamily(
            "http_request_duration_seconds", "Until the answer's end.", labels=("handler", "method")
        )
        for labels, histogram in self._metrics.http_durations.items():
            _add(durations, labels, histogram)
        yield durations

    def _gauge(self, name: str, help: str, value: float) -> Metric:
        family = GaugeMetricFamily(self._prefix + name, help, labels=_LABELS)
        family.add_metric(self._values, value)
        return family

    def _counter(self, name: str, help: str, value: float) -> Metric:
        family = CounterMetricFamily(self._prefix + name, help, labels=_LABELS)
        family.add_metric(self._values, value)
        return family


def _add(family: HistogramMetricFamily, labels: Iterable[str], histogram: Histogram) -> None:
    buckets: list[tuple[str, float]] = []
    cumulative = 0
    for bound, count in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        cumulative += count
        buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), cumulative))
    family.add_metric(list(labels), buckets, histogram.total)
