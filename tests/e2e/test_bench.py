"""`octavo bench` on the real model, with few and short requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.datasets import Lengths, Sample, file_samples, random_samples
from octavo.bench.percentiles import percentile
from octavo.bench.serve import Answer, Target, _ask
from octavo.cli.main import main
from octavo.entrypoints import benchmark
from octavo.errors import ConfigError
from octavo.text.tokenizer import load_tokenizer
from tests.e2e.conftest import KEY, MODEL
from tests.server.process import ServerProcess

SMALL = ("--max-model-len", "64", "--num-gpu-blocks-override", "64")


@pytest.fixture
def result_file(tmp_path: Path) -> Path:
    return tmp_path / "result.json"


def result_of(file: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    return result


def test_throughput(smollm2: Path, result_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--num-prompts", "3", "--input-len", "20", "--output-len", "4", "--n", "2", "--prefix-len", "16"]
    files = ["--output-json", str(result_file), "--disable-progress", "--cpu-isa", "generic", "--cpu-threads", "1"]
    assert benchmark.main(["--model", str(smollm2), *sizes, *files, *SMALL]) == 0
    result = result_of(result_file)
    assert (result["num_requests"], result["failed"]) == (3, 0)
    assert (result["total_num_tokens"], result["total_output_tokens"]) == (3 * (36 + 2 * 4), 3 * 2 * 4)
    assert result["tokens_per_second"] == pytest.approx(result["total_num_tokens"] / result["elapsed_time"])
    assert result["engine"]["backend"].endswith("(generic, 1 thread)")
    shown = capsys.readouterr()
    assert "requests/s" in shown.out
    assert "backend: cpu (generic, 1 thread); dtype: bfloat16" in shown.out
    assert shown.err == ""


def test_throughput_of_a_file(smollm2: Path, tmp_path: Path, result_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dataset = tmp_path / "prompts.jsonl"
    dataset.write_text('{"prompt": "Once upon a time", "output_len": 2}\n{"prompt": "Hello"}\n')
    custom = ["--dataset-name", "custom", "--dataset-path", str(dataset), "--output-len", "3"]
    run = ["bench", "throughput", str(smollm2), *custom, "--output-json", str(result_file), *SMALL]
    assert main([*run, "--num-prompts", "2"]) == 0
    assert result_of(result_file)["total_output_tokens"] == 5
    assert main([*run, "--num-prompts", "3"]) == 1
    assert "has 2 lines, and --num-prompts asks for 3" in capsys.readouterr().err


def test_latency(smollm2: Path, result_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--input-len", "8", "--output-len", "2", "--batch-size", "2", "--num-iters", "3", "--num-iters-warmup", "1"]
    assert main(["bench", "latency", str(smollm2), *sizes, "--output-json", str(result_file), *SMALL]) == 0
    result = result_of(result_file)
    assert len(result["latencies"]) == 3
    assert result["percentiles"]["50"] == sorted(result["latencies"])[1]
    shown = capsys.readouterr()
    assert "Avg latency" in shown.out
    assert result["engine"]["dtype"] in shown.out
    assert "4/4" in shown.err  # batches


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
def test_serve(
    octavo: ServerProcess, smollm2: Path, endpoint: str, result_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--num-prompts", "3", "--num-warmups", "1", "--random-input-len", "10", "--random-output-len", "5"]
    server = [
        "--base-url",
        octavo.address,
        "--api-key",
        KEY,
        "--endpoint",
        endpoint,
        "--ignore-eos",
        "--max-concurrency",
        "2",
    ]
    assert main(["bench", "serve", str(smollm2), *sizes, *server, "--output-json", str(result_file)]) == 0
    result = result_of(result_file)
    assert (result["completed"], result["failed"], result["model_id"]) == (3, 0, MODEL)
    assert result["request_rate"] == "inf"
    assert result["total_output_tokens"] == 15
    assert endpoint.endswith("chat/completions") or result["total_input_tokens"] == 30
    assert 0 < result["median_ttft_ms"] <= result["median_e2el_ms"] <= result["p99_e2el_ms"]
    shown = capsys.readouterr()
    assert "Serving Benchmark Result" in shown.out
    assert "3/3" in shown.err


def test_serve_counts_what_is_refused(octavo: ServerProcess, smollm2: Path, result_file: Path) -> None:
    sizes = ["--num-prompts", "2", "--random-input-len", "600", "--random-output-len", "5"]
    server = ["--base-url", octavo.address, "--api-key", KEY, "--request-rate", "1000"]
    assert main(["bench", "serve", str(smollm2), *sizes, *server, "--output-json", str(result_file)]) == 0
    result = result_of(result_file)
    assert (result["completed"], result["failed"]) == (0, 2)
    assert "maximum context length" in result["errors"][0]


@pytest.mark.parametrize("line", ['{"prompt": ["Once", "upon"]}', '{"prompt": "Once", "output_len": 1e400}'])
def test_a_line_that_is_no_prompt_is_refused(smollm2: Path, tmp_path: Path, line: str) -> None:
    dataset = tmp_path / "prompts.jsonl"
    dataset.write_text(line)
    with pytest.raises(ConfigError, match="line 1 must be an object like"):
        file_samples(str(dataset), load_tokenizer(smollm2), 1, 3)


@pytest.mark.parametrize(
    "event",
    [
        '{"usage": {"tokens": 1}}',
        '{"usage": 5}',
        '{"usage": {"completion_tokens": 1e400, "prompt_tokens": 3}}',
        '{"a":' * 5000 + "1" + "}" * 5000,
        "{no JSON",
    ],
    ids=["names", "number", "infinite", "deep", "text"],
)
def test_serve_counts_answers_that_are_none(event: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\n\r\ndata: {event}\n".encode())
        writer.close()

    async def ask() -> Answer:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            return await _ask(Target(f"http://127.0.0.1:{port}", None), "/v1/completions", Sample([1], 1), b"")

    assert asyncio.run(ask()).error


def test_startup(smollm2: Path, result_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "startup", "--num-iters", "1", str(smollm2), "--output-json", str(result_file), *SMALL]) == 0
    result = result_of(result_file)
    assert 0 < result["median_ready_seconds"] < result["median_first_answer_seconds"]
    first, median = capsys.readouterr().out.splitlines()
    assert first == median.replace("Median", "Start 1")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "speed"], "unknown benchmark speed; there are throughput, latency, serve, startup"),
        (["bench", "latency", "--num-iters", "0"], "--num-iters must be at least 1, got 0"),
        (["bench", "latency", "--num-itres", "3"], "--num-iters"),
        (["bench", "serve", "--metric-percentiles", "high"], "--metric-percentiles takes numbers from 0 to 100"),
        (["bench", "serve", "--base-url", "http://127.0.0.1:9"], "no server answers at http://127.0.0.1:9"),
        (["bench", "serve", "--base-url", "http://..:80"], "no server answers at http://..:80"),
        (["bench", "serve", "--base-url", "http://127.0.0.1:99999"], "--base-url takes an address such as"),
        (["bench", "serve", "--base-url", "http://[::1"], "--base-url takes an address such as"),
        (["bench", "serve", "--host", "::1", "--port", "9"], "no server answers at http://[::1]:9"),
        (["bench", "serve", "--request-rate", "0"], "--request-rate must be above 0, got 0.0"),
        (["bench", "startup", "no-such-directory/x.gguf", "--num-iters", "1"], "octavo serve did not start: model "),
    ],
)
def test_what_is_wrong_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("octavo: error: ")


def test_help_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    shown = capsys.readouterr().out
    assert [name for name in ("throughput", "latency", "serve", "startup") if name not in shown] == []


def test_random_prompts_are_as_long_as_they_should_be(smollm2: Path) -> None:
    tokenizer = load_tokenizer(smollm2)
    samples = random_samples(tokenizer, 50, Lengths(100, 20, prefix=7, spread=0.5), seed=1)
    assert samples == random_samples(tokenizer, 50, Lengths(100, 20, prefix=7, spread=0.5), seed=1)
    assert len({tuple(sample.token_ids[:7]) for sample in samples}) == 1
    assert all(57 <= len(sample.token_ids) <= 157 and 10 <= sample.output_len <= 30 for sample in samples)
    assert not any(id in tokenizer.added_ids for sample in samples for id in sample.token_ids)
    assert [percentile([4.0, 1.0, 3.0], each) for each in (0, 50, 75, 100)] == [1.0, 3.0, 3.5, 4.0]
