"""`/v1/chat/completions`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo.errors import ValidationError
from octavo.parsing.pipeline import Piece
from octavo.server.exchange import Exchange
from octavo.server.generation import Choice, Generation, Prompt, Transcript
from octavo.server.openai import schema
from octavo.server.openai.conversation import TemplateVariables, render
from octavo.server.openai.logprobs import ChatLogprobs, PromptLogprobs, TokenNames, chat_logprobs, prompt_logprobs
from octavo.server.openai.schema import SYSTEM_FINGERPRINT, GenerationFields, UsageInfo
from octavo.server.sse import event
from octavo.server.state import ServerState, offload


class ChatCompletionRequest(GenerationFields, kw_only=True):
    """The body. Fields that are not here are accepted and ignored."""

    messages: list[Any]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: TemplateVariables | None = None
    media_io_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    tools: list[Any] | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = 1
    tool_choice: Any = None
    parallel_tool_calls: bool | None = True
    reasoning_effort: Any = None
    include_reasoning: bool = True
    echo: bool = False
    return_prompt_text: bool | None = None


class ChatMessage(msgspec.Struct):
    """What the model said."""

    role: str
    content: str | None
    refusal: str | None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    reasoning: str | None = None


class ChatChoice(msgspec.Struct):
    """One of n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    routed_experts: None = None


class ChatCompletionResponse(msgspec.Struct, kw_only=True):
    """The whole answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    service_tier: None = None
    system_fingerprint: str = SYSTEM_FINGERPRINT
    usage: UsageInfo
    prompt_logprobs: PromptLogprobs | None
    prompt_token_ids: list[int] | None
    prompt_text: str | None
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: None = None


class ChatDelta(msgspec.Struct):
    """What is new in a choice; the first one has the role."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatStreamChoice(msgspec.Struct):
    """The part of one choice in an event."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType | None = UNSET


class ChatCompletionChunk(msgspec.Struct):
    """One event. UNSET members are left out, as vLLM leaves out what it did not set."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatStreamChoice]
    usage: UsageInfo | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType | None = UNSET
    prompt_text: str | UnsetType | None = UNSET


async def create_chat_completion(
    server: ServerState, exchange: Exchange, body: ChatCompletionRequest
) -> bytes | AsyncGenerator[bytes, None]:
    """Answer a conversation, at once or as a stream. Whatever can be refused is refused before this returns."""
    client, model = server.ready()
    model.check_name(body.model)
    check_chat(body)
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    params = schema.sampling_params(
        body,
        model.intake.default_sampling,
        n=body.n,
        max_tokens=getattr(body, name),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    visit = server.let_in(exchange, params.n, body.timeout)
    await server.grammars.compile(model.intake, params)
    text = await render(model, exchange, body)
    id = schema.response_id("chatcmpl", exchange.header(b"x-request-id"), body)
    request = await offload(
        len(text),
        lambda: model.intake.request(
            server.engine_id(id),
            text,
            params,
            add_special_tokens=body.add_special_tokens,
            max_tokens_name=name,
            cache_salt=body.cache_salt,
            priority=body.priority,
        ),
    )
    generation = Generation(client, server.metrics, model.intake.tokenizer, [Prompt(request, text)], visit)
    names = TokenNames(model.intake.tokenizer, bool(body.return_tokens_as_token_ids))
    answer = _Answer(id, int(time.time()), model.names[0], body, generation, names, _continued_text(body))
    return answer.stream() if body.stream else answer.whole(await generation.collect())


def check_chat(body: ChatCompletionRequest) -> None:
    """Refuse what means nothing or is not there yet. Without tools a `tool_choice` of none or auto is no choice."""
    if body.tool_choice not in (None, "none", "auto") and not body.tools:
        raise ValidationError("When using `tool_choice`, `tools` must be set.", parameter="tool_choice")
    schema.check_supported(body, {"tools": (None, [])})
    schema.check_stream(body)
    if body.top_logprobs is not None and body.top_logprobs != 0:
        if body.top_logprobs < -1:
            text = "`top_logprobs` must be a positive value or -1."
            raise ValidationError(text, parameter="top_logprobs", value=body.top_logprobs)
        if not body.logprobs:
            raise ValidationError("when using `top_logprobs`, `logprobs` must be set to true.", parameter="top_logprobs")


def _continued_text(body: ChatCompletionRequest) -> str:
    """With `echo`, the assistant's last message, which the answer goes on from."""
    last = body.messages[-1]
    content = last.get("content") if body.echo and last.get("role") == "assistant" else None
    return content if isinstance(content, str) else ""


@dataclass(slots=True)
class _Answer:
    """What the rendering of an answer needs to know of its request."""

    id: str
    created: int
    model: str
    body: ChatCompletionRequest
    generation: Generation
    names: TokenNames
    prefix: str  # the continued message, with echo

    @property
    def prompt(self) -> Prompt:
        return self.generation.prompts[0]

    def whole(self, transcripts: list[Transcript]) -> bytes:
        """The answer in one piece."""
        generation, body = self.generation, self.body
        response = ChatCompletionResponse(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(transcript) for transcript in transcripts],
            usage=schema.full_usage(
                generation.num_prompt_tokens, generation.num_output_tokens, generation.num_cached_tokens
            ),
            prompt_logprobs=prompt_logprobs(self.prompt.logprobs, self.names),
            prompt_token_ids=self.prompt.request.prompt_token_ids if body.return_token_ids else None,
            prompt_text=self.prompt.text if body.return_prompt_text else None,
        )
        return msgspec.json.encode(response)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The answer as events. A choice's first event has its role, and goes out together with its first text."""
        begun = [False] * len(self.generation.choices)
        options = self.body.stream_options or schema.StreamOptions()
        continuous = bool(options.include_usage and options.continuous_usage_stats)
        verbose = bool(self.body.logprobs or self.body.return_token_ids)
        async with aclosing(self.generation.events()) as events:
            async for choice, piece in events:
                data = b""
                if not begun[choice.number]:
                    begun[choice.number] = True
                    data = event(self._first_chunk(choice, continuous))
                if piece.text or piece.finish_reason is not None or (verbose and piece.token_ids):
                    data += event(self._chunk(choice, piece, continuous, not options.include_usage))
                if data:
                    yield data
        if options.include_usage:
            generation = self.generation
            total = schema.usage(generation.num_prompt_tokens, generation.num_output_tokens, generation.num_cached_tokens)
            yield event(self._envelope([], usage=total, system_fingerprint=SYSTEM_FINGERPRINT))

    def _envelope(self, choices: list[ChatStreamChoice], **more: Any) -> ChatCompletionChunk:
        return ChatCompletionChunk(self.id, "chat.completion.chunk", self.created, self.model, choices, **more)

    def _first_chunk(self, choice: Choice, continuous: bool) -> ChatCompletionChunk:
        delta = ChatDelta("assistant", self.prefix)
        chunk = self._envelope([ChatStreamChoice(choice.number, delta)], prompt_token_ids=None, prompt_text=None)
        if self.body.return_token_ids:
            chunk.prompt_token_ids = self.prompt.request.prompt_token_ids
        if self.body.return_prompt_text:
            chunk.prompt_text = self.prompt.text
        if continuous:
            chunk.usage = self._usage(0)
        return chunk

    def _chunk(self, choice: Choice, piece: Piece, continuous: bool, fingerprint: bool) -> ChatCompletionChunk:
        part = ChatStreamChoice(choice.number, ChatDelta(content=piece.text), token_ids=None)
        if self.body.return_token_ids:
            part.token_ids = piece.token_ids
        if piece.logprobs:
            part.logprobs = chat_logprobs(piece.logprobs, self.body.top_logprobs or 0, self.names)
        chunk = self._envelope([part])
        if piece.finish_reason is not None:
            part.finish_reason, part.stop_reason = piece.finish_reason, piece.stop_reason
            if fingerprint:
                chunk.system_fingerprint = SYSTEM_FINGERPRINT
        if continuous:
            chunk.usage = self._usage(choice.num_tokens)
        return chunk

    def _usage(self, num_output_tokens: int) -> UsageInfo:
        usage = schema.usage(self.generation.num_prompt_tokens, num_output_tokens)
        usage.completion_tokens_details = None
        return usage

    def _choice(self, transcript: Transcript) -> ChatChoice:
        logprobs = (
            chat_logprobs(transcript.logprobs, self.body.top_logprobs or 0, self.names) if self.body.logprobs else None
        )
        return ChatChoice(
            index=transcript.choice.number,
            message=ChatMessage("assistant", self.prefix + transcript.text),
            logprobs=logprobs,
            finish_reason=transcript.finish_reason,
            stop_reason=transcript.stop_reason,
            token_ids=transcript.token_ids if self.body.return_token_ids else None,
        )
