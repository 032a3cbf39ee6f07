"""A server that keeps KV blocks in files finds them again after a restart."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from octavo.cli.main import main
from tests.e2e.conftest import serve
from tests.e2e.test_server import gauges
from tests.server.process import ServerProcess

BODY = {"prompt": [*range(1000, 1100)], "max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}


def ask(server: ServerProcess) -> tuple[list[int], int]:
    """The answer's ids, and how much of the prompt was cached."""
    answer: dict[str, Any] = server.http.post("/v1/completions", json=BODY).json()
    return answer["choices"][0]["token_ids"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_prompt_is_cached_after_a_restart(smollm2: Path, tmp_path: Path, capsys: Any) -> None:
    options = ("--preemption-mode", "auto", "--kv-offload-dir", str(tmp_path), "--num-gpu-blocks-override", "40")
    with serve(smollm2, *options) as server:
        server.wait_for_log("  ready ")
        ids, cached = ask(server)
        assert cached == 0
        assert ask(server) == (ids, 96)
        assert main(["serve", str(smollm2), "--port", "0", "--max-model-len", "512", *options]) == 1
        assert f"--kv-offload-dir {tmp_path} is used by another process" in capsys.readouterr().err
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == (0, [])
    assert len(list(tmp_path.glob("*/*.kv"))) == 6
    with serve(smollm2, *options) as server:
        server.wait_for_log("  ready ")
        assert ask(server) == (ids, 96)
        counts = gauges(server)
        assert (counts["prefix_cache_hits_total"], counts["external_prefix_cache_hits_total"]) == (0, 96)
        assert counts["kv_blocks_swapped_in_total"] == 6
