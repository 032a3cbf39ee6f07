"""`LLM` with a real engine, in a process of its own: the script has no main guard, and its memory is watched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MIB = 2**20
WEIGHTS = 90 * MIB  # SmolLM2-135M's as the file has them are 92 MiB

SCRIPT = """
import gc, json, sys
import psutil
from octavo import LLM, SamplingParams

def resident():
    gc.collect()
    return psutil.Process().memory_info().rss

sizes = []
for _ in range(3):
    with LLM(sys.argv[1], dtype="bfloat16", disable_progress=True) as llm:
        (output,) = llm.chat([{"role": "user", "content": "What is the capital of France?"}], SamplingParams(temperature=0))
        opened = resident()
    sizes.append((opened, resident()))
print(json.dumps({"text": output.outputs[0].text, "sizes": sizes}))
"""


def test_close_gives_all_memory_back(smollm2: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    root = Path(__file__).resolve().parent.parent.parent
    command = [sys.executable, str(script), str(smollm2)]
    process = subprocess.run(command, env={"PYTHONPATH": str(root)}, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert "Paris" in report["text"]
    (_, base), *later = report["sizes"]
    for opened, closed in later:
        assert opened - base > WEIGHTS
        assert abs(closed - base) < 24 * MIB
