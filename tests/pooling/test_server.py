"""The routes of pooling models, over a real server: MiniLM, a cross-encoder made of it, and a classifier."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from octavo import LLM
from tests.pooling import small
from tests.pooling.texts import PAIRS, texts
from tests.server.process import ServerProcess, server_process

TEXTS = texts(12)
KEY = "secret"


def serve(model: Path, *options: str) -> Any:
    arguments = ["-m", "octavo", "serve", str(model), "--port", "0", "--served-model-name", "m", "--api-key", KEY]
    return server_process(*arguments, *options, headers={"authorization": f"Bearer {KEY}"})


@pytest.fixture(scope="module")
def embedder(minilm: Path) -> Iterator[ServerProcess]:
    """MiniLM."""
    with serve(minilm) as server:
        server.wait_for_log("  ready ")
        yield server


@pytest.fixture(scope="module")
def scorer(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A cross-encoder."""
    with serve(small.minilm_cross_encoder(tmp_path_factory.mktemp("scorer"), minilm)) as server:
        server.wait_for_log("  ready ")
        yield server


@pytest.fixture(scope="module")
def vectors(minilm_llm: LLM) -> np.ndarray:
    return np.array([one.outputs.embedding for one in minilm_llm.embed(TEXTS)], np.float32)


def refused(server: ServerProcess, path: str, body: Any) -> tuple[int, str]:
    """Status and message of an error, which is in the envelope."""
    response = server.http.post(path, json=body)
    error = response.json()["error"]
    assert response.status_code >= 400
    assert error["code"] == response.status_code
    return response.status_code, error["message"]


def test_the_python_sdk_embeds(embedder: ServerProcess, vectors: np.ndarray) -> None:
    """It asks for base64 unless it is told otherwise."""
    client = openai.OpenAI(base_url=f"{embedder.address}/v1", api_key=KEY, max_retries=0)
    answer = client.embeddings.create(model="m", input=TEXTS)
    assert np.array_equal(np.array([one.embedding for one in answer.data], np.float32), vectors)
    assert [one.index for one in answer.data] == list(range(len(TEXTS)))
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)
    floats = client.embeddings.create(model="m", input=TEXTS[0], encoding_format="float")
    assert np.array_equal(np.array(floats.data[0].embedding, np.float32), vectors[0])
    with pytest.raises(openai.BadRequestError, match="does not support matryoshka representation"):
        client.embeddings.create(model="m", input="x", dimensions=64)
    with pytest.raises(openai.NotFoundError, match="serves embed and token_embed"):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])


def test_the_answer_has_the_fields_of_vllm(embedder: ServerProcess) -> None:
    answer = embedder.http.post("/v1/embeddings", json={"input": "Hello"}, headers={"x-request-id": "mine"}).json()
    assert list(answer) == ["id", "object", "created", "model", "data", "usage"]
    assert (answer["id"], answer["object"], answer["model"]) == ("embd-mine", "list", "m")
    assert list(answer["data"][0]) == ["index", "embedding", "object"]
    assert answer["data"][0]["object"] == "embedding"
    assert answer["usage"] == {
        "prompt_tokens": 3,
        "total_tokens": 3,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"])
@pytest.mark.parametrize("endianness", ["little", "big"])
def test_numbers_as_bytes(embedder: ServerProcess, vectors: np.ndarray, dtype: str, endianness: str) -> None:
    import ml_dtypes

    more = {"fp8_e4m3": ml_dtypes.float8_e4m3fn, "fp8_e5m2": ml_dtypes.float8_e5m2, "bfloat16": ml_dtypes.bfloat16}
    kind = np.dtype(more.get(dtype, dtype))
    body = {"input": TEXTS[:2], "embed_dtype": dtype, "endianness": endianness}
    response = embedder.http.post("/v1/embeddings", json={**body, "encoding_format": "bytes"})
    assert response.headers["content-type"] == "application/octet-stream"
    items = json.loads(response.headers["metadata"])["data"]
    in_json = embedder.http.post("/v1/embeddings", json={**body, "encoding_format": "base64"}).json()["data"]
    for i, item in enumerate(items):
        data = response.content[item["start"] : item["end"]]
        assert base64.b64decode(in_json[i]["embedding"]) == data
        bits = np.frombuffer(data, np.dtype(f"u{kind.itemsize}").newbyteorder("<" if endianness == "little" else ">"))
        assert np.array_equal(bits.astype(f"u{kind.itemsize}").view(kind), vectors[i].astype(kind))
    named = {**body, "encoding_format": "bytes", "request_id": "\x7f\u00e9\U0001f600"}
    response = embedder.http.post("/v1/embeddings", json=named)
    assert json.loads(response.headers["metadata"])["id"] == "embd-\x7f\u00e9\U0001f600"
    alone = embedder.http.post("/v1/embeddings", json={**body, "encoding_format": "bytes_only"})
    assert alone.content == response.content
    assert "metadata" not in alone.headers


def test_c136_empty_and_many_inputs(minilm: Path, tmp_path: Path) -> None:
    small.copy_tokenizer(minilm, tmp_path)
    config = small.bert_config()
    small.write_model(tmp_path, config, small.bert_tensors(config, "", {}))
    with serve(tmp_path) as server:
        server.wait_for_log("  ready ")
        for empty in ("", [], [""], [[]], ["a", ""], [[1], []]):
            status, message = refused(server, "/v1/embeddings", {"input": empty})
            assert (status, "must not be empty" in message) == (400, True), message
        assert "input[1]" in refused(server, "/v1/embeddings", {"input": ["a", ""]})[1]
        assert "input[1] must be of the same kind" in refused(server, "/v1/embeddings", {"input": ["a", [1]]})[1]
        many = [TEXTS[i % 3] if i % 1000 == 0 else "a" for i in range(10_000)]
        whole = server.http.post("/v1/embeddings", json={"input": many, "encoding_format": "base64"}, timeout=120).json()
        some = server.http.post("/v1/embeddings", json={"input": TEXTS[:3], "encoding_format": "base64"}).json()
        assert [one["index"] for one in whole["data"]] == list(range(10_000))
        for i in range(0, 10_000, 1000):
            assert whole["data"][i]["embedding"] == some["data"][i % 3]["embedding"]
        assert "at most 16384 inputs, got 16385" in refused(server, "/v1/embeddings", {"input": ["a"] * 16385})[1]


def test_c137_token_ids(embedder: ServerProcess, minilm_llm: LLM, vectors: np.ndarray) -> None:
    ids = [minilm_llm.get_tokenizer().encode(text) for text in TEXTS[:3]]
    answer = embedder.http.post("/v1/embeddings", json={"input": ids}).json()
    assert np.array_equal(np.array([one["embedding"] for one in answer["data"]], np.float32), vectors[:3])
    one = embedder.http.post("/v1/embeddings", json={"input": ids[0]}).json()
    assert np.array_equal(np.array(one["data"][0]["embedding"], np.float32), vectors[0])
    assert [line for line in embedder.log if "check_embedding_ctx_length=False" in line]
    for wrong, place in (
        ([1, 30522], "input[1]"),
        ([[1], [2, -1]], "input[1][1]"),
        ([1, "a"], "input[1]"),
        ([True], "input[0]"),
    ):
        status, message = refused(embedder, "/v1/embeddings", {"input": wrong})
        assert (status, place in message) == (400, True), message


def test_c140_a_pooling_model_generates_nothing(embedder: ServerProcess, scorer: ServerProcess) -> None:
    messages = [{"role": "user", "content": "x"}]
    for path, body in (
        ("/v1/chat/completions", {"messages": messages}),
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/responses", {"input": "x"}),
        ("/classify", {"input": "x"}),
    ):
        status, message = refused(embedder, path, body)
        assert (status, "serves embed and token_embed and score" in message) == (404, True), message
    status, message = refused(scorer, "/v1/embeddings", {"input": "x"})
    assert (status, "serves classify and token_classify and score" in message) == (404, True), message
    response = embedder.http.post("/v1/messages", json={"max_tokens": 4, "messages": messages})
    assert (response.status_code, "serves embed" in response.text) == (404, True)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "Field required"),
        ({"input": None}, "Field required"),
        ({"input": 5}, "must be a string, a list of strings, or token ids"),
        ({"input": "x", "model": "other"}, "does not exist"),
        ({"input": "a " * 300}, "maximum context length is 256 tokens"),
        ({"input": "a" * 5_000_000}, "maximum context length is 256 tokens"),
        ({"input": ["a", "a " * 300]}, "Input 1 of the list: This model's maximum context length"),
        ({"input": "x", "truncate_prompt_tokens": 300}, "greater than max_model_len (256)"),
        ({"input": "x", "truncate_prompt_tokens": -2}, "greater than or equal to -1"),
        ({"input": "x", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be -1, or at least 1"),
        ({"input": "x", "dimensions": 0}, "Dimensions must be greater than 0"),
        ({"input": "x", "dimensions": 1000}, "at most 384"),
        ({"input": "x", "dimensions": "many"}, "valid integer"),
        ({"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ({"input": "x", "padding": "max_length"}, "`padding` max_length is not supported"),
        ({"input": "x", "prompt_name": "query"}, "prompt_name must be one of the model's prompts (none)"),
        ({"input": "x", "priority": 1}, "Priority scheduling is not enabled"),
        ({"input": "x", "cache_salt": ""}, "cache_salt"),
        ({"input": "x", "messages": [{"role": "user", "content": "x"}]}, "give one of them"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no chat template"),
    ],
)
def test_wrong_requests_are_400_with_a_reason(embedder: ServerProcess, body: Any, message: str) -> None:
    status, found = refused(embedder, "/v1/embeddings", body)
    assert status == (404 if body.get("model") else 400)
    assert message in found


def test_tokens_to_text_and_back(embedder: ServerProcess) -> None:
    tokens = embedder.http.post("/tokenize", json={"prompt": "Unaffordable bells"}).json()["tokens"]
    assert (tokens[0], tokens[-1]) == (101, 102)
    text = embedder.http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text == "[CLS] unaffordable bells [SEP]"


def test_truncation_is_told(embedder: ServerProcess) -> None:
    body = {"input": ["a " * 300, "b"], "truncate_prompt_tokens": -1}
    response = embedder.http.post("/v1/embeddings", json=body)
    assert response.status_code == 200
    assert response.json()["usage"]["prompt_tokens"] == 256 + 3
    assert response.headers["x-prompt-tokens-dropped"] == "46"


def test_pooling_gives_tokens_where_that_is_asked(embedder: ServerProcess, vectors: np.ndarray) -> None:
    answer = embedder.http.post("/pooling", json={"input": TEXTS[:2]}).json()
    assert (answer["id"][:5], answer["data"][0]["object"]) == ("pool-", "pooling")
    assert np.array_equal(np.array([one["data"] for one in answer["data"]], np.float32), vectors[:2])
    tokens = embedder.http.post("/pooling", json={"input": "a b", "task": "token_embed"}).json()["data"][0]["data"]
    assert np.array(tokens).shape == (4, 384)
    many = {"input": ["a " * 250] * 200, "task": "token_embed"}  # refused before anything is computed
    status, message = refused(embedder, "/pooling", many)
    assert (status, f"would be {200 * 252 * 384} numbers" in message) == (400, True), message
    assert "Unsupported task: 'classify'" in refused(embedder, "/pooling", {"input": "x", "task": "classify"})[1]


def test_scores_and_ranks_by_cosine(embedder: ServerProcess, vectors: np.ndarray) -> None:
    cosines = vectors[1:5] @ vectors[0]
    for path in ("/score", "/v1/score"):
        answer = embedder.http.post(path, json={"text_1": TEXTS[0], "text_2": TEXTS[1:5]}).json()
        assert np.abs(np.array([one["score"] for one in answer["data"]]) - cosines).max() < 1e-6
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        answer = embedder.http.post(path, json={"query": TEXTS[0], "documents": TEXTS[1:5], "top_n": 2}).json()
        assert [one["index"] for one in answer["results"]] == np.argsort(-cosines)[:2].tolist()


def test_a_cross_encoder_scores(scorer: ServerProcess, golden_scores: list[float]) -> None:
    first, second = [list(side) for side in zip(*PAIRS, strict=True)]
    for names in (("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")):
        answer = scorer.http.post("/score", json={names[0]: first, names[1]: second}).json()
        assert np.abs(np.array([one["score"] for one in answer["data"]]) - golden_scores).max() < 1e-5
    assert list(answer) == ["id", "object", "created", "model", "data", "usage"]
    assert list(answer["data"][0]) == ["index", "score", "object"]
    parts = {"content": [{"type": "text", "text": first[0]}]}
    one = scorer.http.post("/v1/score", json={"text_1": parts, "text_2": second[0]}).json()
    assert one["data"][0]["score"] == pytest.approx(golden_scores[0], abs=1e-5)
    raw = scorer.http.post("/score", json={"text_1": first, "text_2": second, "use_activation": False}).json()
    logits = np.array([one["score"] for one in raw["data"]])
    assert np.abs(1 / (1 + np.exp(-logits)) - golden_scores).max() < 1e-5


def test_a_cross_encoder_ranks(scorer: ServerProcess) -> None:
    documents = [second for _, second in PAIRS]
    whole = scorer.http.post("/rerank", json={"query": PAIRS[0][0], "documents": documents, "model": "m"}).json()
    assert list(whole) == ["id", "model", "usage", "results"]
    scores = [one["relevance_score"] for one in whole["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(one["index"] for one in whole["results"]) == list(range(len(documents)))
    for one in whole["results"]:
        assert one["document"] == {"text": documents[one["index"]], "multi_modal": None}
    best = scorer.http.post("/v2/rerank", json={"query": PAIRS[0][0], "documents": documents, "top_n": 2}).json()
    assert best["results"] == whole["results"][:2]
    cut = scorer.http.post("/rerank", json={"query": "a", "documents": documents, "max_tokens_per_doc": 2}).json()
    assert cut["usage"]["prompt_tokens"] == len(documents) * (3 + 1 + 2)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"query": "", "documents": ["a"]}, "query must not be empty"),
        ({"query": "a", "documents": []}, "At least one text_pair element must be given"),
        ({"query": "a", "documents": ["b", ""]}, "documents[1] must not be empty"),
        ({"query": "a", "documents": ["b", 5]}, "documents[1] must be a text"),
        ({"query": "a", "documents": [{"content": [{"type": "image_url"}]}]}, "MultiModalParam is not supported for Bert"),
        ({"documents": ["a"]}, "Field required"),
        ({"query": "a", "documents": ["b"], "max_tokens_per_doc": -1}, "must be a non-negative integer"),
        ({"query": "a", "documents": ["b"], "max_tokens_per_query": 512}, "must be less than max_model_len (512)"),
        ({"query": "a", "documents": ["b", "c " * 600]}, "Input 1 of the list: This model's maximum context length is 512"),
        ({"query": "a", "documents": ["b"] * 16385}, "at most 16384"),
        ({"query": "a" * 100_000, "documents": ["b"]}, "However, your prompt contains 100001 characters"),
        ({"query": "a" * 2**13, "documents": ["b"] * (2**13 + 1), "truncate_prompt_tokens": 9}, "can be at most 67108864"),
    ],
)
def test_wrong_rerank_requests_are_400(scorer: ServerProcess, body: Any, message: str) -> None:
    status, found = refused(scorer, "/rerank", body)
    assert (status, message in found) == (400, True), found


def test_wrong_score_requests_are_400(scorer: ServerProcess) -> None:
    assert "Input lengths must be either" in refused(scorer, "/score", {"text_1": ["a", "b"], "text_2": ["c"]})[1]
    assert "Field required" in refused(scorer, "/score", {"text_1": "a"})[1]


def test_metrics_count_pooling_requests(scorer: ServerProcess) -> None:
    def values() -> dict[str, float]:
        lines = scorer.http.get("/metrics").text.splitlines()
        found = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name: float(value) for name, _, value in found if "success" in name or "prompt_tokens_total" in name}

    before = values()
    usage = scorer.http.post("/rerank", json={"query": "a", "documents": ["b", "c"]}).json()["usage"]
    grown = {name: value - before[name] for name, value in values().items() if value != before[name]}
    assert sorted(grown.values()) == [2, usage["prompt_tokens"]]


def test_a_decoder_embeds_conversations_and_named_prompts(tmp_path: Path) -> None:
    folder = small.decoder_embedder(tmp_path)
    prompts = {"query": "the harbour: ", "document": ""}
    small.write_modules(folder, "lasttoken", normalises=True, prompts=prompts)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}!{% endif %}"
    with serve(folder, "--chat-template", template, "--max-model-len", "128") as server:
        server.wait_for_log("  ready ")

        def vector(**body: Any) -> list[float]:
            return server.http.post("/v1/embeddings", json=body).json()["data"][0]["embedding"]

        parts = [{"role": "user", "content": "the "}, {"role": "assistant", "content": "boats"}]
        plain = vector(input="the boats", add_special_tokens=False)
        assert vector(messages=parts) == plain
        assert vector(messages=parts, add_special_tokens=True) == vector(input="the boats") != plain
        assert vector(messages=parts, add_generation_prompt=True) == vector(input="the boats!", add_special_tokens=False)
        asked = vector(input="the boats", prompt_name="query")
        assert asked == vector(input="the harbour: the boats")
        assert vector(input="the boats", prompt_name="document") == vector(input="the boats")
        message = refused(server, "/v1/embeddings", {"input": "x", "prompt_name": "other"})[1]
        assert "one of the model's prompts ('query', 'document'), got 'other'" in message
        body = {"messages": parts, "chat_template": "x"}
        assert "not trusted" in refused(server, "/v1/embeddings", body)[1]


@pytest.fixture(scope="module")
def golden_scores() -> list[float]:
    from tests.golden.derive_minilm import FILE

    return [1 / (1 + np.exp(-logit)) for logit in json.loads(FILE.read_text())["logits"]]


def test_a_generative_model_says_what_it_serves(smollm2: Path) -> None:
    """C140's other half, with the server's log free of tracebacks."""
    with serve(smollm2, "--max-model-len", "64", "--max-num-seqs", "4") as server:
        server.wait_for_log("  ready ")
        for path in ("/v1/embeddings", "/pooling", "/classify", "/score", "/rerank"):
            status, message = refused(server, path, {"input": "x"})
            assert (status, "serves generate" in message, "--runner pooling" in message) == (404, True, True), message
        assert not [line for line in server.log if "Traceback" in line]
