"""`/v1/embeddings`."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.server.endpoint import Content
from octavo.server.exchange import Exchange
from octavo.server.pooling.numbers import NumbersFields, answer_numbers
from octavo.server.pooling.schema import PoolingUsage
from octavo.server.state import ServerState


class EmbeddingRequest(NumbersFields, kw_only=True):
    """The body."""


class EmbeddingData(msgspec.Struct):
    """One vector, as numbers or in base64."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingResponse(msgspec.Struct, kw_only=True):
    """The vectors in the order of the inputs."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[EmbeddingData]
    usage: PoolingUsage


async def create_embedding(server: ServerState, exchange: Exchange, body: EmbeddingRequest) -> bytes | Content:
    """A vector for each input."""
    return await answer_numbers(server, exchange, body, task="embed", prefix="embd-", response=_response)


def _response(shown: list[Any], **more: Any) -> EmbeddingResponse:
    return EmbeddingResponse(data=[EmbeddingData(i, values) for i, values in enumerate(shown)], **more)
