"""`<tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>`: Qwen 3 Coder and 3.5, Nemotron 3,
and Seed-OSS, whose outer tag is `<seed:tool_call>`."""

from __future__ import annotations

from octavo.parsing.scanner import Emit, Markers, Reading
from octavo.parsing.tools.base import CallForm, ParameterForm
from octavo.parsing.tools.typed import TypedToolParser

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_SEED_OPEN, _SEED_CLOSE = "<seed:tool_call>", "</seed:tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_HEAD_END = Markers([">", "<", "\n"])
_VALUE_END = Markers(
    [_PARAMETER_END, *(f"\n{marker}" for marker in (_PARAMETER_END, _PARAMETER, _FUNCTION_END, _CLOSE, _SEED_CLOSE))]
)

_PARAMETERS = ParameterForm(f"{_PARAMETER}KEY>\n", f"\n{_PARAMETER_END}\n", (_PARAMETER, _FUNCTION_END, _CLOSE, _SEED_CLOSE))


def _form(before: str, behind: str, trigger: str) -> CallForm:
    return CallForm(f"{before}{_FUNCTION}NAME>\n", f"{_FUNCTION_END}{behind}", trigger=trigger, parameters=_PARAMETERS)


class Qwen3CoderParser(TypedToolParser):
    """`<tool_call>` and any closing tag may be missing.

    Values are texts without escapes that may hold the tags themselves. A value ends at the first
    - `</parameter>` behind which, after white space, another parameter, a closing tag or the answer's end stands,
    - line that begins with `<parameter=` and a key that the function has and the call does not have yet,
    - line that begins with `</function>` or `</tool_call>`, with nothing but another call, a closing tag or the answer's
      end behind it.
    A line end right after a value's opening tag, and one right before its end, belong to the form.
    """

    special = (_OPEN, _CLOSE, _SEED_OPEN, _SEED_CLOSE)
    forms = (
        _form(f"{_OPEN}\n", f"\n{_CLOSE}", _OPEN),
        _form(f"{_SEED_OPEN}\n", f"\n{_SEED_CLOSE}", _SEED_OPEN),
        _form("", "", _FUNCTION),
    )

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        yield from self.calls_behind([_OPEN, _SEED_OPEN, _FUNCTION], [_CLOSE, _SEED_CLOSE], self._call)

    def _call(self, marker: str) -> Reading[bool]:
        if marker != _FUNCTION:
            yield from self.scanner.space()
            if not (yield from self.scanner.match(_FUNCTION)):
                return False
        name = yield from self._head()
        if not name:
            return False
        self.begin(name)
        while (yield from self._is_parameter()):
            self.scanner.mark()
            key = yield from self._head()
            head = self.scanner.settle()
            if not key:  # broken off, or no tag after all
                self.key_part(head)
                return True
            if not (yield from self.argument(key)):
                return True
        is_closed = yield from self.scanner.match(_FUNCTION_END)
        if is_closed or not self.scanner.is_at_end or self.scanner.ended_well:
            self.end()
        return True

    def _is_parameter(self) -> Reading[bool]:
        """Whether an argument comes next, whose opening tag is then read up to its key."""
        while True:
            yield from self.scanner.space()
            if (yield from self.scanner.match(_PARAMETER_END)):  # one too many
                continue
            return bool((yield from self.scanner.match(_PARAMETER)))

    def _head(self) -> Reading[str]:
        """The name or key of an opening tag, behind its `=`; "" if it is none."""
        text: list[str] = []
        end = yield from self.scanner.until(_HEAD_END, text.append)
        return "".join(text).strip(" \t\"'") if end == ">" else ""

    def read_value(self, emit: Emit) -> Reading[bool]:
        """See `TypedToolParser`."""
        is_first = True

        def pass_on(text: str) -> None:
            nonlocal is_first
            text = text.removeprefix("\n") if is_first else text
            is_first = False
            if text:
                emit(text)

        while marker := (yield from self.scanner.until(_VALUE_END, pass_on)):
            if (yield from self._ends_value(marker.lstrip("\n"))):
                if not marker.endswith(_PARAMETER_END):
                    self.scanner.unread(len(marker))
                return True
            pass_on(marker)
        return False

    def _ends_value(self, marker: str) -> Reading[bool]:
        if marker == _PARAMETER_END:
            return (yield from self.stands_ahead(_PARAMETER, _FUNCTION_END, _CLOSE, _SEED_CLOSE))
        if marker == _FUNCTION_END:
            return (yield from self.stands_ahead(_CLOSE, _SEED_CLOSE, _OPEN, _SEED_OPEN, _FUNCTION))
        if marker in (_CLOSE, _SEED_CLOSE):
            return (yield from self.stands_ahead(_OPEN, _SEED_OPEN, _FUNCTION))
        self.scanner.mark()
        key = yield from self._head()
        self.scanner.reset()
        return marker == _PARAMETER and bool(key) and self.knows(key)
