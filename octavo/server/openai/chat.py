"""`/v1/chat/completions`."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

from octavo.engine.beam_search import BeamEngine
from octavo.errors import ValidationError
from octavo.parsing.answer import AnswerParser
from octavo.parsing.pipeline import Piece
from octavo.server.exchange import Exchange
from octavo.server.generation import Choice, Generation, Prompt, Transcript
from octavo.server.openai import schema
from octavo.server.openai.chat_schema import (
    ChatChoice,
    ChatCompletionChunk,
    ChatCompletionRequest,
    ChatCompletionResponse,
    ChatDelta,
    ChatStreamChoice,
)
from octavo.server.openai.conversation import continued_text, render
from octavo.server.openai.deltas import deltas, message
from octavo.server.openai.logprobs import TokenNames, chat_logprobs, prompt_logprobs, token_names
from octavo.server.openai.schema import SYSTEM_FINGERPRINT, UsageInfo
from octavo.server.openai.tools import read_tools
from octavo.server.outlet import Write
from octavo.server.sse import Events, TextEvents, event
from octavo.server.state import Model, ServerState, offload


async def create_chat_completion(server: ServerState, exchange: Exchange, body: ChatCompletionRequest) -> bytes | Events:
    """Answer a conversation, at once or as a stream. Whatever can be refused is refused before this returns."""
    id = schema.response_id("chatcmpl-", exchange.header(b"x-request-id"), body)
    generation, model = await start_chat(server, exchange, body, id)
    names = token_names(server, model, body)
    prefix = continued_text(body) if body.echo else ""
    has_reasoning = model.formats.reasoning is not None
    answer = _Answer(id, int(time.time()), model.names[0], body, generation, names, prefix, has_reasoning)
    return answer.stream if body.stream else answer.whole(await generation.collect())


async def start_chat(
    server: ServerState, exchange: Exchange, body: ChatCompletionRequest, id: str
) -> tuple[Generation, Model]:
    """What answers the conversation, in whichever API's words it is asked, and the model of it. Refuses all that can be
    refused."""
    client, model = server.ready()
    model.check_name(body.model)
    check_chat(body)
    formats, only_one_call = model.formats, body.parallel_tool_calls is False
    looks_for_calls = formats.tools is not None
    tools = read_tools(body.tools, body.tool_choice, looks_for_calls=looks_for_calls, only_one_call=only_one_call)
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    params = schema.sampling_params(
        body,
        model.intake.default_sampling,
        n=body.n,
        max_tokens=getattr(body, name),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    asked = params.structured_outputs
    params.structured_outputs = tools.constrained(asked, formats)
    if body.use_beam_search and params.structured_outputs is not None:
        text = "A `tool_choice` that forces a call, and `strict` functions, cannot be used with `use_beam_search`."
        raise ValidationError(text, parameter="tool_choice")
    visit = server.let_in(exchange, params.n, body.timeout)
    try:
        await server.grammars.compile(
            model.intake, params, schema.structure_parameter(body) if asked is not None else "tools"
        )
    except ValidationError as error:
        raise error if params.structured_outputs is asked else tools.blamed(error) from None
    shows_tools = tools.mode != "none" or not server.config.exclude_tools_when_tool_choice_none
    text = await render(model, exchange, body, shows_tools=shows_tools, reasoning_effort=body.reasoning_effort)
    continued = continued_text(body) if body.continue_final_message else None
    if continued is not None and tools.covers_reasoning(formats):
        message = f"`strict` of a function cannot go with `continue_final_message` in this model's format ({formats.name})."
        raise ValidationError(message, parameter="tools")
    truncation = schema.truncation(body)
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
            truncation=truncation,
            clamp=False,
            grammar_start=("", "") if tools.covers_reasoning(formats) else formats.grammar_start(text, continued),
            reasoning_marks=formats.reasoning_marks(text, continued),
        ),
    )
    schema.tell_truncation(exchange, [truncation])

    def parser() -> AnswerParser | None:
        return formats.answer(text, continued, tools.parser(formats), only_one_call=only_one_call)

    prompt = Prompt(request, text, parser=parser)
    engine = BeamEngine(client, body.length_penalty) if body.use_beam_search else client
    return Generation(engine, server.metrics, model.intake.tokenizer, [prompt], visit), model


def check_chat(body: ChatCompletionRequest) -> None:
    """Refuse what means nothing or is not there yet."""
    schema.check_supported(body, {})
    schema.check_stream(body)
    schema.check_beam_search(body, body.n)
    if body.top_logprobs is not None and body.top_logprobs != 0:
        if body.top_logprobs < -1:
            text = "`top_logprobs` must be a positive value or -1."
            raise ValidationError(text, parameter="top_logprobs", value=body.top_logprobs)
        if not body.logprobs:
            raise ValidationError("when using `top_logprobs`, `logprobs` must be set to true.", parameter="top_logprobs")


def _is_text(piece: Piece) -> bool:
    """Whether the piece is content and nothing else."""
    return bool(piece.text) and len(piece.parts) <= 1


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
    has_reasoning: bool  # it is looked for
    text_events: dict[int, TextEvents] = field(default_factory=dict)  # by choice

    @property
    def prompt(self) -> Prompt:
        return self.generation.prompts[0]

    def whole(self, transcripts: list[Transcript]) -> bytes:
        """The answer in one piece."""
        body = self.body
        response = ChatCompletionResponse(
            id=self.id,
            created=self.created,
            model=self.model,
            choices=[self._choice(transcript) for transcript in transcripts],
            usage=schema.full_usage(*self._counts()),
            prompt_logprobs=prompt_logprobs(self.prompt.logprobs, self.names),
            prompt_token_ids=self.prompt.request.prompt_token_ids if body.return_token_ids else None,
            prompt_text=self.prompt.text if body.return_prompt_text else None,
        )
        return msgspec.json.encode(response)

    async def stream(self, write: Write) -> None:
        """The answer as events. A choice's first event has its role, and goes out together with its first text."""
        begun = [False] * len(self.generation.choices)
        options = self.body.stream_options or schema.StreamOptions()
        continuous = bool(options.include_usage and options.continuous_usage_stats)
        verbose = bool(self.body.logprobs or self.body.return_token_ids)
        has_text_alone = not (continuous or verbose)

        def show(choice: Choice, piece: Piece) -> None:
            if has_text_alone and begun[choice.number] and piece.finish_reason is None and _is_text(piece):
                write(self._text_event(choice, piece.text))
                return
            data = b""
            if not begun[choice.number]:
                begun[choice.number] = True
                data = event(self._first_chunk(choice, continuous))
            for chunk in self._chunks(choice, piece, continuous, verbose):
                data += event(chunk)
            if data:
                write(data)

        await self.generation.run(show)
        if options.include_usage:
            write(event(self._envelope([], usage=schema.usage(*self._counts()), system_fingerprint=SYSTEM_FINGERPRINT)))

    def _text_event(self, choice: Choice, text: str) -> bytes:
        if choice.number not in self.text_events:

            def chunk(text: str) -> ChatCompletionChunk:
                return self._envelope([ChatStreamChoice(choice.number, ChatDelta(content=text), token_ids=None)])

            self.text_events[choice.number] = TextEvents(chunk)
        return self.text_events[choice.number](text)

    def _counts(self) -> tuple[int, int, int, int | None]:
        """Of prompt, answer, cached and reasoning tokens."""
        generation = self.generation
        num_reasoning_tokens = generation.num_reasoning_tokens if self.has_reasoning else None
        return (
            generation.num_prompt_tokens,
            generation.num_output_tokens,
            generation.num_cached_tokens,
            num_reasoning_tokens,
        )

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

    def _chunks(self, choice: Choice, piece: Piece, continuous: bool, verbose: bool) -> list[ChatCompletionChunk]:
        """The piece's events. The first has its ids and logprobs (which some answers show without any text), the last one
        its end."""
        new = deltas(piece, choice, include_reasoning=self.body.include_reasoning)
        if not new and verbose and piece.token_ids:
            new = [ChatDelta(content="")]
        parts = [ChatStreamChoice(choice.number, delta, token_ids=None) for delta in new]
        chunks = [self._envelope([part]) for part in parts]
        if parts:
            self._describe(parts[0], piece)
        if piece.finish_reason is not None:
            parts[-1].finish_reason = self._finish_reason(piece.finish_reason, choice)
            parts[-1].stop_reason = piece.stop_reason
            if not (self.body.stream_options and self.body.stream_options.include_usage):
                chunks[-1].system_fingerprint = SYSTEM_FINGERPRINT
        for chunk in chunks if continuous else ():
            chunk.usage = self._usage(choice.num_tokens)
        return chunks

    def _describe(self, part: ChatStreamChoice, piece: Piece) -> None:
        if self.body.return_token_ids:
            part.token_ids = piece.token_ids
        if piece.logprobs:
            part.logprobs = chat_logprobs(piece.logprobs, self.body.top_logprobs or 0, self.names)

    def _finish_reason(self, reason: str | None, choice: Choice) -> str | None:
        """`tool_calls` for an end behind complete calls that the model chose to make, not the client."""
        has_chosen = choice.pipeline.has_calls and not isinstance(self.body.tool_choice, dict)
        return "tool_calls" if reason == "stop" and has_chosen else reason

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
            message=message(transcript, self.prefix, include_reasoning=self.body.include_reasoning),
            logprobs=logprobs,
            finish_reason=self._finish_reason(transcript.finish_reason, transcript.choice),
            stop_reason=transcript.stop_reason,
            token_ids=transcript.token_ids if self.body.return_token_ids else None,
        )
