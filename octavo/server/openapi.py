"""`/openapi.json` (OpenAPI 3.1), from the table of routes and the schemas of their bodies."""

from __future__ import annotations

import functools
import inspect
import re
from typing import Any

import msgspec

import octavo
from octavo.server.errors import ErrorResponse
from octavo.server.exchange import Exchange
from octavo.server.health import Health
from octavo.server.routes import OPERATIONS, BodyOperation, Operation
from octavo.server.state import ServerState

_PROBES = ("/health", "/readyz", "/livez", "/ping")


@functools.cache
def document() -> bytes:
    """The document as JSON."""
    schemas, components = _schemas()
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", operation.path)
        for method in operation.methods:
            paths.setdefault(path, {})[method.lower()] = _operation(operation, method, path, schemas)
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


def _body_types(operation: Operation | BodyOperation) -> list[type]:
    own = [operation.response]
    if isinstance(operation, BodyOperation):
        own += [operation.request, operation.chunk]
    return [type for type in own if type is not None]


def _operation(operation: Operation | BodyOperation, method: str, path: str, schemas: dict[type, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": f"{operation.handler.__name__}_{method.lower()}",
        "summary": (inspect.getdoc(operation.handler) or "").partition("\n")[0],
        "responses": _responses(operation, schemas),
    }
    names = re.findall(r"\{(\w+)\}", path)
    if names:
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if isinstance(operation, BodyOperation):
        described["requestBody"] = {"required": True, "content": _json(schemas[operation.request])}
    return described


def _responses(operation: Operation | BodyOperation, schemas: dict[type, Any]) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Success"}
    if operation.response is not None:
        success["content"] = _json(schemas[operation.response])
    if isinstance(operation, BodyOperation) and operation.chunk is not None:
        success["content"]["text/event-stream"] = {"schema": schemas[operation.chunk]}
    if operation.path in _PROBES:
        return {"200": success, "503": {"description": "Not ready", "content": _json(schemas[Health])}}
    return {"200": success, "default": {"description": "Error", "content": _json(schemas[ErrorResponse])}}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
