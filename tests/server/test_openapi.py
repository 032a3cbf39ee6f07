"""Answers of all kinds are what the OpenAPI document says; `make clients` looks for requests whose answers are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.server.running import RunningServer

HI = [{"role": "user", "content": "hi"}]
CALLS = [
    ("GET", "/v1/models", None),
    ("GET", "/v1/models/m", None),
    ("GET", "/v1/models/none", None),
    ("GET", "/version", None),
    ("GET", "/load", None),
    ("GET", "/debug/state", None),
    ("POST", "/v1/chat/completions", {"messages": HI, "max_tokens": 3, "n": 2, "logprobs": True, "top_logprobs": 2}),
    ("POST", "/v1/chat/completions", {"messages": HI, "max_tokens": 3, "stream": True}),
    ("POST", "/v1/chat/completions", {"messages": HI, "max_tokens": 3, "prompt_logprobs": 1, "return_token_ids": True}),
    ("POST", "/v1/chat/completions", {"messages": [], "max_tokens": 3}),
    ("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 3, "logprobs": 2, "echo": True, "prompt_logprobs": 1}),
    (
        "POST",
        "/v1/completions",
        {"prompt": "Hi", "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}},
    ),
    ("POST", "/v1/completions", {"prompt": "Hello", "max_tokens": 0}),
    ("POST", "/v1/responses", {"input": "hi", "max_output_tokens": 3, "top_logprobs": 1}),
    ("POST", "/v1/responses", {"input": "hi", "max_output_tokens": 3, "stream": True}),
    ("POST", "/v1/responses", {"input": "hi", "truncation": "auto"}),
    ("GET", "/v1/responses/resp_none", None),
    ("POST", "/v1/messages", {"model": "m", "messages": HI, "max_tokens": 3}),
    ("POST", "/v1/messages", {"model": "m", "messages": HI, "max_tokens": 3, "stream": True}),
    ("POST", "/v1/messages", {"model": "m", "messages": HI, "max_tokens": 3, "thread": {"type": "create"}}),
    ("POST", "/v1/messages/count_tokens", {"model": "m", "messages": HI}),
    ("POST", "/v1/messages/count_tokens", {"model": "none", "messages": HI}),
    ("POST", "/tokenize", {"prompt": "hi", "return_token_strs": True}),
    ("POST", "/detokenize", {"tokens": [1, 2]}),
    ("POST", "/v1/embeddings", {"input": "hi"}),
]


@pytest.fixture(scope="module")
def document(server: RunningServer) -> Any:
    return server.http.get("/openapi.json").json()


def check(value: Any, schema: Any, document: Any) -> None:
    """Fails where a value is not of the schema, or has members that it does not name."""
    strict = {name: {"additionalProperties": False, **each} for name, each in document["components"]["schemas"].items()}
    Draft202012Validator({**schema, "components": {"schemas": strict}}).validate(value)


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
def test_an_answer_is_what_the_document_says(
    server: RunningServer, document: Any, method: str, path: str, body: Any
) -> None:
    response = server.http.request(method, path, json=body)
    name = "/v1/models/{model}" if path.startswith("/v1/models/") else path
    name = "/v1/responses/{response_id}" if path.startswith("/v1/responses/") else name
    operation = document["paths"][name][method.lower()]
    described = operation["responses"].get(str(response.status_code), operation["responses"].get("default"))
    content = described["content"][response.headers["content-type"].partition(";")[0]]["schema"]
    if not response.headers["content-type"].startswith("text/event-stream"):
        check(response.json(), content, document)
        return
    assert content["required"] == ["data"]
    events = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    assert len(events) >= 3
    data = content["properties"]["data"]
    if "anyOf" in data:
        done, data = data["anyOf"]
        assert events.pop() == done["const"]
    for event in events:
        check(json.loads(event), data["contentSchema"], document)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/pooling"])
def test_vectors_may_come_as_bytes(path: str, document: Any) -> None:
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    assert set(content) == {"application/json", "application/octet-stream"}
