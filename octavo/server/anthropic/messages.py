"""`/v1/messages` and `/v1/messages/count_tokens`: chat in the words of Anthropic's API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import UNSET

from octavo.errors import OctavoError, ValidationError
from octavo.parsing.parts import CallArguments, CallBegin, Content, Part, Reasoning
from octavo.parsing.pipeline import Piece
from octavo.server.anthropic.conversation import chat_messages, chat_tool_choice, chat_tools
from octavo.server.anthropic.schema import (
    Block,
    CountTokensRequest,
    CountTokensResponse,
    Delta,
    ErrorBody,
    ErrorDetail,
    MessagesEvent,
    MessagesRequest,
    MessagesResponse,
    MessagesUsage,
    OutputFormat,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
)
from octavo.server.errors import Dialect
from octavo.server.exchange import Exchange
from octavo.server.generation import Choice, Generation
from octavo.server.openai.chat import start_chat
from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.openai.conversation import render
from octavo.server.openai.schema import JsonSchemaFormat, ResponseFormat, response_id
from octavo.server.openai.tokenize import check_length, tokenizer_of
from octavo.server.outlet import Write
from octavo.server.sse import Events, named_event
from octavo.server.state import ServerState, offload

_ERROR_TYPES = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
    504: "timeout_error",
}
_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


class ThreadError(ValidationError):
    """Conversations are not kept here. The SDK's helpers then go on with whole histories, as `details` tell them."""

    details: Mapping[str, Any] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}

    def __init__(self) -> None:
        text = "Conversations are not kept by this server: leave `thread` out, and send all messages each time."
        super().__init__(text, parameter="thread")


def _error(error: OctavoError) -> ErrorBody:
    details = dict(error.details) if isinstance(error, ThreadError) else UNSET
    return ErrorBody(ErrorDetail(_ERROR_TYPES.get(error.status, "api_error"), error.message, details))


DIALECT = Dialect(
    lambda error: msgspec.json.encode(_error(error)),
    lambda error: named_event("error", _error(error)),
    end=b"",
    error_type=ErrorBody,
)


async def create_message(server: ServerState, exchange: Exchange, body: MessagesRequest) -> bytes | Events:
    """Answer a conversation, at once or as a stream. Whatever can be refused is refused before this returns."""
    if body.thread is not None:
        raise ThreadError()
    chat = _chat(body)
    if body.output_config is not None:
        chat.reasoning_effort = body.output_config.effort
        chat.response_format = _response_format(body.output_config.format)
    id = response_id("msg_", exchange.header(b"x-request-id"), chat)
    chat.max_tokens = body.max_tokens
    chat.stop = body.stop_sequences
    for name in ("temperature", "top_k", "top_p", "seed", "cache_salt", "priority", "timeout"):
        setattr(chat, name, getattr(body, name))
    generation, model = await start_chat(server, exchange, chat, id)
    answer = _Answer(id, model.names[0], generation)
    return answer.stream if body.stream else await answer.whole()


async def count_tokens(server: ServerState, exchange: Exchange, body: CountTokensRequest) -> bytes:
    """How many tokens the rendered prompt has."""
    _, model = server.ready()
    model.check_name(body.model)
    tokenizer = tokenizer_of(model)
    text = await render(model, exchange, _chat(body))
    check_length(text, model, tokenizer)
    token_ids = await offload(len(text), lambda: tokenizer.encode(text, add_special_tokens=False))
    return msgspec.json.encode(CountTokensResponse(len(token_ids)))


def _chat(body: CountTokensRequest) -> ChatCompletionRequest:
    """The same request in the words of chat completions. A last message of the assistant is gone on with."""
    variables = dict(body.chat_template_kwargs or {})
    if body.thinking is not None:
        variables.setdefault("enable_thinking", body.thinking.type != "disabled")
    continues = bool(body.messages) and body.messages[-1].role == "assistant"
    choice = body.tool_choice
    return ChatCompletionRequest(
        model=body.model,
        messages=chat_messages(body),
        tools=chat_tools(body.tools),
        tool_choice=chat_tool_choice(choice),
        parallel_tool_calls=not (choice is not None and choice.disable_parallel_tool_use),
        thinking_token_budget=body.thinking.budget_tokens if body.thinking is not None else None,
        chat_template_kwargs=variables or None,
        add_generation_prompt=not continues,
        continue_final_message=continues,
    )


def _response_format(format: OutputFormat | None) -> ResponseFormat | None:
    if format is None:
        return None
    return ResponseFormat("json_schema", json_schema=JsonSchemaFormat("output", schema=format.schema))


def stop_reason(reason: str | None, matched: int | str | None, choice: Choice) -> tuple[str, str | None]:
    """Why the answer ended, and the stop sequence if it was one."""
    if isinstance(matched, str):
        return "stop_sequence", matched
    if reason == "stop" and choice.pipeline.has_calls:
        return "tool_use", None
    return _STOP_REASONS.get(reason or "", "end_turn"), None


@dataclass(slots=True)
class _Answer:
    """An answer in the making: `blocks` grow, and each step is an event, whether or not anybody is told."""

    id: str
    model: str
    generation: Generation
    blocks: list[Block] = field(default_factory=list)
    _open: Block | None = None  # the last of them, while it grows
    _texts: list[str] = field(default_factory=list)  # of it

    async def whole(self) -> bytes:
        """The answer in one piece."""
        last = Piece()

        def take(choice: Choice, piece: Piece) -> None:
            nonlocal last
            last = piece
            for _ in self._events(choice, piece):
                pass

        await self.generation.run(take)
        (choice,) = self.generation.choices
        reason, matched = stop_reason(choice.finish_reason, last.stop_reason, choice)
        return msgspec.json.encode(MessagesResponse(self.id, self.model, self.blocks, self._usage(), reason, matched))

    async def stream(self, write: Write) -> None:
        """The answer as events: of the message, of each block in turn, and of the message again."""
        has_begun = False

        def show(choice: Choice, piece: Piece) -> None:
            nonlocal has_begun
            data = b""
            if not has_begun:
                start = MessagesResponse(self.id, self.model, [], self._usage(num_output_tokens=0))
                data = _encoded(MessagesEvent("message_start", message=start))
                has_begun = True
            data += b"".join(map(_encoded, self._events(choice, piece)))
            if data:
                write(data)

        await self.generation.run(show)

    def _events(self, choice: Choice, piece: Piece) -> Iterator[MessagesEvent]:
        for part in piece.parts or [Content(piece.text)]:
            yield from self._part(part)
        if piece.finish_reason is not None:
            if not self.blocks:
                yield from self._begin(TextBlock(""))
            yield from self._close()
            reason, matched = stop_reason(piece.finish_reason, piece.stop_reason, choice)
            yield MessagesEvent("message_delta", delta=Delta(stop_reason=reason, stop_sequence=matched), usage=self._usage())
            yield MessagesEvent("message_stop")

    def _part(self, part: Part) -> Iterator[MessagesEvent]:
        """What is new, in the block that is open or in one that begins with it."""
        match part:
            case CallBegin(_, id, name):
                yield from self._begin(ToolUseBlock(id, name, {}))
            case CallArguments(_, text) | Reasoning(text) | Content(text) if not text:
                pass
            case CallArguments(_, text):
                yield self._delta(text, Delta("input_json_delta", partial_json=text))
            case Reasoning(text):
                if not isinstance(self._open, ThinkingBlock):
                    yield from self._begin(ThinkingBlock(""))
                yield self._delta(text, Delta("thinking_delta", thinking=text))
            case Content(text):
                if not isinstance(self._open, TextBlock):
                    yield from self._begin(TextBlock(""))
                yield self._delta(text, Delta("text_delta", text=text))

    def _begin(self, block: Block) -> Iterator[MessagesEvent]:
        yield from self._close()
        self.blocks.append(block)
        self._open, self._texts = block, []
        yield MessagesEvent("content_block_start", index=len(self.blocks) - 1, content_block=block)

    def _close(self) -> Iterator[MessagesEvent]:
        text = "".join(self._texts)
        match self._open:
            case None:
                return
            case TextBlock() as block:
                block.text = text
            case ThinkingBlock() as block:
                block.thinking = text
            case ToolUseBlock() as block:
                block.input = _input(text)
        self._open = None
        yield MessagesEvent("content_block_stop", index=len(self.blocks) - 1)

    def _delta(self, text: str, delta: Delta) -> MessagesEvent:
        self._texts.append(text)
        return MessagesEvent("content_block_delta", index=len(self.blocks) - 1, delta=delta)

    def _usage(self, num_output_tokens: int | None = None) -> MessagesUsage:
        generation = self.generation
        cached = generation.num_cached_tokens
        made = generation.num_output_tokens if num_output_tokens is None else num_output_tokens
        return MessagesUsage(generation.num_prompt_tokens - cached, made, cache_read_input_tokens=cached)


def _encoded(event: MessagesEvent) -> bytes:
    return named_event(event.type, event)


def _input(arguments: str) -> dict[str, Any]:
    """The arguments as an object; what the model wrote is kept as text where it is none."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except msgspec.DecodeError:
        value = None
    return value if isinstance(value, dict) else {"arguments": arguments}
