"""The generic format: the answer is a call object or a list of them, perhaps in a code fence."""

from __future__ import annotations

from octavo.parsing.scanner import Markers, Reading
from octavo.parsing.tools.base import CallForm
from octavo.parsing.tools.json_calls import JsonToolParser

_FENCE = "```"


class JsonParser(JsonToolParser):
    """`{"name": ..., "arguments": {...}}` (or `parameters`) for a function that the request offers, at the start of the
    answer. Everything behind the calls is content."""

    forms = (
        CallForm('{"name": "NAME", "arguments": ', "}", separator=", ", opening="[", closing="]", starts="[{`"),
        CallForm('{"name": "NAME", "arguments": ', "}", separator=", ", starts="[{`"),
    )

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        self.scanner.mark()
        yield from self.scanner.space()
        is_fenced = yield from self.scanner.match(_FENCE)
        if is_fenced:
            yield from self.scanner.name()
        yield from self.bare_calls()
        if not self.num_calls:
            self.scanner.reset()
        else:
            self.scanner.settle()
            if is_fenced:
                yield from self._close_fence()
        yield from self.scanner.until(Markers([]), self.content)

    def _close_fence(self) -> Reading[None]:
        self.scanner.mark()
        yield from self.scanner.space()
        if (yield from self.scanner.match(_FENCE)):
            self.scanner.settle()
        else:
            self.scanner.reset()
