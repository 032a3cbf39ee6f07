"""`/v1/embeddings`."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from octavo.pooling.params import PoolingParams
from octavo.server.endpoint import Content
from octavo.server.exchange import Exchange
from octavo.server.pooling import schema
from octavo.server.pooling.encoding import EmbedDType, EncodingFormat, Endianness, NumberFormat
from octavo.server.pooling.results import pool
from octavo.server.pooling.schema import InputFields, PoolingUsage
from octavo.server.state import ServerState, offload


class EmbeddingRequest(InputFields, kw_only=True):
    """The body."""

    dimensions: int | None = None
    encoding_format: EncodingFormat = "float"
    embed_dtype: EmbedDType = "float32"
    endianness: Endianness = "native"


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
    _, model = server.ready()
    model.check_name(body.model)
    inputs, special = await schema.read_inputs(model, exchange, body)
    params = PoolingParams(use_activation=body.use_activation, dimensions=body.dimensions, task="embed")
    id, created = schema.response_id("embd-", exchange, body), int(time.time())
    numbers = NumberFormat(body.encoding_format, body.embed_dtype, body.endianness)
    more = {"add_special_tokens": special, "prompt_name": body.prompt_name}
    vectors, counts = await pool(server, exchange, body, inputs, params, numbers.most_numbers, **more)
    name, usage = model.names[0], schema.usage(counts)
    if not numbers.is_json:
        return numbers.content(id, created, name, vectors, usage)

    def work() -> bytes:
        data: list[Any] = [EmbeddingData(i, numbers.shown(values)) for i, values in enumerate(vectors)]
        return msgspec.json.encode(EmbeddingResponse(id=id, created=created, model=name, data=data, usage=usage))

    return await offload(sum(values.size for values in vectors), work)
