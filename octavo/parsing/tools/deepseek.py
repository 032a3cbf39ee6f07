"""DeepSeek V3 and R1 (`deepseek_v3`), V3.1 (`deepseek_v31`): calls between special tokens.

V3:   begin, type, separator, name, line end, ```json fence with the arguments, end
V3.1: begin, name, separator, arguments, end
"""

from __future__ import annotations

from octavo.parsing.json_text import pass_value
from octavo.parsing.scanner import Markers, Reading
from octavo.parsing.tools.base import CallForm, ToolParser

_CALLS_BEGIN, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _SEPARATOR, _END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
_FENCE = "```"
_AFTER_HEAD = Markers([_SEPARATOR, _BEGIN, _END, _CALLS_END])
_AFTER_NAME = Markers(["\n", _FENCE, _BEGIN, _END, _CALLS_END])


def _forms(begin: str, end: str, separator: str) -> tuple[CallForm, CallForm]:
    """The marks round all calls may be missing."""
    all_of_them = CallForm(begin, end, trigger=_CALLS_BEGIN, opening=_CALLS_BEGIN, separator=separator, closing=_CALLS_END)
    return all_of_them, CallForm(begin, end, trigger=_BEGIN, separator=separator)


class DeepSeekParser(ToolParser):
    """Both forms are told apart by what follows the separator, so that either name reads both."""

    special = (_CALLS_BEGIN, _CALLS_END, _BEGIN, _SEPARATOR, _END)
    forms = (
        *_forms(f"{_BEGIN}NAME{_SEPARATOR}", _END, ""),
        *_forms(f"{_BEGIN}function{_SEPARATOR}NAME\n```json\n", f"\n```{_END}", "\n"),
    )

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        yield from self.calls_behind([_CALLS_BEGIN, _BEGIN], [_CALLS_END], self._call)

    def _call(self, marker: str) -> Reading[bool]:
        scanner = self.scanner
        if marker == _CALLS_BEGIN:
            yield from scanner.space()
            if not (yield from scanner.match(_BEGIN)):
                return False
        head: list[str] = []
        if (yield from scanner.until(_AFTER_HEAD, head.append)) != _SEPARATOR:
            return False
        yield from scanner.space()
        name = "".join(head).strip()
        if (yield from scanner.peek()) != "{":
            name = yield from self._fenced_name()
        if not name or (yield from scanner.peek()) != "{":
            return False
        self.begin(name)
        if (yield from pass_value(scanner, self.arguments, [_FENCE, _END, _CALLS_END])):
            self.end()
            yield from self._close()
        return True

    def _fenced_name(self) -> Reading[str]:
        """The name, with the fence behind it read."""
        name: list[str] = []
        end = yield from self.scanner.until(_AFTER_NAME, name.append)
        if end not in ("\n", _FENCE):
            return ""
        yield from self.scanner.space()
        if end == _FENCE or (yield from self.scanner.match(_FENCE)):
            yield from self.scanner.match("json")
        yield from self.scanner.space()
        return "".join(name).strip()

    def _close(self) -> Reading[None]:
        self.scanner.mark()
        yield from self.scanner.space()
        yield from self.scanner.match(_FENCE)
        yield from self.scanner.space()
        if (yield from self.scanner.match(_END)):
            self.scanner.settle()
        else:
            self.scanner.reset()
