"""What the engine finds room for is what the server tells its clients."""

from __future__ import annotations

from pathlib import Path

from tests.server.process import server_process

SERVE = ("-m", "octavo", "serve", "--port", "0", "--served-model-name", "m", "--num-gpu-blocks-override", "3")


def test_auto(smollm2: Path) -> None:
    with server_process(*SERVE, "--max-model-len", "auto", str(smollm2)) as server:
        server.wait_for_log("  ready ")
        (model,) = server.http.get("/v1/models").json()["data"]
        assert model["max_model_len"] == 48
        refused = server.http.post("/v1/completions", json={"model": "m", "prompt": [5] * 49})
        assert refused.status_code == 400
        assert "maximum context length is 48 tokens" in refused.json()["error"]["message"]
        body = {"model": "m", "prompt": [5] * 40, "ignore_eos": True}
        answer = server.http.post("/v1/completions", json=body).json()
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (8, "length")
        table = [line.split() for line in server.log]
        assert ["requests", "that", "fit", "1.0", "of", "48", "tokens"] in table


def test_too_long_a_context_stops_the_start_with_one_line(smollm2: Path) -> None:
    with server_process(*SERVE, str(smollm2)) as server:
        code, lines = server.end()
    assert code == 1
    assert lines == [
        "octavo: error: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in KV "
        "cache (48). Try increasing gpu_memory_utilization or decreasing max_model_len. A request of 8192 tokens needs 0.18 "
        "GiB, and the cache has 1.1 MiB; what works: --max-model-len 48 or --num-gpu-blocks-override 512.\n"
    ]
