"""`/pooling`: the results of any task that the model serves; and `/classify`."""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

from octavo.pooling.params import PoolingParams
from octavo.server.endpoint import Content
from octavo.server.exchange import Exchange
from octavo.server.pooling import schema
from octavo.server.pooling.numbers import NumbersFields, answer_numbers
from octavo.server.pooling.results import pool
from octavo.server.pooling.schema import InputFields, PoolingUsage
from octavo.server.state import ServerState


class PoolingRequest(NumbersFields, kw_only=True):
    """The body. Without a task it is the model's own."""

    task: Literal["embed", "classify", "token_embed", "token_classify"] | None = None


class PoolingData(msgspec.Struct):
    """The numbers of one input, of a token task a list for each token; or in base64."""

    index: int
    data: list[float | list[float]] | str
    object: str = "pooling"


class PoolingResponse(msgspec.Struct, kw_only=True):
    """The results in the order of the inputs."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[PoolingData]
    usage: PoolingUsage


class ClassificationRequest(InputFields, kw_only=True):
    """The body."""


class ClassificationData(msgspec.Struct):
    """The classes of one input, and the name of the likeliest."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassificationResponse(msgspec.Struct, kw_only=True):
    """The classes in the order of the inputs."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[ClassificationData]
    usage: PoolingUsage


async def create_pooling(server: ServerState, exchange: Exchange, body: PoolingRequest) -> bytes | Content:
    """What a task gives for each input."""
    return await answer_numbers(server, exchange, body, task=body.task, prefix="pool-", response=_pooling_response)


def _pooling_response(shown: list[Any], **more: Any) -> PoolingResponse:
    return PoolingResponse(data=[PoolingData(i, values) for i, values in enumerate(shown)], **more)


async def create_classification(server: ServerState, exchange: Exchange, body: ClassificationRequest) -> bytes:
    """The probabilities of the model's classes for each input."""
    _, model = server.ready()
    model.check_name(body.model)
    inputs, special = await schema.read_inputs(model, exchange, body)
    params = PoolingParams(use_activation=body.use_activation, task="classify")
    id, created = schema.response_id("classify-", exchange, body), int(time.time())
    vectors, counts = await pool(
        server, exchange, body, inputs, params, add_special_tokens=special, prompt_name=body.prompt_name
    )
    labels = model.intake.pooling.labels if model.intake.pooling is not None else ()
    data = [
        ClassificationData(i, labels[int(probs.argmax())], probs.tolist(), len(probs)) for i, probs in enumerate(vectors)
    ]
    response = ClassificationResponse(id=id, created=created, model=model.names[0], data=data, usage=schema.usage(counts))
    return msgspec.json.encode(response)
