"""all-MiniLM-L6-v2: its vectors are those that sentence-transformers gives, whatever they share their steps with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from octavo import LLM, PoolingParams
from octavo.errors import ValidationError
from tests.golden.derive_minilm import FILE
from tests.pooling.texts import texts

TEXTS = texts(100)
GOLDEN = json.loads(FILE.read_text())


def embed(llm: LLM, inputs: list[str], **options: object) -> np.ndarray:
    return np.array([one.outputs.embedding for one in llm.embed(inputs, **options)], np.float32)


@pytest.fixture(scope="module")
def vectors(minilm_llm: LLM) -> np.ndarray:
    return embed(minilm_llm, TEXTS)


def test_vectors_are_the_stored_ones(minilm_llm: LLM, vectors: np.ndarray) -> None:
    stored = np.array(GOLDEN["starts"])
    assert np.abs(vectors[: len(stored), : stored.shape[1]] - stored).max() < 1e-5
    assert np.abs(vectors @ vectors[0] - GOLDEN["cosines"]).max() < 1e-5


def test_numpy_gives_the_same(minilm: Path, vectors: np.ndarray) -> None:
    with LLM(str(minilm), backend="numpy", disable_progress=True) as llm:
        assert (embed(llm, TEXTS[:6]) * vectors[:6]).sum(axis=1).min() > 0.99999


@pytest.mark.parametrize(("batched", "seqs"), [(256, 1), (300, 3), (2048, 256)])
def test_bits_do_not_depend_on_the_batch(minilm: Path, vectors: np.ndarray, batched: int, seqs: int) -> None:
    order = np.random.RandomState(batched).permutation(len(TEXTS))[:40]
    options = {"max_num_batched_tokens": batched, "max_num_seqs": seqs, "disable_progress": True}
    with LLM(str(minilm), backend="cpu", cpu_threads=1, **options) as llm:
        assert np.array_equal(embed(llm, [TEXTS[i] for i in order]), vectors[order])


def test_c139_batches_and_single_texts_are_equal_and_normalised(minilm_llm: LLM, vectors: np.ndarray) -> None:
    for i in range(20):
        assert np.array_equal(embed(minilm_llm, [TEXTS[i]])[0], vectors[i])
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6
    raw = embed(minilm_llm, TEXTS[:3], pooling_params=PoolingParams(use_activation=False))
    assert np.linalg.norm(raw, axis=1).min() > 1.5
    assert np.abs(raw / np.linalg.norm(raw, axis=1, keepdims=True) - vectors[:3]).max() < 1e-6


def test_each_token_has_a_vector(minilm_llm: LLM, vectors: np.ndarray) -> None:
    (one,) = minilm_llm.encode(TEXTS[0], PoolingParams(use_activation=False), pooling_task="token_embed")
    assert one.outputs.data.shape == (len(one.prompt_token_ids), 384)
    mean = one.outputs.data.mean(axis=0, dtype=np.float64)
    assert np.abs(mean / np.linalg.norm(mean) - vectors[0]).max() < 1e-6


def test_long_texts_are_refused_or_cut_where_that_is_asked(minilm_llm: LLM) -> None:
    long = "word " * 400
    with pytest.raises(ValidationError, match="maximum context length is 256 tokens"):
        minilm_llm.embed(long)
    (cut,) = minilm_llm.embed(long, tokenization_kwargs={"truncate_prompt_tokens": -1})
    assert cut.prompt_token_ids == [101, *[2773] * 254, 102]
    (short,) = minilm_llm.embed("a b c d e", tokenization_kwargs={"truncate_prompt_tokens": 4, "truncation_side": "left"})
    assert short.prompt_token_ids == [101, 1040, 1041, 102]
    with pytest.raises(ValidationError, match="leaves no room"):
        minilm_llm.embed("a b", tokenization_kwargs={"truncate_prompt_tokens": 2})


def test_scores_are_cosines(minilm_llm: LLM, vectors: np.ndarray) -> None:
    scores = [one.outputs.score for one in minilm_llm.score(TEXTS[0], TEXTS[:4])]
    assert np.abs(np.array(scores) - vectors[:4] @ vectors[0]).max() < 1e-6
    pairs = minilm_llm.score(TEXTS[:3], TEXTS[3:6])
    assert np.abs(np.array([one.outputs.score for one in pairs]) - (vectors[:3] * vectors[3:6]).sum(axis=1)).max() < 1e-6
    first, second = (minilm_llm.embed(TEXTS[i])[0].prompt_token_ids for i in (0, 3))
    assert pairs[0].prompt_token_ids == [*first, 0, *second]


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda llm: llm.generate("x"), r"LLM.generate\(\) is only supported for generative models"),
        (lambda llm: llm.chat([{"role": "user", "content": "x"}]), r"LLM.chat\(\) is only supported for generative models"),
        (lambda llm: llm.classify("x"), "Classification API is not supported by this model"),
        (lambda llm: llm.encode("x"), "pooling_task required"),
        (lambda llm: llm.encode("x", pooling_task="classify"), "Unsupported task: 'classify'"),
        (lambda llm: llm.embed(""), "prompt must not be empty"),
        (lambda llm: llm.embed(["a", ""]), r"prompts\[1\] must not be empty"),
        (lambda llm: llm.embed([[]]), "prompt must not be empty"),
        (lambda llm: llm.embed([[1, 2], [3, 30522]]), r"Token id 30522 is out of vocabulary: prompts\[1\]\[1\]"),
        (lambda llm: llm.embed("x", pooling_params=PoolingParams(dimensions=0)), "greater than 0"),
        (lambda llm: llm.embed("x", pooling_params=PoolingParams(dimensions=385)), "at most 384"),
        (lambda llm: llm.embed("x", pooling_params=PoolingParams(dimensions=64)), "does not support matryoshka"),
        (lambda llm: llm.embed("x", pooling_params=[PoolingParams()] * 2), "must be the same"),
        (lambda llm: llm.embed("x", pooling_params=PoolingParams(task="classify")), "You cannot overwrite"),
        (lambda llm: llm.score(["a", "b"], ["a"]), "Input lengths must be either 1:1, 1:N or N:N"),
        (lambda llm: llm.score([], ["a"]), "At least one text element"),
        (lambda llm: llm.score("a", []), "At least one text_pair element"),
        (lambda llm: llm.score("a", ["b", ""]), r"data_2\[1\] must not be empty"),
    ],
)
def test_what_cannot_be_served_is_refused(minilm_llm: LLM, ask: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ask(minilm_llm)


def test_a_generative_model_does_not_embed(smollm2: Path) -> None:
    with LLM(str(smollm2), max_model_len=64, max_num_seqs=1, disable_progress=True) as llm:
        for ask in (lambda: llm.embed("x"), lambda: llm.score("x", "y"), lambda: llm.encode("x", pooling_task="embed")):
            with pytest.raises(ValidationError, match=r"only supported for pooling models\. Try passing"):
                ask()
