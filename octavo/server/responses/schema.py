"""The wire of OpenAI's Responses API (platform.openai.com/docs/api-reference/responses), for text and functions."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from octavo.server.openai.conversation import TemplateVariables
from octavo.server.openai.documented import Factor, Items, Nucleus, OrAll, Penalty, Seconds, Share, Temperature
from octavo.server.openai.schema import LogitBias, StopStrings, StopTokenIds

Metadata = Annotated[dict[str, str], Meta(max_length=16)]


class TextFormat(msgspec.Struct):
    """What the text must be. `schema` and `name` go with json_schema."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    description: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct):
    """How text is to be written."""

    format: TextFormat = msgspec.field(default_factory=TextFormat)
    verbosity: str | None = None


class ReasoningConfig(msgspec.Struct):
    """How hard to think."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """The body. Fields that are not here are accepted and ignored."""

    input: str | Items
    model: str | None = None
    background: bool | None = False
    include: list[str] | None = None
    instructions: str | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: int | None = None
    metadata: Metadata | None = None
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    prompt: Any = None
    reasoning: ReasoningConfig | None = None
    include_reasoning: bool = True
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = "auto"
    store: bool | None = True
    stream: bool | None = False
    text: TextConfig | None = None
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = 0
    truncation: Literal["auto", "disabled"] | None = "disabled"
    user: str | None = None
    temperature: Temperature | None = None
    top_p: Nucleus | None = None
    top_k: OrAll | None = None
    min_p: Share | None = None
    logit_bias: LogitBias | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Factor | None = None
    seed: int | None = None
    stop: str | StopStrings | None = None
    stop_token_ids: StopTokenIds | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool = False
    priority: int = 0
    timeout: Seconds | None = None
    cache_salt: str | None = None
    chat_template_kwargs: TemplateVariables | None = None


class OutputText(msgspec.Struct, tag_field="type", tag="output_text"):
    """Text for the reader."""

    text: str
    annotations: list[Any] = []
    logprobs: list[Any] | None = None


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    """What the model thought."""

    text: str


class MessageItem(msgspec.Struct, tag_field="type", tag="message"):
    """The message."""

    id: str
    content: list[OutputText]
    status: str
    role: str = "assistant"


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    """Thoughts; they have no summary."""

    id: str
    content: list[ReasoningText]
    status: str
    summary: list[Any] = []
    encrypted_content: None = None


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    """A call that the client is to make, and to answer with a `function_call_output` of the same `call_id`."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str


Item = MessageItem | ReasoningItem | FunctionCallItem


class InputTokensDetails(msgspec.Struct):
    """Of the prompt's tokens, those that the prefix cache had."""

    cached_tokens: int


class OutputTokensDetails(msgspec.Struct):
    """Of the answer's tokens, those that were thoughts."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct):
    """Why an answer is not whole."""

    reason: str


class ResponseError(msgspec.Struct):
    """Why an answer failed."""

    code: str
    message: str


class Response(msgspec.Struct, kw_only=True):
    """A response. `status` is queued, in_progress, completed, incomplete, failed or cancelled."""

    id: str
    object: str = "response"
    created_at: int
    status: str
    background: bool
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str] | None
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt: None = None
    reasoning: ReasoningConfig | None
    service_tier: str
    temperature: float
    text: TextConfig
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None


class ResponseEvent(msgspec.Struct, kw_only=True):
    """One event of a stream; which members there are goes with the type."""

    type: str
    sequence_number: int
    response: Response | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    item: Item | UnsetType = UNSET
    part: OutputText | ReasoningText | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    logprobs: list[Any] | UnsetType = UNSET
    code: str | UnsetType = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET
