"""`/openapi.json` (OpenAPI 3.1), from the table of routes and the schemas of their bodies."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterator
from typing import Any

import msgspec

import octavo
from octavo.server.auth import OPEN_PATHS
from octavo.server.errors import OPENAI, ErrorResponse
from octavo.server.exchange import Exchange
from octavo.server.health import Health
from octavo.server.routes import OPERATIONS, BodyOperation, Operation
from octavo.server.state import ServerState

_PROBES = ("/health", "/readyz", "/livez", "/ping")
_PLAIN = {"/metrics": "text/plain"}  # what the answer is where it is not JSON
_BYTES = ("/v1/embeddings", "/pooling")  # which a request can ask for as bytes
_QUERIES = {
    "/reset_prefix_cache": {
        "name": "reset_running_requests",
        "in": "query",
        "description": "Whether running requests start again",
        "schema": {"type": "boolean", "default": False},
    }
}
_UNAUTHORIZED = {
    "description": "A missing or wrong key, where the server has keys",
    "content": {"application/json": {"schema": {"const": {"error": "Unauthorized"}}}},
}
_NO_PATH = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}


@functools.cache
def document() -> bytes:
    """The document as JSON."""
    schemas, components = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", operation.path)
        for method in operation.methods:
            paths.setdefault(path, {})[method.lower()] = _operation(operation, method, path, schemas)
    success = {"description": "This document", "content": _json({"type": "object"})}
    paths["/openapi.json"] = {
        "get": {"operationId": "get_openapi_json", "responses": {"200": success, "401": _UNAUTHORIZED}}
    }
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "Octavo", "version": octavo.__version__},
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
            "security": [{}, {"key": []}],
        }
    )


async def openapi(server: ServerState, exchange: Exchange) -> None:
    """The document."""
    await exchange.respond(document())


def _schemas() -> tuple[dict[type, Any], dict[str, Any]]:
    """The schema of every body by its type (a reference), and what the references point to."""
    types: set[type] = {ErrorResponse, Health}
    for operation in OPERATIONS:
        types.update(_body_types(operation))
    ordered = sorted(types, key=lambda type: type.__name__)
    references, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    return dict(zip(ordered, references, strict=True)), components


def _body_types(operation: Operation | BodyOperation) -> Iterator[type]:
    if operation.response is not None:
        yield operation.response
    if isinstance(operation, BodyOperation):
        yield operation.request
        yield operation.dialect.error_type
        if operation.chunk is not None:
            yield operation.chunk


def _operation(operation: Operation | BodyOperation, method: str, path: str, schemas: dict[type, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{method.lower()}{path}").strip("_"),
        "summary": (inspect.getdoc(operation.handler) or "").partition("\n")[0],
        "responses": _responses(operation, schemas),
    }
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", path)
    ]
    if path in _QUERIES:
        parameters.append(_QUERIES[path])
    if parameters:
        described["parameters"] = parameters
    if isinstance(operation, BodyOperation):
        described["requestBody"] = {"required": True, "content": _json(schemas[operation.request])}
    return described


def _responses(operation: Operation | BodyOperation, schemas: dict[type, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Success"}
    if operation.response is not None:
        success["content"] = _json(schemas[operation.response])
    elif operation.path in _PLAIN:
        success["content"] = {_PLAIN[operation.path]: {"schema": {"type": "string"}}}
    if operation.path in _BYTES:
        success["content"]["application/octet-stream"] = {}
    if isinstance(operation, BodyOperation) and operation.chunk is not None:
        success["content"]["text/event-stream"] = {"schema": _event(operation, schemas)}
    responses = {"200": success}
    if operation.path not in OPEN_PATHS:
        responses["401"] = _UNAUTHORIZED
    if operation.path in _PROBES:
        return {**responses, "503": {"description": "Not ready", "content": _json(schemas[Health])}}
    error = schemas[operation.dialect.error_type if isinstance(operation, BodyOperation) else OPENAI.error_type]
    if "{" in operation.path:  # what stands in its place may hold a slash, and so belong to no route
        responses["404"] = {"description": "Not found", "content": _json({"anyOf": [error, _NO_PATH]})}
    return {**responses, "default": {"description": "Error", "content": _json(error)}}


def _event(operation: BodyOperation, schemas: dict[type, Any]) -> dict[str, Any]:
    """An event of a stream, as its reader has it: `data` is JSON, or what OpenAI's streams end with."""
    bodies = [schemas[operation.chunk], schemas[operation.dialect.error_type]] if operation.chunk is not None else []
    body = {"type": "string", "contentMediaType": "application/json", "contentSchema": {"anyOf": bodies}}
    data = {"anyOf": [{"const": "[DONE]"}, body]} if operation.dialect.end else body
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
