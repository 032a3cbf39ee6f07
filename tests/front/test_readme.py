"""The examples of the README, run as they stand there against a real server."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
PROGRAMS = [text for language, text in BLOCKS if language == "python"]
(CURL,) = [text for language, text in BLOCKS if language == "sh" and text.startswith("curl")]


@pytest.fixture(scope="module")
def address(smollm2: Path, traps: dict[str, str]) -> Iterator[str]:
    """Where a server of SmolLM2 listens, started the way vLLM's is. It would end if it imported torch or transformers."""
    command = [sys.executable, "-m", "octavo.entrypoints.openai.api_server", "--model", str(smollm2), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, env=traps, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        log = []
        for line in process.stderr:
            log.append(line)
            if match := re.search(r"Serving on http://(\S+)", line):
                break
        else:
            pytest.fail("".join(log))
        yield match[1]
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=60)
        assert process.returncode == 0, rest


def test_curl(address: str) -> None:
    """The command's parts, sent without curl, which not every machine has."""
    program, url, *options = shlex.split(CURL.replace("127.0.0.1:8000", address).replace("\\\n", " "))
    names, values = options[0::2], options[1::2]
    assert (program, names) == ("curl", ["-H", "-d"])
    headers = dict([values[0].split(": ", 1)])
    with urllib.request.urlopen(urllib.request.Request(url, values[1].encode(), headers), timeout=60) as answer:
        body = json.load(answer)
    assert "Paris" in body["choices"][0]["message"]["content"]


@pytest.mark.parametrize(("program", "expected"), list(zip(PROGRAMS, ["Paris", "The capital of France is"], strict=True)))
def test_python(program: str, expected: str, address: str) -> None:
    code = program.replace("127.0.0.1:8000", address)
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert expected in process.stdout
