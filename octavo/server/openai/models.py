"""`/v1/models`: what is served here."""

from __future__ import annotations

import uuid

import msgspec

from octavo.server.exchange import Exchange
from octavo.server.state import Model, ServerState


class ModelPermission(msgspec.Struct, kw_only=True):
    """Fixed values that old clients look for."""

    id: str
    object: str = "model_permission"
    created: int
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, kw_only=True):
    """One name of the model. `root` is where it was loaded from, `max_model_len` its context in tokens."""

    id: str
    object: str = "model"
    created: int
    owned_by: str = "octavo"
    root: str
    parent: str | None = None
    max_model_len: int
    permission: list[ModelPermission]


class ModelList(msgspec.Struct, kw_only=True):
    """All names."""

    object: str = "list"
    data: list[ModelCard]


def _card(model: Model, name: str) -> ModelCard:
    permission = ModelPermission(id=f"modelperm-{uuid.uuid4().hex[:16]}", created=model.created)
    return ModelCard(
        id=name, created=model.created, root=model.root, max_model_len=model.intake.max_model_len, permission=[permission]
    )


async def list_models(server: ServerState, exchange: Exchange) -> None:
    """All names under which the model is served."""
    _, model = server.ready()
    await exchange.respond(msgspec.json.encode(ModelList(data=[_card(model, name) for name in model.names])))


async def get_model(server: ServerState, exchange: Exchange) -> None:
    """One of them, or 404."""
    _, model = server.ready()
    name = exchange.path_parameters["model"]
    model.check_name(name)
    await exchange.respond(msgspec.json.encode(_card(model, name)))
