"""What an answer is made of: content, reasoning, and tool calls that begin and whose arguments go on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text that the model thinks by."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A tool call begins. `index` counts the answer's calls from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next characters of the call's arguments, which together are a JSON text."""

    index: int
    text: str


Part = Content | Reasoning | CallBegin | CallArguments


@dataclass(slots=True)
class ToolCall:
    """A whole call."""

    id: str
    name: str
    arguments: str = ""


def merged(parts: Sequence[Part]) -> list[Part]:
    """The same, with neighbours that go on with each other as one and empty ones left out."""
    result: list[Part] = []
    for part in parts:
        last = result[-1] if result else None
        if isinstance(part, CallBegin):
            result.append(part)
        elif not part.text:
            continue
        elif isinstance(part, CallArguments):
            if isinstance(last, CallArguments) and last.index == part.index:
                result[-1] = CallArguments(part.index, last.text + part.text)
            else:
                result.append(part)
        elif type(last) is type(part):
            result[-1] = type(part)(last.text + part.text)
        else:
            result.append(part)
    return result


def reasoning_and_calls(parts: Sequence[Part]) -> tuple[str, list[ToolCall]]:
    """All parts of an answer put together, but for its content."""
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    arguments: list[list[str]] = []
    for part in parts:
        if isinstance(part, Reasoning):
            reasoning.append(part.text)
        elif isinstance(part, CallBegin):
            calls.append(ToolCall(part.id, part.name))
            arguments.append([])
        elif isinstance(part, CallArguments):
            arguments[part.index].append(part.text)
    for call, texts in zip(calls, arguments, strict=True):
        call.arguments = "".join(texts)
    return "".join(reasoning), calls
