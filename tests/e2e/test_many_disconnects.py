"""The whole server and the real model under clients that leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.conftest import KEY, serve
from tests.server.leavers import GOLDEN, TEXT, Leavers
from tests.server.process import ServerProcess


def golden_ids(server: ServerProcess) -> list[int]:
    ids: list[int] = server.http.post(TEXT, json=GOLDEN).json()["choices"][0]["token_ids"]
    return ids


def footprint(server: ServerProcess) -> list[tuple[int, int]]:
    """Open files and bytes of memory, of the server and of the engine."""
    processes = psutil.Process(server.process.pid), server.engine
    return [(process.num_fds(), process.memory_info().rss) for process in processes]


@pytest.mark.nightly
def test_1000_clients_that_leave_at_random_times_leave_nothing_behind(smollm2: Path) -> None:
    with serve(smollm2, "--num-gpu-blocks-override", "256", "--max-num-seqs", "24") as server:
        server.wait_for_log("  ready ")
        golden = golden_ids(server)
        host, port = server.address.removeprefix("http://").split(":")
        Leavers((host, int(port)), 200, 0.5, KEY).run()  # whatever grows to its size
        assert golden_ids(server) == golden  # the engine takes aborts before any later request
        before = footprint(server)
        leavers = Leavers((host, int(port)), 1000, 1.0, KEY)
        leavers.run()
        assert leavers.stayed == [golden] * 100
        assert golden_ids(server) == golden
        state: dict[str, Any] = server.http.get("/debug/state").json()
        assert state["server"] == {"http_requests": 0, "sequences": 0, "prompt_tokens": 0}
        assert (state["engine"]["running"], state["engine"]["waiting"]) == ([], [])
        assert state["engine"]["blocks"]["held"] == 0
        assert state["engine"]["stats"]["num_aborted"] > 100
        for (files, memory), (files_before, memory_before) in zip(footprint(server), before, strict=True):
            assert files <= files_before
            assert memory < memory_before + 40 * 2**20
