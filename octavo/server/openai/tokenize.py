"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from octavo.errors import NotFoundError, ValidationError
from octavo.server.exchange import Exchange
from octavo.server.openai.conversation import TemplateVariables, render
from octavo.server.openai.documented import Messages, Tools
from octavo.server.state import Model, ServerState, offload
from octavo.text.tokenizer import Tokenizer

# Either would otherwise take hundreds of bytes of memory for each byte of a body, for seconds.
MAX_CHARACTERS = 1 << 20  # more where the context takes more
MAX_TOKENS = 1 << 20


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """A `prompt`, or `messages` to render. Special tokens are added to a prompt, since a template writes its own."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[Messages, Meta(extra_json_schema={"minItems": 0})] = []
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    documents: list[Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: TemplateVariables | None = None
    media_io_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None


class TokenizeResponse(msgspec.Struct):
    """`token_strs` are the vocabulary's own strings."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    """Token ids to turn into text."""

    model: str | None = None
    tokens: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=MAX_TOKENS)]


class DetokenizeResponse(msgspec.Struct):
    """The text, special tokens included."""

    prompt: str


class TokenizerInfo(msgspec.Struct, kw_only=True):
    """What clients need that make prompts themselves, under the names of tokenizer_config.json."""

    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    pad_token: str | None
    chat_template: str | None
    model_max_length: int
    vocab_size: int


def check_length(text: str, model: Model, tokenizer: Tokenizer) -> None:
    """ValidationError for a text that would cost more than any request may."""
    most = max(MAX_CHARACTERS, model.intake.max_model_len * tokenizer.max_chars_per_token)
    if len(text) > most:
        raise ValidationError(f"A text to tokenize can have at most {most} characters, got {len(text)}.", parameter="prompt")


async def tokenize(server: ServerState, exchange: Exchange, body: TokenizeRequest) -> bytes:
    """The ids that a prompt or a conversation has."""
    _, model = server.ready()
    model.check_name(body.model)
    tokenizer = tokenizer_of(model)
    if body.prompt is not None:
        text, special = body.prompt, True
    else:
        text, special = await render(model, exchange, body), False
    special = special if body.add_special_tokens is None else body.add_special_tokens
    check_length(text, model, tokenizer)

    def work() -> bytes:
        ids = tokenizer.encode(text, add_special_tokens=special)
        strings = [tokenizer.token_text(id) for id in ids] if body.return_token_strs else None
        return msgspec.json.encode(TokenizeResponse(len(ids), model.intake.max_model_len, ids, strings))

    return await offload(len(text), work)


async def detokenize(server: ServerState, exchange: Exchange, body: DetokenizeRequest) -> bytes:
    """The text that ids have."""
    _, model = server.ready()
    model.check_name(body.model)
    tokenizer = tokenizer_of(model)
    size = tokenizer.vocab_size
    wrong = next((i for i, token in enumerate(body.tokens) if token >= size), None)
    if wrong is not None:
        text = f"tokens[{wrong}] is {body.tokens[wrong]}, which is outside of the vocabulary of {size} tokens."
        raise ValidationError(text, parameter="tokens")
    generates = model.intake.pooling is None

    def work() -> str:
        return tokenizer.decode(body.tokens, skip_special_tokens=False) if generates else tokenizer.join(body.tokens)

    text = await offload(len(body.tokens), work)
    return msgspec.json.encode(DetokenizeResponse(text))


async def tokenizer_info(server: ServerState, exchange: Exchange) -> None:
    """Special tokens and chat template, where --enable-tokenizer-info-endpoint lets them be seen."""
    _, model = server.ready()
    if not server.config.enable_tokenizer_info_endpoint:
        raise NotFoundError("The server shows its tokenizer only if it is started with --enable-tokenizer-info-endpoint.")
    tokenizer, template = tokenizer_of(model), model.intake.chat_template
    special = tokenizer.special_tokens
    info = TokenizerInfo(
        bos_token=special.get("bos_token"),
        eos_token=special.get("eos_token"),
        unk_token=special.get("unk_token"),
        pad_token=special.get("pad_token"),
        chat_template=None if template is None else template.source,
        model_max_length=model.intake.max_model_len,
        vocab_size=tokenizer.vocab_size,
    )
    await exchange.respond(msgspec.json.encode(info))


def tokenizer_of(model: Model) -> Tokenizer:
    """The model's tokenizer. ValidationError where the server was started without one."""
    if model.intake.tokenizer is None:
        raise ValidationError("The server runs without a tokenizer (--skip-tokenizer-init).")
    return model.intake.tokenizer
