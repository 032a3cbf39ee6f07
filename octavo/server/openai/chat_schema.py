"""The bodies of `/v1/chat/completions`."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from octavo.server.openai.conversation import TemplateVariables
from octavo.server.openai.documented import Choice, Messages, OrAll, Positive, Tools
from octavo.server.openai.logprobs import ChatLogprobs, PromptLogprobs
from octavo.server.openai.schema import SYSTEM_FINGERPRINT, GenerationFields, UsageInfo


class ChatCompletionRequest(GenerationFields, kw_only=True):
    """The body. Fields that are not here are accepted and ignored."""

    messages: Messages
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[Any] | None = None
    chat_template: str | None = None
    chat_template_kwargs: TemplateVariables | None = None
    media_io_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    tools: Tools | None = None
    logprobs: bool | None = False
    top_logprobs: OrAll | None = 0
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    n: Positive | None = 1
    tool_choice: Choice = None
    parallel_tool_calls: bool | None = True
    reasoning_effort: Any = None
    include_reasoning: bool = True
    echo: bool = False
    return_prompt_text: bool | None = None


class FunctionCall(msgspec.Struct):
    """What is called; `arguments` is a JSON text."""

    name: str
    arguments: str


class ChatToolCall(msgspec.Struct):
    """One call."""

    id: str
    type: str
    function: FunctionCall


class ChatMessage(msgspec.Struct, kw_only=True):
    """What the model said. `reasoning_content` is `reasoning` under its other name, and there only if there is any."""

    role: str
    content: str | None
    refusal: str | None = None
    annotations: None = None
    audio: None = None
    function_call: None = None
    tool_calls: list[ChatToolCall] | UnsetType = UNSET
    reasoning: str | None = None
    reasoning_content: str | UnsetType = UNSET


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


class FunctionDelta(msgspec.Struct):
    """The name first, then the arguments piece by piece."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct):
    """What is new in the call of this index; its first one has id, type and name."""

    index: int
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    function: FunctionDelta | UnsetType = UNSET


class ChatDelta(msgspec.Struct):
    """What is new in a choice; the first one has the role."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


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
