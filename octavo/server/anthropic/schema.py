"""The wire of Anthropic's Messages API (docs.anthropic.com/en/api/messages), as far as a text model can speak it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from octavo.server.openai.conversation import TemplateVariables
from octavo.server.openai.documented import Blocks, Nucleus, OrAll, Positive, Seconds, Temperature
from octavo.server.openai.schema import StopStrings


class Message(msgspec.Struct):
    """A turn: text, or blocks of text, images, thinking, tool uses (of the assistant) and their results (of the user)."""

    role: Literal["user", "assistant"]
    content: str | Blocks


class Tool(msgspec.Struct):
    """A tool that the client runs."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    type: str | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct):
    """Which tools may, or must, be used. `name` goes with type tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(msgspec.Struct):
    """Whether the model may think first, and for how many tokens."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None


class OutputFormat(msgspec.Struct):
    """What the text must be."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(msgspec.Struct):
    """How to answer. `effort` is for templates that look at it."""

    effort: str | None = None
    format: OutputFormat | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """What a prompt is made of. Fields that are not here are accepted and ignored."""

    model: str
    messages: list[Message]
    system: str | list[dict[str, Any]] | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    chat_template_kwargs: TemplateVariables | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """A prompt and how to answer it."""

    max_tokens: Positive
    metadata: dict[str, Any] | None = None
    stop_sequences: StopStrings | None = None
    stream: bool | None = False
    temperature: Temperature | None = None
    top_k: OrAll | None = None
    top_p: Nucleus | None = None
    output_config: OutputConfig | None = None
    thread: Any = None  # a conversation kept by the server: there is none here
    cache_salt: str | None = None
    seed: int | None = None
    priority: int = 0
    timeout: Seconds | None = None


class CountTokensResponse(msgspec.Struct):
    """Tokens of the rendered prompt."""

    input_tokens: int


class MessagesUsage(msgspec.Struct):
    """Tokens. `input_tokens` are those that had to be computed; those that the prefix cache had are counted apart."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text for the reader."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thought. Nothing is signed here."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call that the client is to make."""

    id: str
    name: str
    input: dict[str, Any]


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessagesResponse(msgspec.Struct):
    """The whole answer. `stop_reason` is end_turn, max_tokens, stop_sequence or tool_use; null while a stream runs."""

    id: str
    model: str
    content: list[Block]
    usage: MessagesUsage
    stop_reason: str | None = None
    stop_sequence: str | None = None
    role: str = "assistant"
    type: str = "message"


class Delta(msgspec.Struct):
    """What is new: in a block one of the first three, of the message the others."""

    type: str | UnsetType = UNSET
    text: str | UnsetType = UNSET
    thinking: str | UnsetType = UNSET
    partial_json: str | UnsetType = UNSET
    stop_reason: str | UnsetType | None = UNSET
    stop_sequence: str | UnsetType | None = UNSET


class MessagesEvent(msgspec.Struct):
    """One event of a stream; which members there are goes with the type."""

    type: str
    message: MessagesResponse | UnsetType = UNSET
    index: int | UnsetType = UNSET
    content_block: Block | UnsetType = UNSET
    delta: Delta | UnsetType = UNSET
    usage: MessagesUsage | UnsetType = UNSET


class ErrorDetail(msgspec.Struct):
    """Kind and text, and for some what clients act on."""

    type: str
    message: str
    details: dict[str, Any] | UnsetType = UNSET


class ErrorBody(msgspec.Struct):
    """The envelope of an error."""

    error: ErrorDetail
    type: str = "error"
