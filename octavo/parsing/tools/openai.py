"""gpt-oss: calls are messages to a function, `<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}`."""

from __future__ import annotations

import re

from octavo.parsing.json_text import pass_value
from octavo.parsing.scanner import Markers, Reading
from octavo.parsing.tools.base import CallForm, MessageForm, ToolParser

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
ENDS = ("<|call|>", "<|end|>", "<|return|>")
SPECIAL = (START, CHANNEL, CONSTRAIN, MESSAGE, *ENDS)
RECIPIENT = re.compile(r"\bto=(?:functions\.)?([\w.-]+)")
_RECIPIENT_FIRST = (" to=", "to=")  # behind the prompt's "<|start|>assistant"
_HEAD_END = Markers([MESSAGE, *ENDS])


class OpenAIParser(ToolParser):
    """Works on what the reasoning stage `openai_gptoss` leaves of the answer: messages to functions as they are, and the
    text of the others."""

    special = SPECIAL
    forms = (CallForm(f"{CHANNEL}commentary to=functions.NAME {CONSTRAIN}json{MESSAGE}", "", trigger=CHANNEL),)
    messages = MessageForm(
        (f"{CHANNEL}analysis{MESSAGE}", f"{CHANNEL}commentary{MESSAGE}"),
        "<|end|>",
        f"{START}assistant",
        f"{CHANNEL}final{MESSAGE}",
        (START, CHANNEL),
    )

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        self.scanner.mark()
        if (yield from self.scanner.match(*_RECIPIENT_FIRST)) and (yield from self._call("to=")):
            self.scanner.settle()
        else:
            self.scanner.reset()
        yield from self.calls_behind([START, CHANNEL], ENDS, self._call)

    def _call(self, marker: str) -> Reading[bool]:
        head = [marker]
        if (yield from self.scanner.until(_HEAD_END, head.append)) != MESSAGE:
            return False
        recipient = RECIPIENT.search("".join(head))
        if recipient is None:
            return False
        yield from self.scanner.space()
        self.begin(recipient[1])
        if (yield from self.scanner.peek()) in ("", *(end[0] for end in ENDS)):
            self.arguments("{}")
            self.end()
        elif (yield from pass_value(self.scanner, self.arguments, ENDS)):
            self.end()
        return True
