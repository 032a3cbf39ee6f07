"""`/v1/responses`: create (at once, as a stream, or in the background), get and cancel."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.errors import NotFoundError, OctavoError, ValidationError
from octavo.parsing.parts import Content
from octavo.parsing.pipeline import Piece
from octavo.server.deadline import HEADER
from octavo.server.errors import Dialect, InternalError, error_body
from octavo.server.exchange import Exchange
from octavo.server.generation import Choice, Generation
from octavo.server.openai.chat import start_chat
from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.openai.logprobs import TokenNames, chat_logprobs
from octavo.server.openai.schema import JsonSchemaFormat, ResponseFormat, response_id
from octavo.server.outlet import Write
from octavo.server.responses.conversation import answer_messages, chat_messages, chat_tool_choice, chat_tools
from octavo.server.responses.output import Output
from octavo.server.responses.schema import (
    IncompleteDetails,
    InputTokensDetails,
    OutputTokensDetails,
    Response,
    ResponseError,
    ResponseEvent,
    ResponsesRequest,
    ResponseUsage,
    TextConfig,
    TextFormat,
)
from octavo.server.responses.store import ResponseStore, Stored
from octavo.server.sse import Events, named_event
from octavo.server.state import ServerState

logger = logging.getLogger(__name__)
_OTHER_MEANING = ("tools", "tool_choice", "top_logprobs", "stream")
_SAME_NAMES = [
    name
    for name in ResponsesRequest.__struct_fields__
    if name in ChatCompletionRequest.__struct_fields__ and name not in _OTHER_MEANING
]


class UnknownResponseError(NotFoundError):
    """No response of that id is kept (any more)."""

    kind = "invalid_request_error"


def _error_event(error: OctavoError) -> bytes:
    told = {"type": "error", "code": error.kind, "message": error.message, "param": error.parameter}
    return named_event("error", told)


DIALECT = Dialect(error_body, _error_event, end=b"")


async def create_response(server: ServerState, exchange: Exchange, body: ResponsesRequest) -> bytes | Events:
    """Answer a conversation, at once, as a stream or in the background. Whatever can be refused is refused before this
    returns."""
    _check(body)
    if body.background and (body.timeout is not None or exchange.header(HEADER) is not None):
        text = "`timeout` and X-Request-Timeout cannot be given together with `background`."
        raise ValidationError(text, parameter="background")
    messages, nbytes = _conversation(server, body)
    chat = _chat(body, messages)
    engine_id = response_id("resp_", exchange.header(b"x-request-id"), chat)
    generation, model = await start_chat(server, exchange, chat, engine_id)
    names = TokenNames(model.intake.tokenizer, False)
    output = Output(shows_reasoning=body.include_reasoning)
    answer = _Answer(body, generation, names, _response(body, model.names[0], generation), output)
    if body.store:
        answer.store = server.responses
        answer.stored = Stored(answer.response, messages, nbytes + exchange.num_body_bytes)
        server.responses.put(answer.stored)
    if body.background:
        answer.run_behind(server, exchange.detached())
        return msgspec.json.encode(answer.response)
    if body.stream:
        return answer.stream
    await answer.run(_nobody)
    return msgspec.json.encode(answer.response)


async def get_response(server: ServerState, exchange: Exchange) -> None:
    """A response as it is now."""
    await exchange.respond(msgspec.json.encode(_stored(server, exchange).response))


async def cancel_response(server: ServerState, exchange: Exchange) -> None:
    """End a response that is made in the background; one that has ended stays as it is."""
    stored = _stored(server, exchange)
    if not stored.response.background:
        raise ValidationError("Cannot cancel a synchronous response.", parameter="response_id")
    if stored.task is not None:
        stored.task.cancel()
        await asyncio.wait([stored.task])
    await exchange.respond(msgspec.json.encode(stored.response))


def _stored(server: ServerState, exchange: Exchange) -> Stored:
    return _find(server, exchange.path_parameters["response_id"], "response_id")


def _find(server: ServerState, id: str, parameter: str) -> Stored:
    stored = server.responses.get(id)
    if stored is None:
        raise UnknownResponseError(f"Response with id '{id[:256]}' not found.", parameter=parameter)
    return stored


def _check(body: ResponsesRequest) -> None:
    if body.background and not body.store:
        raise ValidationError("background can only be used when `store` is true.", parameter="background")
    if body.background and body.stream:
        raise ValidationError("`stream` cannot be given together with `background`.", parameter="stream")
    for name in ("prompt", "max_tool_calls"):
        if getattr(body, name) is not None:
            raise ValidationError(f"`{name}` is not supported by this version of the server. Leave it out.", parameter=name)
    if body.truncation == "auto":
        text = "`truncation` must be 'disabled': input that is too long is refused and not cut."
        raise ValidationError(text, parameter="truncation")


def _conversation(server: ServerState, body: ResponsesRequest) -> tuple[list[dict[str, Any]], int]:
    """All messages but the instructions, and the bytes of the earlier bodies among them."""
    messages = chat_messages(body.input)
    if body.previous_response_id is None:
        return messages, 0
    before = _find(server, body.previous_response_id, "previous_response_id")
    if before.response.status not in ("completed", "incomplete"):
        text = f"The response '{before.response.id}' is {before.response.status}; only an answered one can be gone on from."
        raise ValidationError(text, parameter="previous_response_id")
    return [*before.messages, *answer_messages(before.response.output), *messages], before.nbytes


def _chat(body: ResponsesRequest, messages: list[dict[str, Any]]) -> ChatCompletionRequest:
    """The same request in the words of chat completions."""
    if body.instructions is not None:
        messages = [{"role": "system", "content": body.instructions}, *messages]
    form = body.text.format if body.text is not None else None
    return ChatCompletionRequest(
        messages=messages,
        tools=chat_tools(body.tools),
        tool_choice=chat_tool_choice(body.tool_choice) if body.tools else None,
        max_completion_tokens=body.max_output_tokens,
        logprobs=_wants_logprobs(body),
        top_logprobs=body.top_logprobs if _wants_logprobs(body) else 0,
        response_format=None if form is None else _response_format(form),
        reasoning_effort=body.reasoning.effort if body.reasoning is not None else None,
        **{name: getattr(body, name) for name in _SAME_NAMES},
    )


def _response_format(form: TextFormat) -> ResponseFormat:
    """The format in the words of chat completions, which have a level more."""
    given = msgspec.to_builtins(form)
    del given["type"]
    schema = msgspec.convert({**given, "name": form.name or "answer"}, JsonSchemaFormat)
    return ResponseFormat(form.type, schema if form.type == "json_schema" else None)


def _wants_logprobs(body: ResponsesRequest) -> bool:
    return bool(body.top_logprobs) or "message.output_text.logprobs" in (body.include or ())


def _response(body: ResponsesRequest, model: str, generation: Generation) -> Response:
    params = generation.prompts[0].request.params
    return Response(
        id=f"resp_{uuid.uuid4().hex}",  # not of the client's choice: whoever knows it may read the response
        created_at=int(time.time()),
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata,
        model=model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        reasoning=body.reasoning,
        service_tier=body.service_tier or "auto",
        temperature=params.temperature,
        text=body.text or TextConfig(),
        tool_choice=body.tool_choice,
        tools=body.tools,
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        truncation="disabled",
        user=body.user,
    )


@dataclass(slots=True)
class _Answer:
    """A response in the making."""

    body: ResponsesRequest
    generation: Generation
    names: TokenNames
    response: Response
    output: Output
    store: ResponseStore | None = None
    stored: Stored | None = None

    def run_behind(self, server: ServerState, exchange: Exchange) -> None:
        """Make it in a task of its own, which the server knows until it has ended."""
        task = asyncio.create_task(self._run(server, exchange))
        server.running[task] = exchange
        assert self.stored is not None
        self.stored.task = task

    async def _run(self, server: ServerState, exchange: Exchange) -> None:
        assert self.stored is not None
        try:
            self.response.status = "in_progress"
            await self.run(_nobody)
        except OctavoError:
            pass  # the response tells of it
        except Exception:  # a fault of ours, of which the response says so much
            logger.exception("a response in the background ended by a fault")
        finally:
            exchange.on_end.close()
            self.stored.task = None
            task = asyncio.current_task()
            assert task is not None
            del server.running[task]

    async def stream(self, write: Write) -> None:
        """The events as bytes, those that come together as one."""
        has_begun = False

        def show(batch: Sequence[ResponseEvent]) -> None:
            nonlocal has_begun
            has_begun = True
            write(_encoded(batch))

        try:
            await self.run(show)
        except OctavoError:
            if not has_begun:
                raise
            write(_encoded([self.output.event("response.failed", response=self.response)]))

    async def run(self, show: Callable[[Sequence[ResponseEvent]], None]) -> None:
        """Show what happens, while `response` grows; when this ends it has its final status."""
        response, output = self.response, self.output
        response.output = output.items
        batch = [output.event(f"response.{name}", response=response) for name in ("created", "in_progress")]

        def take(choice: Choice, piece: Piece) -> None:
            batch.extend(output.push(piece.parts or [Content(piece.text)], self._logprobs(piece)))
            if piece.finish_reason is not None:
                batch.extend(self._finish(choice, piece))
            if batch:
                show(batch)
                batch.clear()

        try:
            await self.generation.run(take)
        except OctavoError as error:
            self._fail(error)
            raise
        except Exception:
            self._fail(InternalError())
            raise
        finally:
            if response.status == "in_progress":
                response.status = "cancelled"
            if self.store is not None and self.stored is not None:
                self.store.grow(self.stored, len(msgspec.json.encode(output.items)))

    def _fail(self, error: OctavoError) -> None:
        self.response.status, self.response.error = "failed", ResponseError("server_error", error.message)

    def _finish(self, choice: Choice, piece: Piece) -> list[ResponseEvent]:
        response, output = self.response, self.output
        is_whole = piece.finish_reason != "length"
        events = list(output.finish("completed" if is_whole else "incomplete"))
        response.status = "completed" if is_whole else "incomplete"
        if not is_whole:
            response.incomplete_details = IncompleteDetails("max_output_tokens")
        response.usage = self._usage()
        return [*events, output.event(f"response.{response.status}", response=response)]

    def _logprobs(self, piece: Piece) -> list[Any]:
        if not piece.logprobs or not _wants_logprobs(self.body):
            return []
        return list(chat_logprobs(piece.logprobs, self.body.top_logprobs or 0, self.names).content)

    def _usage(self) -> ResponseUsage:
        generation = self.generation
        read, made = generation.num_prompt_tokens, generation.num_output_tokens
        cached = InputTokensDetails(generation.num_cached_tokens)
        return ResponseUsage(read, cached, made, OutputTokensDetails(generation.num_reasoning_tokens), read + made)


def _nobody(events: Sequence[ResponseEvent]) -> None:
    """Whom to show events that nobody wants."""


def _encoded(events: Sequence[ResponseEvent]) -> bytes:
    return b"".join(named_event(event.type, event) for event in events)
