"""The generic format: the answer is a call object or a list of them, perhaps in a code fence."""

from __future__ import annotations

from octavo.parsing.scanner import Markers, Reading
from octavo.parsing.tools.json_calls import JsonToolParser

_FENCE = "```"


class JsonParser(JsonToolParser):
    """`{"name": ..., "arguments": {...}}` (or `parameters`) for a function that the request offers, at the start of the
    answer. Everything behind the calls is content."""

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        self.scanner.mark()
        yield from self.scanner.space()
        is_fenced = yield from self.scanner.match(_FENCE)
        if is_fenced:
            yield from self.scanner.name()
            yield from self.scanner.space()
        if not (yield from self.call_or_list(only_known=True)):
            self.scanner.reset()
        else:
            self.scanner.settle()
            while (yield from self._further_call()):
                pass
            if is_fenced:
                self.scanner.mark()
                yield from self.scanner.space()
                if (yield from self.scanner.match(_FENCE)):
                    self.scanner.settle()
                else:
                    self.scanner.reset()
        yield from self.scanner.until(Markers([]), self.content)

    def _further_call(self) -> Reading[bool]:
        self.scanner.mark()
        yield from self.scanner.space()
        yield from self.scanner.match(",", ";")
        yield from self.scanner.space()
        if not (yield from self.call_or_list(only_known=True)):
            self.scanner.reset()
            return False
        self.scanner.settle()
        return True
