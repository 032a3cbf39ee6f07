"""What came of an answer, as the messages and deltas of chat completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from octavo.parsing.parts import CallArguments, CallBegin, Content, Part, Reasoning
from octavo.parsing.pipeline import Piece
from octavo.server.generation import Choice, Transcript
from octavo.server.openai.chat_schema import (
    ChatDelta,
    ChatMessage,
    ChatToolCall,
    FunctionCall,
    FunctionDelta,
    ToolCallDelta,
)


def message(transcript: Transcript, prefix: str, *, include_reasoning: bool) -> ChatMessage:
    """The whole message. Content that is empty is null beside reasoning or calls. `prefix` stands before the content."""
    content = prefix + transcript.text
    is_nothing = not content and bool(transcript.reasoning or transcript.calls)
    result = ChatMessage(role="assistant", content=None if is_nothing else content)
    if transcript.calls:
        result.tool_calls = [
            ChatToolCall(call.id, "function", FunctionCall(call.name, call.arguments)) for call in transcript.calls
        ]
    if include_reasoning and transcript.reasoning:
        result.reasoning = result.reasoning_content = transcript.reasoning
    return result


def deltas(piece: Piece, choice: Choice, *, include_reasoning: bool) -> list[ChatDelta]:
    """The piece as deltas, each of one kind. The last one of an answer with calls is empty; otherwise it is the last text
    or an empty one."""
    if not piece.parts:
        result = [ChatDelta(content=piece.text)] if piece.text else []
    else:
        result = [_delta(part) for part in _shown(piece.parts, include_reasoning)]
    if piece.finish_reason is not None:
        if choice.pipeline.num_calls:
            result.append(ChatDelta())
        elif not result or result[-1].content is UNSET:
            result.append(ChatDelta(content=""))
    return result


def _shown(parts: Sequence[Part], include_reasoning: bool) -> Sequence[Part]:
    return parts if include_reasoning else [part for part in parts if not isinstance(part, Reasoning)]


def _delta(part: Part) -> ChatDelta:
    match part:
        case Content(text):
            return ChatDelta(content=text)
        case Reasoning(text):
            return ChatDelta(reasoning=text, reasoning_content=text)
        case CallBegin(index, id, name):
            return ChatDelta(tool_calls=[ToolCallDelta(index, id, "function", FunctionDelta(name, ""))])
        case CallArguments(index, text):
            return ChatDelta(tool_calls=[ToolCallDelta(index, function=FunctionDelta(arguments=text))])
