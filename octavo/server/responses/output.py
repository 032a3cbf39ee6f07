"""What a model says, as items of a response and as the events that tell of them: one way for streams and whole answers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from octavo.parsing.parts import CallArguments, CallBegin, Content, Part, Reasoning
from octavo.server.responses.schema import (
    FunctionCallItem,
    Item,
    MessageItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseEvent,
)


class Output:
    """The items of one response, which grow. Every method yields the events of what it does."""

    def __init__(self, *, shows_reasoning: bool = True) -> None:
        self._shows_reasoning = shows_reasoning
        self.items: list[Item] = []
        self._open: Item | None = None
        self._texts: list[str] = []  # of the open item
        self._logprobs: list[Any] = []  # of the open message
        self._waiting: list[Any] = []  # logprobs whose text has not come
        self._number = 0

    def event(self, type: str, **members: Any) -> ResponseEvent:
        """The next event."""
        number, self._number = self._number, self._number + 1
        return ResponseEvent(type=type, sequence_number=number, **members)

    def push(self, parts: Sequence[Part], logprobs: Sequence[Any] = ()) -> Iterator[ResponseEvent]:
        """More has come. `logprobs` go with the first text for the reader among it, if there is any."""
        self._waiting += logprobs
        for part in parts:
            match part:
                case CallBegin(_, id, name):
                    self._waiting = []
                    yield from self._begin(FunctionCallItem(_id("fc"), id, name, "", "in_progress"))
                case CallArguments(_, text) | Content(text) | Reasoning(text) if not text:
                    pass
                case CallArguments(_, text):
                    self._waiting = []
                    yield self._delta("response.function_call_arguments.delta", text)
                case Reasoning() if not self._shows_reasoning:
                    self._waiting = []
                case Reasoning(text):
                    self._waiting = []
                    if not isinstance(self._open, ReasoningItem):
                        yield from self._begin(ReasoningItem(_id("rs"), [], "in_progress"))
                    yield self._delta("response.reasoning_text.delta", text, content_index=0)
                case Content(text):
                    if not isinstance(self._open, MessageItem):
                        yield from self._begin(MessageItem(_id("msg"), [], "in_progress"))
                    news, self._waiting = self._waiting, []
                    self._logprobs += news
                    yield self._delta("response.output_text.delta", text, content_index=0, logprobs=news)

    def finish(self, status: str) -> Iterator[ResponseEvent]:
        """Nothing more comes; the item that is open has this status. An answer without any item has an empty message."""
        if not self.items and self._open is None:
            yield from self._begin(MessageItem(_id("msg"), [], "in_progress"))
        yield from self._close(status)

    def _begin(self, item: Item) -> Iterator[ResponseEvent]:
        yield from self._close("completed")
        self._open = item
        self._texts = []
        yield self.event("response.output_item.added", output_index=len(self.items), item=item)
        if isinstance(item, MessageItem):
            yield self._part("response.content_part.added", OutputText("", logprobs=[]))
        elif isinstance(item, ReasoningItem):
            yield self._part("response.content_part.added", ReasoningText(""))

    def _close(self, status: str) -> Iterator[ResponseEvent]:
        item, text = self._open, "".join(self._texts)
        if item is None:
            return
        item.status = status
        place = {"item_id": item.id, "output_index": len(self.items)}
        match item:
            case MessageItem():
                item.content = [OutputText(text, logprobs=self._logprobs)]
                done = {"content_index": 0, "text": text, "logprobs": self._logprobs}
                yield self.event("response.output_text.done", **place, **done)
                yield self._part("response.content_part.done", item.content[0])
                self._logprobs = []
            case ReasoningItem():
                item.content = [ReasoningText(text)]
                yield self.event("response.reasoning_text.done", **place, content_index=0, text=text)
                yield self._part("response.content_part.done", item.content[0])
            case FunctionCallItem():
                item.arguments = text
                yield self.event("response.function_call_arguments.done", **place, name=item.name, arguments=text)
        yield self.event("response.output_item.done", output_index=len(self.items), item=item)
        self.items.append(item)
        self._open = None

    def _part(self, type: str, part: Any) -> ResponseEvent:
        assert self._open is not None
        return self.event(type, item_id=self._open.id, output_index=len(self.items), content_index=0, part=part)

    def _delta(self, type: str, text: str, **more: Any) -> ResponseEvent:
        assert self._open is not None
        self._texts.append(text)
        return self.event(type, item_id=self._open.id, output_index=len(self.items), delta=text, **more)


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
