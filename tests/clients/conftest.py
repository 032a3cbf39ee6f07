"""The real server for clients that other people wrote. They live in an environment of their own: `make clients`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import KEY, MODEL, serve
from tests.server.process import ServerProcess

QUESTION = "What is the capital of France?"
WARM = "How warm is it in Paris?"
CITIES = ("Paris", "Oslo")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Other environments do not have the clients, so the files cannot even be imported there."""
    is_test = collection_path.name.startswith("test_")
    return True if is_test and not config.getoption("--clients") else None


@pytest.fixture(scope="package")
def server(smollm2: Path) -> Iterator[ServerProcess]:
    """SmolLM2 with room for the prompts of frameworks, and with a format of calls in which `strict` can be enforced."""
    options = ("--max-model-len", "2048", "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    with serve(smollm2, *options) as server:
        server.wait_for_log("  ready ")
        yield server


@pytest.fixture(scope="package")
def openai_options(server: ServerProcess) -> dict[str, Any]:
    """What OpenAI's client, and whatever is built on it, needs to know."""
    return {"base_url": f"{server.address}/v1", "api_key": KEY, "max_retries": 0}


@pytest.fixture(scope="package")
def chat_options() -> dict[str, Any]:
    """The same answer each time, and a short one."""
    return {"model": MODEL, "temperature": 0, "max_tokens": 60}


def tell_temperature(city: str) -> str:
    """What the tool of all conversations says."""
    return f"It is 21 degrees Celsius in {city}."


TEMPERATURE = {
    "name": "temperature",
    "description": "The temperature in a city, in degrees Celsius",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": list(CITIES)}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
