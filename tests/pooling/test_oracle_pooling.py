"""Live against Transformers: encoders, cross-encoders, decoders that embed, and classifiers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, PoolingParams
from tests.golden import derive_minilm
from tests.models.test_oracle import assert_close
from tests.pooling import small
from tests.pooling.texts import PAIRS, texts

pytestmark = pytest.mark.oracle
BACKENDS = ("cpu", "numpy")
RAW = PoolingParams(use_activation=False)
PROMPTS = [[5], [7, 9], list(range(3, 40)), list(range(100, 220)), [250] * 20]


def open_llm(folder: Path, backend: str, **options: Any) -> LLM:
    return LLM(str(folder), backend=backend, dtype="float32", disable_progress=True, **options)


def error(got: Any, want: np.ndarray) -> float:
    return float(np.abs(np.asarray(got) - want).max() / np.abs(want).max())


def test_golden_values_are_what_transformers_says(minilm: Path) -> None:
    assert_close(derive_minilm.derive(minilm), json.loads(derive_minilm.FILE.read_text()))


@pytest.mark.parametrize(("backend", "batched"), [("cpu", 256), ("cpu", 2048), ("numpy", 2048)])
def test_minilm_is_sentence_transformers(minilm: Path, backend: str, batched: int) -> None:
    from tests.pooling.reference import sentence_vectors

    inputs = texts(100) if backend == "cpu" else texts(100)[:5]
    with open_llm(minilm, backend, max_num_batched_tokens=batched) as llm:
        got = np.array([one.outputs.embedding for one in llm.embed(inputs)])
    want = sentence_vectors(minilm, tuple(texts(100)))[: len(inputs)]
    assert (got * want).sum(axis=1).min() >= 0.99999
    assert np.abs(got - want).max() < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_cross_encoder_of_minilm(minilm: Path, tmp_path: Path, backend: str) -> None:
    from tests.pooling.reference import cross_encoder_logits

    folder = small.minilm_cross_encoder(tmp_path, minilm)
    want = cross_encoder_logits(folder, PAIRS)[:, 0]
    first, second = [list(side) for side in zip(*PAIRS, strict=True)]
    with open_llm(folder, backend) as llm:
        logits = [one.outputs.score for one in llm.score(first, second, pooling_params=RAW)]
        scores = [one.outputs.score for one in llm.score(first, second)]
    assert error(logits, want) < 1e-4
    assert np.abs(np.array(scores) - 1 / (1 + np.exp(-want))).max() < 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_classes_of_pairs_and_texts(minilm: Path, tmp_path: Path, backend: str) -> None:
    from tests.pooling.reference import class_logits

    folder = small.bert_classifier(tmp_path, minilm, 3)
    want = np.stack(class_logits(folder, PROMPTS))
    with open_llm(folder, backend) as llm:
        logits = [one.outputs.probs for one in llm.classify(PROMPTS, pooling_params=RAW)]
        probs = [one.outputs.probs for one in llm.classify(PROMPTS)]
    assert error(logits, want) < 1e-4
    exact = np.exp(want - want.max(axis=1, keepdims=True))
    assert error(probs, exact / exact.sum(axis=1, keepdims=True)) < 1e-4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta"])
def test_roberta(tmp_path: Path, backend: str, kind: str) -> None:
    from tests.pooling.reference import hidden_states

    names = {"roberta": "RobertaModel", "xlm-roberta": "XLMRobertaModel"}
    changes = {
        "model_type": kind,
        "type_vocab_size": 1,
        "max_position_embeddings": 130,
        "pad_token_id": 1,
        "vocab_size": 300,
    }
    config = small.bert_config(names[kind], hidden_act="gelu_new", **changes)
    prefix = "roberta." if kind == "roberta" else ""
    small.write_model(tmp_path, config, small.bert_tensors(config, prefix, {}))
    want = hidden_states(tmp_path, PROMPTS)
    with open_llm(tmp_path, backend, skip_tokenizer_init=True) as llm:
        got = llm.encode(PROMPTS, RAW, pooling_task="token_embed")
        first = llm.embed(PROMPTS, pooling_params=RAW)
    for one, vector, states in zip(got, first, want, strict=True):
        assert error(one.outputs.data, states) < 1e-4
        assert error(vector.outputs.embedding, states[0]) < 1e-4


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("bare", [True, False])
def test_a_decoder_that_embeds(tmp_path: Path, backend: str, bare: bool) -> None:
    from tests.pooling.reference import hidden_states

    folder = small.decoder_embedder(tmp_path, bare=bare)
    want = hidden_states(folder, PROMPTS)
    means = np.stack([states.mean(axis=0) for states in want])
    with open_llm(folder, backend, runner="pooling", max_num_batched_tokens=32) as llm:
        got = [one.outputs.embedding for one in llm.embed(PROMPTS, pooling_params=RAW)]
    with open_llm(
        folder, backend, pooler_config={"pooling_type": "MEAN"}, runner="pooling", max_num_batched_tokens=32
    ) as llm:
        averaged = [one.outputs.embedding for one in llm.embed(PROMPTS, pooling_params=RAW)]
    assert error(got, np.stack([states[-1] for states in want])) < 1e-4
    assert error(averaged, means) < 1e-4


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_decoder_that_classifies(tmp_path: Path, backend: str) -> None:
    from tests.pooling.reference import class_logits

    folder = small.decoder_embedder(tmp_path, bare=False, labels=3)
    want = np.stack(class_logits(folder, PROMPTS))
    with open_llm(folder, backend, max_num_batched_tokens=32) as llm:
        got = [one.outputs.probs for one in llm.classify(PROMPTS, pooling_params=RAW)]
    assert error(got, want) < 1e-4


DECODERS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "qwen2": {"labels": 2},
    "mistral": {"labels": 1, "sliding_window": 16},
    "gemma2": {"sliding_window": 16, "query_pre_attn_scalar": 16},
}


@pytest.mark.parametrize("kind", DECODERS)
def test_families_as_transformers_stores_them(tmp_path: Path, kind: str) -> None:
    from tests.pooling.reference import class_logits, hidden_states, save_random

    save_random(tmp_path, kind, **DECODERS[kind])
    with open_llm(tmp_path, "cpu", skip_tokenizer_init=True, max_num_batched_tokens=32) as llm:
        if "labels" in DECODERS[kind]:
            got = np.array([one.outputs.probs for one in llm.classify(PROMPTS, pooling_params=RAW)])
            want = np.stack(class_logits(tmp_path, PROMPTS))
        else:
            got = np.array([one.outputs.embedding for one in llm.embed(PROMPTS, pooling_params=RAW)])
            want = np.stack([states[-1] for states in hidden_states(tmp_path, PROMPTS)])
    assert error(got, want) < 1e-4


@pytest.mark.parametrize("kind", ["roberta", "xlm-roberta"])
def test_classifiers_of_roberta(tmp_path: Path, kind: str) -> None:
    from tests.pooling.reference import class_logits, save_random

    save_random(tmp_path, kind, labels=3, type_vocab_size=1, bos_token_id=0, eos_token_id=2)
    config = json.loads((tmp_path / "config.json").read_text())
    prompts = [[id for id in prompt if id != config["pad_token_id"]] for prompt in PROMPTS]
    with open_llm(tmp_path, "cpu", skip_tokenizer_init=True) as llm:
        got = np.array([one.outputs.probs for one in llm.classify(prompts, pooling_params=RAW)])
    assert error(got, np.stack(class_logits(tmp_path, prompts))) < 1e-4
