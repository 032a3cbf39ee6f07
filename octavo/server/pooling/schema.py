"""What the routes of pooling models share: fields, inputs, and usage."""

from __future__ import annotations

import functools
import logging
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.engine.truncation import Truncation
from octavo.errors import ValidationError
from octavo.server.exchange import Exchange
from octavo.server.issues import Issue, SchemaError
from octavo.server.openai.conversation import TemplateVariables, render
from octavo.server.openai.documented import Prompts, Seconds
from octavo.server.openai.schema import MAX_CHOICES, one_or_many
from octavo.server.state import Model

logger = logging.getLogger(__name__)


class PoolingFields(msgspec.Struct, kw_only=True):
    """Fields of every pooling request. Those that are not here are accepted and ignored."""

    model: str | None = None
    user: str | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    padding: Literal["max_length", "do_not_pad"] | None = None
    request_id: str | None = None
    priority: int = 0
    timeout: Seconds | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None
    use_activation: bool | None = None


class InputFields(PoolingFields, kw_only=True):
    """Those of requests whose inputs are texts, token ids, or one conversation."""

    input: Prompts = None
    messages: list[Any] | None = None
    prompt_name: str | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: str | None = None
    chat_template_kwargs: TemplateVariables | None = None
    media_io_kwargs: dict[str, Any] | None = None


class PoolingUsage(msgspec.Struct):
    """Token counts: nothing is generated."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: None = None


class _Conversation(msgspec.Struct):
    """What `render` looks at."""

    messages: list[Any]
    add_generation_prompt: bool
    continue_final_message: bool
    chat_template: str | None
    chat_template_kwargs: dict[str, Any] | None
    tools: list[Any] | None = None
    documents: list[Any] | None = None


async def read_inputs(model: Model, exchange: Exchange, body: InputFields) -> tuple[list[str | list[Any]], bool]:
    """The inputs of a body, and whether special tokens are added to them. ValidationError names the one that is none."""
    check_supported(body)
    if body.messages is None:
        inputs = parse_inputs(body.input)
        if isinstance(inputs[0], list):
            _tell_of_token_ids()
        return inputs, True if body.add_special_tokens is None else body.add_special_tokens
    if body.input is not None:
        raise ValidationError("`input` and `messages` both say what is asked; give one of them.", parameter="messages")
    conversation = _Conversation(
        body.messages,
        body.add_generation_prompt,
        body.continue_final_message,
        body.chat_template,
        body.chat_template_kwargs,
    )
    return [await render(model, exchange, conversation)], bool(body.add_special_tokens)


@functools.cache
def _tell_of_token_ids() -> None:
    """Once: nobody can see whose ids they are."""
    logger.warning(
        "embeddings are asked for by token ids, which must be of this model's own tokenizer: LangChain's OpenAIEmbeddings "
        "sends those of OpenAI's, unless it is given check_embedding_ctx_length=False"
    )


def parse_inputs(value: Any) -> list[str | list[Any]]:
    """The inputs of a body."""
    if value is None:
        raise SchemaError([Issue("missing", "body.input", "Field required", None)])
    if value == "" or value == []:
        raise ValidationError("`input` must not be empty.", parameter="input")
    return one_or_many(value, "input", "inputs", MAX_CHOICES)


def check_supported(body: PoolingFields) -> None:
    """Refuse, by name, what cannot be done."""
    if body.padding == "max_length":
        raise ValidationError("`padding` max_length is not supported: nothing is padded here.", parameter="padding")
    if body.mm_processor_kwargs:
        raise ValidationError(
            "`mm_processor_kwargs` is not supported; the model takes text.", parameter="mm_processor_kwargs"
        )


def truncation(body: PoolingFields) -> Truncation | None:
    """How a long input is cut, if at all: on the right, unless the body says left."""
    side = body.truncation_side
    return Truncation.of(body.truncate_prompt_tokens, "right" if side is None and body.truncate_prompt_tokens else side)


def response_id(prefix: str, exchange: Exchange, body: PoolingFields) -> str:
    """The id that the client sees: `X-Request-Id`, else the body's `request_id`, else random."""
    return f"{prefix}{(exchange.header(b'x-request-id') or body.request_id or uuid.uuid4().hex[:16])[:256]}"


def usage(counts: Sequence[int]) -> PoolingUsage:
    """Of prompts of so many tokens."""
    return PoolingUsage(sum(counts), sum(counts))
