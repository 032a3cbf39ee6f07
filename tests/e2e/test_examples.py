"""The scripts in examples/, each run as a user would, against the real server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import KEY, serve
from tests.e2e.test_sdk import NODE
from tests.server.process import ServerProcess, server_process

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXPECTED = {
    "streaming.py": ("Paris", "tokens in"),
    "fan_out.py": ("France: The capital of France is Paris", "Japan: ", "Spain: "),
    "back_off.py": ("Paris",),
    "json_extraction.py": ("The capital is Paris; the continent is Europe.",),
    "tool_loop.py": ("temperature({'city': 'Paris'}) -> It is 21 degrees Celsius in Paris.",),
    "client.mjs": ("Paris",),
}


def run(server: ServerProcess, *command: str | Path) -> str:
    environment = {**os.environ, "OPENAI_BASE_URL": f"{server.address}/v1", "OPENAI_API_KEY": KEY}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_example_is_tested_and_listed() -> None:
    files = {file.name for file in EXAMPLES.iterdir()} - {"README.md"}
    assert files == set(EXPECTED)
    listed = (EXAMPLES / "README.md").read_text()
    assert [name for name in files if f"| `{name}` |" not in listed] == []


@pytest.mark.parametrize("name", [name for name in EXPECTED if name.endswith(".py")])
def test_a_python_example_prints_what_it_is_for(octavo: ServerProcess, name: str) -> None:
    printed = run(octavo, sys.executable, EXAMPLES / name)
    assert [words for words in EXPECTED[name] if words not in printed] == []


def test_the_node_example_prints_what_it_is_for(octavo: ServerProcess, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules" / "openai").is_dir():
        pytest.fail("the OpenAI SDK for Node is missing: npm install in tests/e2e/node (make test does it)", pytrace=False)
    (tmp_path / "node_modules").symlink_to(NODE / "node_modules")
    shutil.copy(EXAMPLES / "client.mjs", tmp_path)
    assert "Paris" in run(octavo, node, tmp_path / "client.mjs")


def test_the_back_off_waits_for_a_server_that_loads(smollm2: Path) -> None:
    with serve(smollm2) as server:
        assert "Paris" in run(server, sys.executable, EXAMPLES / "back_off.py")


def test_the_server_may_be_started_from_python(smollm2: Path) -> None:
    options = {"model": str(smollm2), "port": 0, "api_key": KEY, "max_model_len": 512}
    options |= {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    start = f"from octavo.entrypoints.openai.api_server import run; raise SystemExit(run(**{options!r}))"
    with server_process("-c", start) as server:
        server.wait_for_log("  ready ")
        printed = run(server, sys.executable, EXAMPLES / "tool_loop.py")
        server.process.terminate()
        assert server.end()[0] == 0
    assert "It is 21 degrees Celsius in Paris." in printed
