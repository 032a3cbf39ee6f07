"""One server with a scripted model and SmolLM2's tokenizer and template for the tests that need no state of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.config import EngineConfig
from octavo.engine.intake import Intake, open_intake
from tests.server.running import RunningServer, running


@pytest.fixture(scope="session")
def intake(smollm2: Path) -> Intake:
    """The client side of SmolLM2 with a context of 512 tokens."""
    return open_intake(EngineConfig(model=str(smollm2), max_model_len=512), smollm2)


@pytest.fixture(scope="package")
def server(intake: Intake) -> Iterator[RunningServer]:
    """Shared: a test that changes more than its own requests takes `running` instead."""
    with running(intake) as server:
        yield server
