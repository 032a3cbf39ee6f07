"""lm-eval, as it is installed, on a task of our own: its log-likelihoods are those of Transformers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import KEY, MODEL, serve
from tests.golden.derive_scores import QUESTIONS, load
from tests.server.process import ServerProcess

pytestmark = pytest.mark.clients
TASKS = """
task: octavo_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list: [{{metric: acc}}]
---
task: octavo_words
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs: {{until: ["."], max_gen_toks: 8, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""


@pytest.fixture(scope="module")
def float32(smollm2: Path) -> Iterator[ServerProcess]:
    """SmolLM2 in float32, which lets its tokenizer be seen, so that lm-eval needs none of its own."""
    with serve(smollm2, "--dtype", "float32", "--max-model-len", "2048", "--enable-tokenizer-info-endpoint") as server:
        server.wait_for_log("  ready ")
        yield server


def evaluate(server: ServerProcess, folder: Path, batch_size: int, num_concurrent: int) -> dict[str, list[Any]]:
    """The samples of each task, in the order of the questions."""
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    for text in TASKS.format(data=data).split("---"):
        (folder / f"{text.split()[1]}.yaml").write_text(text)
    arguments = {"model": MODEL, "base_url": f"{server.address}/v1/completions", "auth_token": KEY}
    arguments["num_concurrent"] = str(num_concurrent)
    command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--include_path", folder, "--log_samples"]
    command += ["--model_args", ",".join(f"{name}={value}" for name, value in arguments.items())]
    command += ["--tasks", "octavo_choices,octavo_words", "--output_path", folder / "out", "--batch_size", str(batch_size)]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "home")}
    environment = {**os.environ, **offline, "OPENAI_API_KEY": KEY}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    samples = {}
    for name in ("octavo_choices", "octavo_words"):
        (file,) = folder.glob(f"out/**/samples_{name}_*.jsonl")
        samples[name] = sorted(map(json.loads, file.read_text().splitlines()), key=lambda sample: sample["doc_id"])
    return samples


@pytest.mark.parametrize(
    ("batch_size", "num_concurrent"),
    [pytest.param(1, 1, id="one by one"), pytest.param(3, 4, id="many at once", marks=pytest.mark.nightly)],
)
def test_its_log_likelihoods_are_those_of_transformers(
    float32: ServerProcess, tmp_path: Path, batch_size: int, num_concurrent: int
) -> None:
    samples = evaluate(float32, tmp_path, batch_size, num_concurrent)
    found = [[resp[0] for resp in sample["resps"]] for sample in samples["octavo_choices"]]
    for scores, expected in zip(found, load(), strict=True):
        for (logprob, is_greedy), score in zip(scores, expected, strict=True):
            assert float(logprob) == pytest.approx(score["logprob"], abs=1e-3)
            assert str(is_greedy) == str(score["is_greedy"])
    answers = [sample["resps"][0][0] for sample in samples["octavo_words"]]
    assert answers[0].strip() == "Paris"
    assert len(answers) == len(QUESTIONS)
