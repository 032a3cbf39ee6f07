"""Every route, once: the router and the OpenAPI document are both made from this table."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from starlette.types import ASGIApp

from octavo.server import cache, debug, health
from octavo.server.anthropic import messages
from octavo.server.anthropic import schema as messages_schema
from octavo.server.endpoint import BodyEndpoint, BodyHandler, Endpoint, Handler
from octavo.server.errors import OPENAI, Dialect
from octavo.server.openai import chat, chat_schema, completions, models, tokenize
from octavo.server.pooling import embeddings, scoring, tasks
from octavo.server.responses import routes as responses
from octavo.server.responses import schema as responses_schema
from octavo.server.state import ServerState


@dataclass(frozen=True)
class Operation:
    """A path whose handler takes no body. `response` is None where the answer is not JSON of ours."""

    path: str
    handler: Handler
    methods: tuple[str, ...] = ("GET",)
    response: type[msgspec.Struct] | None = None

    def endpoint(self, server: ServerState) -> ASGIApp:
        """The route's application."""
        return Endpoint(self.path, server, self.handler)


@dataclass(frozen=True)
class BodyOperation:
    """A path whose handler takes the JSON of a `request`. `chunk` is the type of a stream's events."""

    path: str
    handler: BodyHandler
    request: type[msgspec.Struct]
    response: type[msgspec.Struct]
    chunk: type[msgspec.Struct] | None = None
    dialect: Dialect = OPENAI
    task: str | None = "generate"  # what the model must be there for; None: anything
    methods = ("POST",)

    def endpoint(self, server: ServerState) -> ASGIApp:
        """The route's application."""
        return BodyEndpoint(self.path, server, self.request, self.handler, self.dialect, self.task)


OPERATIONS: tuple[Operation | BodyOperation, ...] = (
    Operation("/health", health.health),
    Operation("/readyz", health.health),
    Operation("/livez", health.live),
    Operation("/ping", health.health, ("GET", "POST")),
    Operation("/load", health.load, response=health.Load),
    Operation("/version", health.version, response=health.Version),
    Operation("/metrics", health.metrics),
    Operation("/debug/state", debug.debug_state, response=debug.DebugState),
    Operation("/reset_prefix_cache", cache.reset_prefix_cache, ("POST",)),
    Operation("/v1/models", models.list_models, response=models.ModelList),
    Operation("/v1/models/{model:path}", models.get_model, response=models.ModelCard),
    BodyOperation(
        "/v1/chat/completions",
        chat.create_chat_completion,
        chat_schema.ChatCompletionRequest,
        chat_schema.ChatCompletionResponse,
        chat_schema.ChatCompletionChunk,
    ),
    BodyOperation(
        "/v1/completions",
        completions.create_completion,
        completions.CompletionRequest,
        completions.CompletionResponse,
        completions.CompletionChunk,
    ),
    BodyOperation(
        "/v1/responses",
        responses.create_response,
        responses_schema.ResponsesRequest,
        responses_schema.Response,
        responses_schema.ResponseEvent,
        responses.DIALECT,
    ),
    Operation("/v1/responses/{response_id}", responses.get_response, response=responses_schema.Response),
    Operation("/v1/responses/{response_id}/cancel", responses.cancel_response, ("POST",), responses_schema.Response),
    BodyOperation(
        "/v1/messages",
        messages.create_message,
        messages_schema.MessagesRequest,
        messages_schema.MessagesResponse,
        messages_schema.MessagesEvent,
        messages.DIALECT,
    ),
    BodyOperation(
        "/v1/messages/count_tokens",
        messages.count_tokens,
        messages_schema.CountTokensRequest,
        messages_schema.CountTokensResponse,
        dialect=messages.DIALECT,
    ),
    BodyOperation(
        "/v1/embeddings",
        embeddings.create_embedding,
        embeddings.EmbeddingRequest,
        embeddings.EmbeddingResponse,
        task="embed",
    ),
    BodyOperation("/pooling", tasks.create_pooling, tasks.PoolingRequest, tasks.PoolingResponse, task="pooling"),
    BodyOperation(
        "/classify",
        tasks.create_classification,
        tasks.ClassificationRequest,
        tasks.ClassificationResponse,
        task="classify",
    ),
    *(
        BodyOperation(path, scoring.create_score, scoring.ScoreRequest, scoring.ScoreResponse, task="score")
        for path in ("/score", "/v1/score")
    ),
    *(
        BodyOperation(path, scoring.create_rerank, scoring.RerankRequest, scoring.RerankResponse, task="score")
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    ),
    Operation("/tokenizer_info", tokenize.tokenizer_info, response=tokenize.TokenizerInfo),
    BodyOperation("/tokenize", tokenize.tokenize, tokenize.TokenizeRequest, tokenize.TokenizeResponse, task=None),
    BodyOperation("/detokenize", tokenize.detokenize, tokenize.DetokenizeRequest, tokenize.DetokenizeResponse, task=None),
)
