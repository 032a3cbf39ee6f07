"""SmolLM2 from GGUF and from safetensors against Transformers' stored logits and greedy ids, in float32."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo import LLM, SamplingParams
from octavo.kernels.cpu.ops import CpuOps
from octavo.kernels.numpy.ops import NumpyOps
from octavo.kernels.ops import Ops
from octavo.models.registry import Model
from tests.golden.derive_llama import OUTPUT_LENGTH, load
from tests.models.driver import logits_of
from tests.models.golden_values import TOLERANCE, logits_error
from tests.models.smollm2 import generate, load_model
from tests.tools.write_safetensors import smollm2_directory

GOLDEN = load()["smollm2"]
PROMPTS, OUTPUTS = ([each[key] for each in GOLDEN["greedy"]] for key in ("prompt", "output"))


def assert_logits(model: Model, ops: Ops, chunk: int) -> None:
    assert logits_error(logits_of(model, ops, GOLDEN["prompt"], chunk), GOLDEN["logits"]) < TOLERANCE


def test_gguf_on_the_reference_backend(smollm2: Path) -> None:
    """A taste; the oracle's tests let this slow backend do all that the next one does."""
    ops = NumpyOps()
    model = load_model(smollm2, ops)
    assert_logits(model, ops, chunk=512)
    assert generate(model, ops, PROMPTS[:2], 4) == [output[:4] for output in OUTPUTS[:2]]


def test_gguf_on_the_native_backend(smollm2: Path) -> None:
    ops = CpuOps()
    model = load_model(smollm2, ops)
    assert_logits(model, ops, chunk=512)
    assert_logits(model, ops, chunk=7)
    assert generate(model, ops, PROMPTS, OUTPUT_LENGTH) == OUTPUTS


def test_safetensors() -> None:
    ops = CpuOps()
    assert_logits(load_model(smollm2_directory("float32"), ops), ops, chunk=512)


@pytest.mark.parametrize(
    ("kv_cache_dtype", "backend"),
    [
        ("int8", "cpu"),
        ("fp8", "cpu"),
        ("float16", "cpu"),
        pytest.param("int8", "numpy", marks=pytest.mark.nightly),  # slow, and its operations are tested against the others
    ],
)
def test_a_cache_of_another_dtype_gives_the_same_answer(smollm2: Path, kv_cache_dtype: str, backend: str) -> None:
    with LLM(str(smollm2), max_model_len=64, backend=backend, kv_cache_dtype=kv_cache_dtype) as llm:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=20), use_tqdm=False)[0].outputs[0]
    assert answer.text == "The capital of France is Paris."


@pytest.mark.parametrize(
    ("source", "quantization"), [("gguf", None), ("gguf", "int8"), ("safetensors", None), ("sharded bfloat16", None)]
)
def test_the_capital_of_france(smollm2: Path, source: str, quantization: str | None) -> None:
    directory = smollm2_directory("bfloat16", shards=3) if source == "sharded bfloat16" else smollm2_directory("float32")
    model = str(smollm2 if source == "gguf" else directory)
    with LLM(model, quantization=quantization, max_model_len=1024) as llm:
        question = [{"role": "user", "content": "What is the capital of France?"}]
        answer = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=20), use_tqdm=False)[0].outputs[0]
    assert answer.text == "The capital of France is Paris."
    assert answer.finish_reason == "stop"
