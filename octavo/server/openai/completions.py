"""`/v1/completions`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo.engine.beam_search import BeamEngine
from octavo.engine.request import TokenLogprobs
from octavo.engine.truncation import Truncation
from octavo.errors import ValidationError
from octavo.parsing.pipeline import Piece
from octavo.sampling.params import SamplingParams
from octavo.server.exchange import Exchange
from octavo.server.generation import Choice, Generation, Prompt, Transcript
from octavo.server.openai import schema
from octavo.server.openai.documented import Natural, Nothing, Positive, Prompts
from octavo.server.openai.logprobs import (
    CompletionLogprobs,
    PromptLogprobs,
    TokenNames,
    completion_logprobs,
    prompt_logprobs,
    token_names,
)
from octavo.server.openai.schema import SYSTEM_FINGERPRINT, GenerationFields, UsageInfo
from octavo.server.outlet import Write
from octavo.server.sse import Events, TextEvents, event
from octavo.server.state import Model, ServerState, offload

MAX_PROMPTS = 2048
DEFAULT_MAX_TOKENS = 16


class CompletionRequest(GenerationFields, kw_only=True):
    """The body. Fields that are not here are accepted and ignored."""

    prompt: Prompts = None
    echo: bool | None = False
    logprobs: Natural | None = None
    max_tokens: Natural | None = DEFAULT_MAX_TOKENS  # 0 with echo
    n: Positive = 1
    suffix: str | None = None
    add_special_tokens: bool = True
    prompt_embeds: Nothing = None


class CompletionChoice(msgspec.Struct):
    """One of n answers to one of the prompts."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | None
    prompt_logprobs: PromptLogprobs | None
    prompt_token_ids: list[int] | None
    routed_experts: None = None


class CompletionResponse(msgspec.Struct, kw_only=True):
    """The whole answer."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    service_tier: None = None
    system_fingerprint: str = SYSTEM_FINGERPRINT
    usage: UsageInfo
    kv_transfer_params: None = None
    ec_transfer_params: None = None
    metrics: None = None


class CompletionStreamChoice(msgspec.Struct):
    """The part of one choice in an event."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_token_ids: list[int] | None
    token_ids: list[int] | None


class CompletionChunk(msgspec.Struct):
    """One event. UNSET members are left out."""

    id: str
    object: str
    created: int
    model: str
    choices: list[CompletionStreamChoice]
    usage: UsageInfo | UnsetType = UNSET
    system_fingerprint: str | UnsetType = UNSET


async def create_completion(server: ServerState, exchange: Exchange, body: CompletionRequest) -> bytes | Events:
    """Continue one prompt or many, at once or as a stream. Whatever can be refused is refused before this returns."""
    client, model = server.ready()
    model.check_name(body.model)
    prompts = parse_prompts(body.prompt)
    params = _check(body, model, len(prompts))
    visit = server.let_in(exchange, params.n * len(prompts), body.timeout)
    await server.grammars.compile(model.intake, params, schema.structure_parameter(body))
    id = schema.response_id("cmpl-", exchange.header(b"x-request-id"), body)

    truncations = [schema.truncation(body) for _ in prompts]

    def work() -> list[Prompt]:
        result = []
        for i, prompt in enumerate(prompts):
            try:
                result.append(_prepare(model, server.engine_id(id), prompt, params, body, truncations[i]))
            except ValidationError as error:
                if len(prompts) > 1:
                    error.message = f"Prompt {i} of the list: {error.message}"
                raise
        return result

    prepared = await offload(sum(len(prompt) for prompt in prompts), work)
    schema.tell_truncation(exchange, truncations)
    engine = BeamEngine(client, body.length_penalty) if body.use_beam_search else client
    generation = Generation(engine, server.metrics, model.intake.tokenizer, prepared, visit)
    names = token_names(server, model, body)
    answer = _Answer(id, int(time.time()), model, body, generation, names)
    return answer.stream if body.stream else answer.whole(await generation.collect())


def parse_prompts(value: Any) -> list[str | list[Any]]:
    """The prompts of a body."""
    if value is None or value == "" or value == []:
        raise ValidationError("Either prompt or prompt_embeds must be provided and non-empty.", parameter="prompt")
    return schema.one_or_many(value, "prompt", "prompts", MAX_PROMPTS)


def _check(body: CompletionRequest, model: Model, num_prompts: int) -> SamplingParams:
    """The sampling parameters, after everything that the body alone can get wrong."""
    if body.suffix is not None:
        raise ValidationError("suffix is not currently supported", parameter="suffix")
    schema.check_supported(body, {"prompt_embeds": (None,), "thinking_token_budget": (None,)})
    schema.check_stream(body)
    schema.check_beam_search(body, body.n)
    if body.logprobs is not None and body.logprobs < 0:
        raise ValidationError("`logprobs` must be a positive value.", parameter="logprobs", value=body.logprobs)
    more: dict[str, Any] = {"n": body.n, "max_tokens": body.max_tokens, "logprobs": body.logprobs}
    if _only_echo(body):
        more["max_tokens"] = 1  # the engine cannot make none; what it makes is not shown
    if body.echo and body.prompt_logprobs is None:
        more["prompt_logprobs"] = body.logprobs
    params = schema.sampling_params(body, model.intake.default_sampling, **more)
    if params.n * num_prompts > schema.MAX_CHOICES:
        text = f"`n` times the number of prompts must be at most {schema.MAX_CHOICES}, got {params.n * num_prompts}."
        raise ValidationError(text, parameter="n")
    return params


def _only_echo(body: CompletionRequest) -> bool:
    """Whether nothing is to be generated: the prompt itself is scored."""
    return bool(body.echo) and body.max_tokens == 0


def _prepare(
    model: Model,
    id: str,
    prompt: str | list[Any],
    params: SamplingParams,
    body: CompletionRequest,
    truncation: Truncation | None,
) -> Prompt:
    """The default of `max_tokens` is cut to what fits; another value, which somebody must have meant, is not."""
    request = model.intake.request(
        id,
        prompt,
        params,
        add_special_tokens=body.add_special_tokens,
        cache_salt=body.cache_salt,
        priority=body.priority,
        truncation=truncation,
        clamp=body.max_tokens == DEFAULT_MAX_TOKENS,
    )
    is_cut = truncation is not None and truncation.num_dropped > 0
    return Prompt(request, prompt if isinstance(prompt, str) and not is_cut else None)


@dataclass(slots=True)
class _Part:
    """The text, ids and logprobs of one choice that go out together; with `echo` the prompt's are in front."""

    text: str
    output_token_ids: list[int]
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None]


class _Answer:
    """Renders the answer to one request."""

    def __init__(
        self, id: str, created: int, model: Model, body: CompletionRequest, generation: Generation, names: TokenNames
    ) -> None:
        self._id = id
        self._created = created
        self._model = model
        self._body = body
        self._generation = generation
        self._names = names
        self._offsets = [0] * len(generation.choices)  # characters sent, for text_offset
        self._text_events: dict[int, TextEvents] = {}  # by choice

    def whole(self, transcripts: list[Transcript]) -> bytes:
        """The answer in one piece."""
        response = CompletionResponse(
            id=self._id,
            created=self._created,
            model=self._model.names[0],
            choices=[self._choice(transcript) for transcript in transcripts],
            usage=schema.full_usage(
                self._generation.num_prompt_tokens, self._num_output_tokens(), self._generation.num_cached_tokens
            ),
        )
        return msgspec.json.encode(response)

    async def stream(self, write: Write) -> None:
        """The answer as events."""
        begun = [False] * len(self._generation.choices)
        options = self._body.stream_options or schema.StreamOptions()
        continuous = bool(options.include_usage and options.continuous_usage_stats)
        verbose = self._body.logprobs is not None or bool(self._body.return_token_ids)
        has_text_alone = not (continuous or verbose or self._body.echo)

        def show(choice: Choice, piece: Piece) -> None:
            if has_text_alone and piece.text and piece.finish_reason is None:
                write(self._text_event(choice, piece.text))
                return
            first = not begun[choice.number]
            begun[choice.number] = True
            has_end = piece.finish_reason is not None
            if piece.text or has_end or (verbose and piece.token_ids) or (first and self._body.echo):
                write(event(self._chunk(choice, piece, first, continuous, not options.include_usage)))

        await self._generation.run(show)
        if options.include_usage:
            total = schema.usage(
                self._generation.num_prompt_tokens, self._num_output_tokens(), self._generation.num_cached_tokens
            )
            write(event(self._envelope([], usage=total, system_fingerprint=SYSTEM_FINGERPRINT)))

    def _text_event(self, choice: Choice, text: str) -> bytes:
        if choice.number not in self._text_events:
            self._text_events[choice.number] = TextEvents(
                lambda text: self._chunk(choice, Piece(text), first=False, continuous=False, fingerprint=False)
            )
        return self._text_events[choice.number](text)

    def _num_output_tokens(self) -> int:
        return 0 if _only_echo(self._body) else self._generation.num_output_tokens

    def _envelope(self, choices: list[CompletionStreamChoice], **more: Any) -> CompletionChunk:
        return CompletionChunk(self._id, "text_completion", self._created, self._model.names[0], choices, **more)

    def _chunk(self, choice: Choice, piece: Piece, first: bool, continuous: bool, fingerprint: bool) -> CompletionChunk:
        part = self._part(choice, piece.text, piece.token_ids, piece.logprobs or [], first)
        ids_wanted = self._body.return_token_ids
        prompt_ids = choice.prompt.request.prompt_token_ids if ids_wanted and first else None
        chunk = self._envelope(
            [
                CompletionStreamChoice(
                    choice.number,
                    part.text,
                    self._logprobs(choice, part),
                    piece.finish_reason,
                    piece.stop_reason,
                    prompt_ids,
                    part.output_token_ids if ids_wanted else None,
                )
            ]
        )
        if fingerprint and piece.finish_reason is not None:
            chunk.system_fingerprint = SYSTEM_FINGERPRINT
        if continuous:
            chunk.usage = schema.usage(self._generation.num_prompt_tokens, choice.num_tokens)
        return chunk

    def _choice(self, transcript: Transcript) -> CompletionChoice:
        choice = transcript.choice
        part = self._part(choice, transcript.text, transcript.token_ids, transcript.logprobs, True)
        return CompletionChoice(
            index=choice.number,
            text=part.text,
            logprobs=self._logprobs(choice, part),
            finish_reason=transcript.finish_reason,
            stop_reason=transcript.stop_reason,
            token_ids=part.output_token_ids if self._body.return_token_ids else None,
            prompt_logprobs=prompt_logprobs(choice.prompt.logprobs, self._names),
            prompt_token_ids=choice.prompt.request.prompt_token_ids if self._body.return_token_ids else None,
        )

    def _part(self, choice: Choice, text: str, token_ids: list[int], logprobs: list[TokenLogprobs], first: bool) -> _Part:
        """What to show: with `echo` the prompt comes before a choice's first piece, or is all there is."""
        if _only_echo(self._body):
            text, token_ids, logprobs = "", [], []
        if not self._body.echo or not first:
            return _Part(text, token_ids, token_ids, [*logprobs])
        prompt = choice.prompt
        all_ids = [*prompt.request.prompt_token_ids, *token_ids]
        return _Part(self._prompt_text(prompt) + text, token_ids, all_ids, [*(prompt.logprobs or ()), *logprobs])

    def _prompt_text(self, prompt: Prompt) -> str:
        tokenizer = self._model.intake.tokenizer
        if prompt.text is not None or tokenizer is None:
            return prompt.text or ""
        return tokenizer.decode(prompt.request.prompt_token_ids)

    def _logprobs(self, choice: Choice, part: _Part) -> CompletionLogprobs | None:
        if self._body.logprobs is None:
            return None
        start = self._offsets[choice.number]
        result = completion_logprobs(part.logprobs, part.token_ids, start, self._names)
        if result.tokens:
            self._offsets[choice.number] = result.text_offset[-1] + len(result.tokens[-1])
        return result
