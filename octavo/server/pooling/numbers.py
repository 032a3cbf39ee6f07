"""What `/v1/embeddings` and `/pooling` have in common: the numbers of each input, in the form that the client asks for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from octavo.pooling.params import PoolingParams
from octavo.server.endpoint import Content
from octavo.server.exchange import Exchange
from octavo.server.pooling import schema
from octavo.server.pooling.encoding import EmbedDType, EncodingFormat, Endianness, NumberFormat
from octavo.server.pooling.results import pool
from octavo.server.pooling.schema import InputFields
from octavo.server.state import ServerState, offload


class NumbersFields(InputFields, kw_only=True):
    """Fields that both bodies have."""

    dimensions: int | None = None
    encoding_format: EncodingFormat = "float"
    embed_dtype: EmbedDType = "float32"
    endianness: Endianness = "native"


async def answer_numbers(
    server: ServerState,
    exchange: Exchange,
    body: NumbersFields,
    *,
    task: str | None,
    prefix: str,
    response: Callable[..., msgspec.Struct],
) -> bytes | Content:
    """The results of a task (None: the model's own) as bytes, or in a `response` of `shown` (one entry an input), `id`,
    `created`, `model` and `usage`. `prefix`: of the id."""
    _, model = server.ready()
    model.check_name(body.model)
    inputs, special = await schema.read_inputs(model, exchange, body)
    params = PoolingParams(use_activation=body.use_activation, dimensions=body.dimensions, task=task)
    id, created = schema.response_id(prefix, exchange, body), int(time.time())
    numbers = NumberFormat(body.encoding_format, body.embed_dtype, body.endianness)
    more = {"add_special_tokens": special, "prompt_name": body.prompt_name}
    vectors, counts = await pool(server, exchange, body, inputs, params, numbers.most_numbers, **more)
    name, usage = model.names[0], schema.usage(counts)
    if not numbers.is_json:
        return numbers.content(id, created, name, vectors, usage)

    def work() -> bytes:
        shown: list[Any] = [numbers.shown(values) for values in vectors]
        return msgspec.json.encode(response(shown, id=id, created=created, model=name, usage=usage))

    return await offload(sum(values.size for values in vectors), work)
