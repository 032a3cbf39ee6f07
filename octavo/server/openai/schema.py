"""What chat and completions share: sampling fields, stream options, usage, and the refusal of what is not there yet."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

import octavo
from octavo.engine.truncation import Truncation
from octavo.errors import ValidationError
from octavo.sampling.params import SamplingParams
from octavo.sampling.params import check_beam_search as check_beam
from octavo.sampling.structured import StructuredOutputsParams
from octavo.sampling.validation import MAX_BAD_WORDS, MAX_LOGIT_BIAS_ENTRIES, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS
from octavo.server.exchange import Exchange
from octavo.server.openai.documented import (
    Factor,
    Natural,
    NoItems,
    Nothing,
    Nucleus,
    Off,
    One,
    OrAll,
    Penalty,
    Seconds,
    Share,
    Temperature,
    Zero,
)

MAX_CHOICES = 16_384  # n times prompts of one request
SYSTEM_FINGERPRINT = f"octavo-{octavo.__version__}"

StopStrings = Annotated[list[str], Meta(max_length=MAX_STOP_STRINGS)]
StopTokenIds = Annotated[list[int], Meta(max_length=MAX_STOP_TOKEN_IDS)]
LogitBias = Annotated[
    dict[str, float],
    Meta(max_length=MAX_LOGIT_BIAS_ENTRIES, extra_json_schema={"propertyNames": {"pattern": "^[0-9]+$"}}),
]


class StreamOptions(msgspec.Struct):
    """What a stream tells besides its text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class JsonSchemaFormat(msgspec.Struct):
    """The schema of a `json_schema` response format."""

    name: str
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """What the text must be."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None
    structures: list[Any] | None = None  # of a structural tag in its older form, with `triggers`
    triggers: list[str] | None = None
    format: Any = None  # of a structural tag in its nested form


class GenerationFields(msgspec.Struct, kw_only=True):
    """Fields of every request that generates. None means the model's default (generation_config), else the neutral value."""

    model: str | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    presence_penalty: Penalty | None = None
    seed: int | None = None
    stop: str | StopStrings | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    temperature: Temperature | None = None
    top_p: Nucleus | None = None
    user: str | None = None
    use_beam_search: bool = False
    top_k: OrAll | None = None
    min_p: Share | None = None
    repetition_penalty: Factor | None = None
    watermarking: Off | None = None
    length_penalty: float = 1.0
    stop_token_ids: StopTokenIds | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: Natural = 0
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: OrAll | None = None
    logprob_token_ids: NoItems | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: Annotated[list[str], Meta(max_length=MAX_BAD_WORDS)] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputsParams | None = None
    priority: int = 0
    timeout: Seconds | None = None
    request_id: str | None = None
    session_id: str | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None
    return_weight_versions: Off = False
    return_token_offsets: Off | None = False
    routed_experts_prompt_start: Zero = 0
    thinking_token_budget: int | None = None
    cache_salt: str | None = None
    kv_transfer_params: Nothing = None
    ec_transfer_params: Nothing = None
    vllm_xargs: Nothing = None
    repetition_detection: Nothing = None
    stream_interval: Annotated[One, Meta(ge=1)] | None = None
    best_of: One | None = None
    guided_json: Nothing = None  # vLLM's names before `structured_outputs`
    guided_regex: Nothing = None
    guided_choice: Nothing = None
    guided_grammar: Nothing = None


# Known fields that cannot be honoured yet, with the values at which they ask for nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "watermarking": (None, False),
    "logprob_token_ids": (None, []),
    "best_of": (None, 1),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "return_weight_versions": (False,),
    "return_token_offsets": (None, False),
    "routed_experts_prompt_start": (0,),
    "kv_transfer_params": (None, {}),
    "ec_transfer_params": (None, {}),
    "vllm_xargs": (None, {}),
    "repetition_detection": (None,),
    "stream_interval": (None, 1),
}


# Fields that change which answers are likely, or look inside of them, with the values at which they do neither.
_NOT_WITH_BEAMS: Mapping[str, tuple[Any, ...]] = {
    "stop": (None, []),
    "structured_outputs": (None,),
    "response_format": (None, ResponseFormat("text")),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "thinking_token_budget": (None,),
    "logit_bias": (None, {}),
    "min_tokens": (0,),
    "presence_penalty": (None, 0.0),
    "frequency_penalty": (None, 0.0),
    "repetition_penalty": (None, 1.0),
    "prompt_logprobs": (None,),
    "echo": (None, False),
}

_REMEDIES: Mapping[str, str] = {
    "best_of": "Ask for `n` answers and choose among them, by their logprobs.",
    **{f"guided_{kind}": f'Use `structured_outputs`: {{"{kind}": ...}}.' for kind in ("json", "regex", "choice", "grammar")},
}


class PromptTokensDetails(msgspec.Struct):
    """Of the prompt's tokens, those that the prefix cache had."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct):
    """Of the answer's tokens, those of reasoning."""

    reasoning_tokens: int


class UsageInfo(msgspec.Struct):
    """Token counts. What is UNSET is left out, null is sent: streams send less than whole answers do."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType | None = UNSET


def usage(
    num_prompt_tokens: int,
    num_output_tokens: int,
    num_cached_tokens: int | None = None,
    num_reasoning_tokens: int | None = None,
) -> UsageInfo:
    """The counts. `num_cached_tokens` is None where the prompt has not been computed yet, `num_reasoning_tokens` where
    reasoning is not looked for."""
    cached = UNSET if num_cached_tokens is None else PromptTokensDetails(num_cached_tokens)
    details = UNSET if num_reasoning_tokens is None else CompletionTokensDetails(num_reasoning_tokens)
    return UsageInfo(num_prompt_tokens, num_prompt_tokens + num_output_tokens, num_output_tokens, cached, details)


def full_usage(
    num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int, num_reasoning_tokens: int | None = None
) -> UsageInfo:
    """As a whole answer has it, with what there is not as null."""
    full = usage(num_prompt_tokens, num_output_tokens, num_cached_tokens, num_reasoning_tokens)
    if full.completion_tokens_details is UNSET:
        full.completion_tokens_details = None
    return full


def check_supported(body: GenerationFields, more: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse, by name, what this version cannot do yet; silence would be an answer that was not asked for."""
    for name, neutral in (*UNSUPPORTED.items(), *more.items()):
        if getattr(body, name) not in neutral:
            remedy = _REMEDIES.get(name, "Leave it out.")
            raise ValidationError(f"`{name}` is not supported by this version of the server. {remedy}", parameter=name)


def structured_outputs(body: GenerationFields) -> StructuredOutputsParams | None:
    """What the text must be, by `structured_outputs` or `response_format`. ValidationError where both say it, or the format
    lacks what its type needs."""
    response_format = body.response_format
    if response_format is None or response_format.type == "text":
        return body.structured_outputs
    if body.structured_outputs is not None:
        text = "`response_format` and `structured_outputs` both say what the text must be; give one of them."
        raise ValidationError(text, parameter="response_format")
    try:
        return _formatted(response_format)
    except ValidationError as error:
        raise error.about("response_format") from None


def structure_parameter(body: GenerationFields) -> str:
    """By which parameter the request says what the text must be, if it does."""
    return "response_format" if body.structured_outputs is None else "structured_outputs"


def _formatted(response_format: ResponseFormat) -> StructuredOutputsParams:
    if response_format.type == "json_object":
        return StructuredOutputsParams(json_object=True)
    if response_format.type == "structural_tag":
        tag = {name: getattr(response_format, name) for name in ("structures", "triggers", "format")}
        given = {name: value for name, value in tag.items() if value is not None}
        return StructuredOutputsParams(structural_tag=msgspec.json.encode(given).decode())
    if response_format.json_schema is None:
        text = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        raise ValidationError(text, parameter="response_format")
    if response_format.json_schema.schema is None:
        text = "When response_format type is 'json_schema', 'json_schema.schema' must be provided."
        raise ValidationError(text, parameter="response_format")
    return StructuredOutputsParams(json=response_format.json_schema.schema)


def check_stream(body: GenerationFields) -> None:
    """Refuse what only makes sense with, or without, a stream."""
    if body.stream_options is not None and not body.stream:
        raise ValidationError("Stream options can only be defined when `stream=True`.", parameter="stream_options")
    if body.prompt_logprobs is not None:
        if body.stream:
            raise ValidationError("`prompt_logprobs` are not available when `stream=True`.", parameter="prompt_logprobs")
        if body.prompt_logprobs < -1:
            text = "`prompt_logprobs` must be a positive value or -1."
            raise ValidationError(text, parameter="prompt_logprobs", value=body.prompt_logprobs)


def sampling_params(body: GenerationFields, defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
    """The request's values over the model's defaults over the neutral ones. Raises ValidationError for one out of range."""
    asked = {
        name: getattr(body, name)
        for name in SamplingParams.__struct_fields__
        if name in GenerationFields.__struct_fields__ and getattr(body, name) is not None
    }
    known = {name: value for name, value in defaults.items() if name in SamplingParams.__struct_fields__}
    if body.use_beam_search:  # draws nothing
        asked["temperature"] = 1.0
    return SamplingParams.from_optional(**{**known, **asked, "structured_outputs": structured_outputs(body), **more})


def check_beam_search(body: GenerationFields, width: int | None) -> None:
    """Refuse what a beam search, if one is asked for, cannot heed."""
    if not body.use_beam_search:
        return
    check_beam(width or 1, body.length_penalty)
    for name, neutral in _NOT_WITH_BEAMS.items():
        if getattr(body, name) not in neutral:
            raise ValidationError(f"`{name}` cannot be used with `use_beam_search`.", parameter=name)


def truncation(body: GenerationFields) -> Truncation | None:
    """How a long prompt is cut, if at all."""
    return Truncation.of(body.truncate_prompt_tokens, body.truncation_side)


def tell_truncation(exchange: Exchange, truncations: Iterable[Truncation | None]) -> None:
    """Say in a header of the answer how many tokens of its prompts were dropped, if any."""
    num_dropped = sum(one.num_dropped for one in truncations if one is not None)
    if num_dropped:
        exchange.headers.append((b"x-prompt-tokens-dropped", str(num_dropped).encode()))


def response_id(prefix: str, header: str | None, body: GenerationFields) -> str:
    """The id that the client sees: `X-Request-Id`, else the body's `request_id`, else random."""
    return f"{prefix}{(header or body.request_id or uuid.uuid4().hex[:16])[:256]}"


def one_or_many(value: Any, name: str, things: str, most: int) -> list[str | list[Any]]:
    """A text, token ids, or a list of up to `most` of either, none of them empty; `things` are what error texts call them.
    What token ids may be is the intake's matter."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValidationError(f"`{name}` must be a string, a list of strings, or token ids.", parameter=name)
    kind = type(value[0])
    if kind not in (str, list):
        return [value]
    check_count(len(value), name, things, most)
    for i, one in enumerate(value):
        if type(one) is not kind:
            raise ValidationError(f"{name}[{i}] must be of the same kind as the {things} before it.", parameter=name)
        if not one:
            raise ValidationError(f"{name}[{i}] must not be empty.", parameter=name)
    return value


def check_count(count: int, name: str, things: str, most: int) -> None:
    """ValidationError for more than one request may have."""
    if count > most:
        raise ValidationError(f"`{name}` can hold at most {most} {things}, got {count}.", parameter=name)
