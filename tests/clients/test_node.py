"""Clients for Node: Vercel's AI SDK, and the SDKs of OpenAI and Anthropic."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import QUESTION, WARM
from tests.e2e.conftest import KEY, MODEL
from tests.server.process import ServerProcess

pytestmark = pytest.mark.clients
NODE = Path(__file__).parent / "node"


def run(script: str, server: ServerProcess) -> Any:
    """What a script of the folder `node` prints."""
    node = shutil.which("node")
    if node is None or not (NODE / "node_modules" / "ai").is_dir():
        pytest.fail("clients for Node are missing: npm install in tests/clients/node (make clients does it)", pytrace=False)
    command = [node, script, server.address, KEY, MODEL, QUESTION, WARM]
    run = subprocess.run(command, cwd=NODE, capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_the_ai_sdk_talks_calls_and_gets_objects(server: ServerProcess) -> None:
    got = run("ai.mjs", server)
    assert "Paris" in got["whole"]
    assert got["streamed"] == got["whole"]
    assert got["finishReason"] == "stop"
    whole, streamed = got["usage"]
    assert whole == streamed > 0
    assert len(got["calls"]) == 2
    assert got["calls"][0] == got["calls"][1]
    assert got["steps"][0] == "tool-calls"
    assert got["streamedLoop"] == got["looped"] != ""
    assert got["object"]["city"] in ("Paris", "Oslo")


def test_the_sdks_talk_call_and_parse(server: ServerProcess) -> None:
    got = run("sdks.mjs", server)
    for texts in (got["openai"], got["anthropic"]):
        assert "Paris" in texts[0]
        assert len(set(texts)) == 1
    assert got["parsed"]["city"] in ("Paris", "Oslo")
    assert got["stopReasons"][:2] == ["end_turn", "tool_use"]
    assert got["inputs"][0] == got["inputs"][1]
    assert len(got["calls"]) == 2
    assert got["last"] == ["text"]
