"""SmolLM2 from GGUF and from safetensors against Transformers' stored logits and greedy ids, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from tests.golden.derive_llama import OUTPUT_LENGTH, load
from tests.models.backends import BACKENDS
from tests.models.driver import logits_of
from tests.models.golden_values import TOLERANCE, logits_error
from tests.models.smollm2 import generate, load_model
from tests.tools.write_safetensors import smollm2_directory

GOLDEN = load()["smollm2"]
SIZES = {"numpy": ((512,), 8), "cpu": ((512, 7), OUTPUT_LENGTH)}
"""Backend -> how the prompt is cut, and how many tokens are generated. The slow one does all of it in the oracle's tests."""


@pytest.mark.parametrize("backend", BACKENDS)
def test_gguf(smollm2: Path, backend: str) -> None:
    ops = BACKENDS[backend]()
    model = load_model(smollm2, ops)
    chunks, count = SIZES[backend]
    for chunk in chunks:
        assert logits_error(logits_of(model, ops, GOLDEN["prompt"], chunk), GOLDEN["logits"]) < TOLERANCE, chunk
    prompts, outputs = ([each[key] for each in GOLDEN["greedy"]] for key in ("prompt", "output"))
    assert generate(model, ops, prompts, count) == [output[:count] for output in outputs]
    ops.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_safetensors(backend: str) -> None:
    ops = BACKENDS[backend]()
    model = load_model(smollm2_directory("float32"), ops)
    assert logits_error(logits_of(model, ops, GOLDEN["prompt"], 512), GOLDEN["logits"]) < TOLERANCE
    ops.close()


@pytest.mark.parametrize("source", ["gguf", "safetensors", "sharded bfloat16"])
def test_the_capital_of_france(smollm2: Path, source: str) -> None:
    directory = smollm2_directory("bfloat16", shards=3) if source == "sharded bfloat16" else smollm2_directory("float32")
    with LLM(str(smollm2 if source == "gguf" else directory), max_model_len=1024) as llm:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=20), use_tqdm=False)[0].outputs[0]
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "stop"
