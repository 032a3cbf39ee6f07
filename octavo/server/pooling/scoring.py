"""`/score` and `/rerank`: how relevant texts are to each other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.engine.scoring import ScoringJob, TokenLimits, read_texts
from octavo.errors import ValidationError
from octavo.pooling.params import PoolingParams
from octavo.server.exchange import Exchange
from octavo.server.issues import Issue, SchemaError
from octavo.server.openai.conversation import TemplateVariables
from octavo.server.openai.schema import MAX_CHOICES, check_count
from octavo.server.pooling import schema
from octavo.server.pooling.results import pool
from octavo.server.pooling.schema import PoolingFields, PoolingUsage
from octavo.server.state import Model, ServerState, offload

MOST_REPEATED = 1 << 26  # characters of a query, counted with each document
_NAMES = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


class ScoringFields(PoolingFields, kw_only=True):
    """Fields that both routes have."""

    max_tokens_per_query: int = 0
    max_tokens_per_doc: int = 0
    instruction: str | None = None
    chat_template_kwargs: TemplateVariables | None = None


class ScoreRequest(ScoringFields, kw_only=True):
    """The body: queries with documents or items, data_1 with data_2, or text_1 with text_2; of each one text or a list."""

    queries: Any = None
    documents: Any = None
    items: Any = None
    data_1: Any = None
    data_2: Any = None
    text_1: Any = None
    text_2: Any = None


class ScoreData(msgspec.Struct):
    """The score of one pair."""

    index: int
    score: float
    object: str = "score"


class ScoreResponse(msgspec.Struct, kw_only=True):
    """The scores in the order of the pairs."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[ScoreData]
    usage: PoolingUsage


class RerankRequest(ScoringFields, kw_only=True):
    """The body. `top_n` 0: all documents."""

    query: Any
    documents: Any
    top_n: int = 0


class RerankDocument(msgspec.Struct):
    """As it was sent."""

    text: str | None
    multi_modal: None = None


class RerankResult(msgspec.Struct):
    """A document and its relevance to the query."""

    index: int
    document: RerankDocument
    relevance_score: float


class RerankUsage(msgspec.Struct):
    """Token counts."""

    prompt_tokens: int
    total_tokens: int


class RerankResponse(msgspec.Struct, kw_only=True):
    """The most relevant documents first."""

    id: str
    model: str
    usage: RerankUsage
    results: list[RerankResult]


async def create_score(server: ServerState, exchange: Exchange, body: ScoreRequest) -> bytes:
    """The score of each pair: one text with each of many, or the texts of two lists one by one."""
    _, model = server.ready()
    model.check_name(body.model)
    first, second = _texts(model, body)
    id, created = schema.response_id("score-", exchange, body), int(time.time())
    scores, counts = await _score(server, exchange, body, first, second)
    data = [ScoreData(i, score) for i, score in enumerate(scores)]
    response = ScoreResponse(id=id, created=created, model=model.names[0], data=data, usage=schema.usage(counts))
    return msgspec.json.encode(response)


async def create_rerank(server: ServerState, exchange: Exchange, body: RerankRequest) -> bytes:
    """The documents by their relevance to the query."""
    _, model = server.ready()
    model.check_name(body.model)
    (query,) = read_texts([body.query], "query", model.intake.model_config.architecture)
    documents = read_texts(body.documents, "documents", model.intake.model_config.architecture)
    scores, counts = await _score(server, exchange, body, [query], documents)
    results = [
        RerankResult(i, RerankDocument(document), score)
        for i, (document, score) in enumerate(zip(documents, scores, strict=True))
    ]
    results.sort(key=lambda result: -result.relevance_score)
    response = RerankResponse(
        id=schema.response_id("rerank-", exchange, body),
        model=model.names[0],
        usage=RerankUsage(sum(counts), sum(counts)),
        results=results[: body.top_n] if body.top_n > 0 else results,
    )
    return msgspec.json.encode(response)


async def _score(
    server: ServerState, exchange: Exchange, body: ScoringFields, first: Sequence[str], second: Sequence[str]
) -> tuple[list[float], list[int]]:
    """Scores of the pairs, and how many tokens each had."""
    _, model = server.ready()
    schema.check_supported(body)
    check_count(len(second), "documents", "inputs", MAX_CHOICES)
    if model.intake.pooling is not None and model.intake.pooling.is_classifier:
        _check_repetition(first, second)
    limits = TokenLimits.of(body.max_tokens_per_query, body.max_tokens_per_doc, model.intake.max_model_len)
    variables = {**(body.chat_template_kwargs or {})}
    if body.instruction is not None:
        variables["instruction"] = body.instruction
    template = model.intake.score_template
    job = await offload(
        exchange.num_body_bytes, lambda: ScoringJob.of(model.intake, first, second, limits, template, variables)
    )
    params = PoolingParams(use_activation=body.use_activation if job.is_cross_encoder else None, task=job.task)
    vectors, counts = await pool(server, exchange, body, job.inputs, params)
    return job.scores(vectors), job.counts(counts)


def _check_repetition(first: Sequence[str], second: Sequence[str]) -> None:
    """Of a model that reads pairs, one text once more with each of the others: a body of moderate size could ask for hours
    of work."""
    count = len(first[0]) * len(second) if len(first) == 1 else 0
    if count > MOST_REPEATED:
        raise ValidationError(
            f"A text of {len(first[0])} characters cannot be scored with {len(second)} others in one request: both numbers "
            f"multiplied can be at most {MOST_REPEATED}. Send fewer at a time.",
            parameter="documents",
        )


def _texts(model: Model, body: ScoreRequest) -> tuple[list[str], list[str]]:
    for names in _NAMES:
        if all(getattr(body, name) is not None for name in names):
            first, second = (read_texts(getattr(body, name), name, model.intake.model_config.architecture) for name in names)
            return first, second
    raise SchemaError([Issue("missing", f"body.{name}", "Field required", None) for name in _NAMES[0]])
