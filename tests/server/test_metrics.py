"""`/metrics`: it adds up at every moment, under vLLM's names, in text that a Prometheus parser takes."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.config import EngineConfig
from octavo.engine.intake import Intake
from octavo.engine.request import EngineStats
from octavo.server.metrics import Histogram, Metrics, request_token_buckets
from tests.scripted import Script
from tests.server.running import ByRequestId, RunningServer, running
from tests.server.test_disconnects import LONG, connect

TEXT = "/v1/completions"
NAMES = {
    "gauge": [
        "num_requests_running",
        "num_requests_waiting",
        "num_requests_waiting_by_reason",
        "kv_cache_usage_perc",
        "cpu_cache_usage_perc",
    ],
    "counter": [
        "prefix_cache_queries",
        "prefix_cache_hits",
        "num_preemptions",
        "num_preemptions_by_mode",
        "prompt_tokens_cached_by_source",
        "kv_blocks_evicted",
        "kv_blocks_copied",
        "kv_blocks_swapped_out",
        "kv_blocks_swapped_in",
        "external_prefix_cache_queries",
        "external_prefix_cache_hits",
        "prompt_tokens",
        "prompt_tokens_cached",
        "generation_tokens",
        "request_success",
        "requests_received",
    ],
    "histogram": [
        "request_prompt_tokens",
        "request_generation_tokens",
        "iteration_tokens_total",
        "request_max_num_generation_tokens",
        "request_params_n",
        "request_params_max_tokens",
        "time_to_first_token_seconds",
        "inter_token_latency_seconds",
        "request_time_per_output_token_seconds",
        "e2e_request_latency_seconds",
        "request_queue_time_seconds",
        "request_inference_time_seconds",
        "request_prefill_time_seconds",
        "request_decode_time_seconds",
        "request_num_preemptions",
        "request_prefill_kv_computed_tokens",
    ],
}


class Scrape:
    """One reading: sums over labels, or single samples."""

    def __init__(self, server: RunningServer, prefix: str = "vllm:") -> None:
        response = server.http.get("/metrics")
        assert response.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
        self.families = {family.name: family for family in text_string_to_metric_families(response.text)}
        self._prefix = prefix

    def __call__(self, name: str, **labels: str) -> float:
        samples = [
            sample for family in self.families.values() for sample in family.samples if sample.name == self._prefix + name
        ]
        assert samples, name
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    def adds_up(self) -> bool:
        """Received is finished, aborted, failed, running and waiting."""
        parts = self("request_success_total") + self("num_requests_running") + self("num_requests_waiting")
        return self("requests_received_total") == parts


def test_names_types_and_labels(server: RunningServer) -> None:
    server.post(TEXT, {"prompt": "a", "max_tokens": 2})
    scrape = Scrape(server)
    kinds = {family.name: family.type for family in scrape.families.values()}
    for kind, name in [(kind, name) for kind, names in NAMES.items() for name in names]:
        assert kinds[f"vllm:{name}"] == kind
        for sample in scrape.families[f"vllm:{name}"].samples:
            assert (sample.labels["model_name"], sample.labels["engine"]) == ("m", "0")
    (info,) = scrape.families["vllm:cache_config_info"].samples
    sizes = {"block_size": "16", "num_gpu_blocks": "64", "kv_cache_size_tokens": "1024"}
    assert (info.value, info.labels) == (1, {"engine": "0", **sizes})
    assert {"process_resident_memory_bytes", "python_info", "http_requests"} <= set(kinds)


def test_another_prefix(intake: Intake) -> None:
    with running(intake, config=EngineConfig(metrics_prefix="octavo:")) as server:
        assert Scrape(server, "octavo:")("num_requests_running") == 0
        assert not any(name.startswith("vllm:") for name in Scrape(server).families)


def test_c164_everything_adds_up_while_it_runs_and_at_the_end(intake: Intake) -> None:
    """Twenty requests, as in public reports of metrics that did not: ends of every kind, streaming and not, and refusals."""
    script = Script(row_errors=ByRequestId({"bad": 1}), max_num_seqs=2)
    with running(intake, script) as server:
        server.outputs.update({f"ok{i}": [40, 41, 2] for i in range(10)})
        for i in range(10):
            server.post(TEXT, {"prompt": "a", "max_tokens": 9, "stream": i % 2 == 0}, x_request_id=f"ok{i}")
        for _ in range(3):
            server.post(TEXT, {"prompt": "a", "max_tokens": 4})
        for body in ({"prompt": "", "max_tokens": 4}, {"prompt": "a", "temperature": -1}):
            assert server.post(TEXT, body).status_code == 400
        for stream in (True, False):
            server.post(TEXT, {"prompt": "a", "max_tokens": 5, "n": 2, "stream": stream})
        server.post(TEXT, {"prompt": "a", "max_tokens": 5}, x_request_id="bad")
        server.post(TEXT, {"prompt": "a", "max_tokens": 5, "stop": decoded(server, 40)}, x_request_id="ok0")
        server.until(server.idle)
        server.gate.open.clear()
        leavers = [connect(server, TEXT, {**LONG, "stream": i == 0}) for i in range(3)]
        server.until(lambda: server.metrics.received == 10 + 3 + 4 + 1 + 1 + 3)
        middle = Scrape(server)
        assert middle.adds_up()
        assert middle("num_requests_running") + middle("num_requests_waiting") == 3
        for leaver in leavers:
            leaver.close()
        server.until(lambda: server.metrics.success["abort"] == 3)
        assert Scrape(server).adds_up()
        server.gate.open.set()
        server.until(server.idle)
        scrape = Scrape(server)
        engine = server.metrics.engine
        assert scrape.adds_up()
        reasons = {
            reason: scrape("request_success_total", finished_reason=reason)
            for reason in ("stop", "length", "abort", "error")
        }
        assert reasons == {"stop": 11, "length": 7, "abort": 3, "error": 1}
        assert (engine.num_finished, engine.num_aborted, engine.num_failed) == (18, 3, 1)
        assert scrape("num_requests_running") == scrape("num_requests_waiting") == scrape("kv_cache_usage_perc") == 0
        # the three leavers gave no token; the failed one gave one
        assert scrape("time_to_first_token_seconds_count") == 19
        assert scrape("generation_tokens_total") == 10 * 3 + 3 * 4 + 4 * 5 + 1 + 1
        assert scrape("inter_token_latency_seconds_count") == scrape("generation_tokens_total") - 19
        assert scrape("e2e_request_latency_seconds_count") == 22
        assert scrape("request_params_n_sum") == 22 == scrape("request_params_n_count") + 2  # two of them with n = 2


def decoded(server: RunningServer, token: int) -> str:
    text: str = server.state.model.intake.tokenizer.decode([token])
    return text


def test_preemptions_and_queue_are_seen(intake: Intake) -> None:
    """A pool too small for two: one is preempted, both end, and the counter has it."""
    with running(intake, Script(num_blocks=6)) as server:
        bodies = [{"prompt": [5 + i] * 30, "max_tokens": 40, "ignore_eos": True} for i in range(2)]
        server.gate.open.clear()
        answers = [server.submit(TEXT, body) for body in bodies]
        server.until(lambda: server.metrics.received == 2)
        server.gate.open.set()
        assert [answer.result().status_code for answer in answers] == [200, 200]
        server.until(server.idle)
        scrape = Scrape(server)
        assert scrape("num_preemptions_total") >= 1
        assert scrape("request_num_preemptions_sum") == scrape("num_preemptions_total")
        assert scrape("prompt_tokens_total") == 60


def test_an_older_reading_of_the_engine_never_breaks_the_sum() -> None:
    metrics = Metrics()
    metrics.on_received(3)
    metrics.on_engine_stats(EngineStats(num_running=2, num_waiting=1))
    assert (metrics.num_running, metrics.num_waiting) == (2, 1)
    metrics.success["stop"] += 2
    assert (metrics.num_running, metrics.num_waiting) == (1, 0)


@pytest.mark.parametrize(("value", "bucket"), [(0.5, 0), (1, 0), (1.5, 1), (2, 1), (9, 2)])
def test_a_bucket_holds_its_bound(value: float, bucket: int) -> None:
    histogram = Histogram((1, 2))
    histogram.observe(value, 3)
    assert histogram.counts[bucket] == sum(histogram.counts) == 3
    assert histogram.total == 3 * value


@pytest.mark.parametrize(("limit", "last"), [(1, 1), (4, 2), (512, 500), (2048, 2000), (8192, 5000), (131072, 100000)])
def test_token_buckets_reach_to_the_context(limit: int, last: int) -> None:
    buckets = request_token_buckets(limit)
    assert buckets[-1] == last
    assert buckets[:3] == (1, 2, 5)[: len(buckets)]


def test_http_requests_are_counted_by_route(intake: Intake) -> None:
    with running(intake) as server:
        server.http.get("/v1/models/m")
        server.http.get("/v1/models/n")
        server.http.get("/somewhere")
        samples: dict[tuple[Any, ...], float] = {}
        for sample in Scrape(server).families["http_requests"].samples:
            samples[sample.labels["handler"], sample.labels["status"]] = sample.value
    route = "/v1/models/{model:path}"
    assert samples == {(route, "2xx"): 1, (route, "4xx"): 1, ("none", "4xx"): 1}
