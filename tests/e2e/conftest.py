"""The real server with the real model: one for the tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.server.process import ServerProcess, server_process

KEY = "secret"
MODEL = "smollm2"


def serve(model: Path, *options: str) -> AbstractContextManager[ServerProcess]:
    """`octavo serve` on a free port, with a key and a context of 512 tokens."""
    arguments = ["-m", "octavo", "serve", str(model), "--port", "0", "--api-key", KEY, "--served-model-name", MODEL]
    return server_process(*arguments, "--max-model-len", "512", *options, headers={"authorization": f"Bearer {KEY}"})


@pytest.fixture(scope="package")
def octavo(smollm2: Path) -> Iterator[ServerProcess]:
    """Ready, and shared by all tests of this folder that do not end it."""
    with serve(smollm2) as server:
        server.wait_for_log("  ready ")
        yield server
