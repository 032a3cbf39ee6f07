"""schemathesis: whatever the OpenAPI document allows, and much that it does not, is answered as the document says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import schemathesis
from hypothesis import settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from octavo.server.openapi import document
from tests.e2e.conftest import MODEL, serve
from tests.models.tiny import tiny_checkpoint, tiny_config
from tests.pooling.small import decoder_embedder, write_model
from tests.server.process import ServerProcess

pytestmark = pytest.mark.clients


def no_server_error(context: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """A 504 is right where the request's own `timeout` is over."""
    if response.status_code != 504 or not isinstance(case.body, dict) or "timeout" not in case.body:
        not_a_server_error(context, response, case)


CHECKS = [
    no_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
IS_NIGHTLY = settings.default.max_examples >= 1000
SAMPLE = settings(max_examples=250 if IS_NIGHTLY else 10)  # of each operation
schema = schemathesis.openapi.from_dict(json.loads(document()))

schema.config.phases.coverage.enabled = IS_NIGHTLY  # each constraint of each field kept and broken: some 4,000 requests


KINDS = {"/v1/embeddings": "embedder", "/pooling": "embedder", "/classify": "classifier"}


def kind_of(path: str) -> str:
    """What the model must be there for."""
    return "scorer" if path.endswith(("score", "rerank")) else KINDS.get(path, "generator")


def write_generator(folder: Path) -> Path:
    """A small random model of SmolLM2's vocabulary."""
    config = tiny_config(vocab_size=49_152, tie_word_embeddings=True)
    return write_model(folder, config, tiny_checkpoint(config).tensors)


@pytest.fixture(scope="module")
def servers(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServerProcess]]:
    """One of each kind. The models are small and random: answers cost little, and the grammars are real."""
    folder = tmp_path_factory.mktemp("small")
    options = ("--tokenizer", str(smollm2), "--enable-auto-tool-choice", "--tool-call-parser", "hermes")
    started = {
        "generator": serve(write_generator(folder / "generator"), *options, "--max-model-len", "128"),
        "embedder": serve(decoder_embedder(folder / "embedder"), "--max-model-len", "128"),
        "classifier": serve(decoder_embedder(folder / "classifier", labels=3), "--max-model-len", "128"),
        "scorer": serve(decoder_embedder(folder / "scorer", labels=1), "--max-model-len", "128"),
    }
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(server) for kind, server in started.items()}
        for server in servers.values():
            server.wait_for_log("  ready ")
        yield servers


@schema.parametrize()
@SAMPLE
def test_every_answer_is_as_the_document_says(case: schemathesis.Case, servers: dict[str, ServerProcess]) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL  # all other names are 404
    server = servers[kind_of(case.operation.path)]
    case.call_and_validate(base_url=server.address, headers=server.http.headers, checks=CHECKS)
