"""schemathesis: whatever the OpenAPI document allows, and much that it does not, is answered as the document says."""

from __future__ import annotations

import json
from collections.abc import Iterator
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
from tests.server.process import ServerProcess
from tests.tools.write_safetensors import write_json, write_safetensors

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


@pytest.fixture(scope="module")
def server(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A small random model with the tokenizer of a real one: answers cost little, and grammars are real."""
    folder = tmp_path_factory.mktemp("tiny")
    config = tiny_config(vocab_size=49_152, tie_word_embeddings=True)
    tensors = tiny_checkpoint(config).tensors
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    write_safetensors(folder / "model.safetensors", "float32", shapes, iter(tensors.values()))
    write_json(folder / "config.json", config)
    options = (
        "--tokenizer",
        str(smollm2),
        "--max-model-len",
        "128",
        "--enable-auto-tool-choice",
        "--tool-call-parser",
        "hermes",
    )
    with serve(folder, *options) as server:
        server.wait_for_log("  ready ")
        yield server


@schema.parametrize()
@SAMPLE
def test_every_answer_is_as_the_document_says(case: schemathesis.Case, server: ServerProcess) -> None:
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = MODEL  # all other names are 404
    case.call_and_validate(base_url=server.address, headers=server.http.headers, checks=CHECKS)
