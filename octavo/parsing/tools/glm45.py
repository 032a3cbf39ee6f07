"""`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value>...</tool_call>`: GLM 4.5 to 4.7."""

from __future__ import annotations

from octavo.parsing.scanner import Emit, Markers, Reading
from octavo.parsing.tools.base import CallForm, ParameterForm
from octavo.parsing.tools.typed import TypedToolParser

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_AFTER_KEY, _AFTER_VALUE = Markers([_KEY_END, _VALUE]), Markers([_VALUE_END])


def _form(line_end: str) -> CallForm:
    """GLM 4.5 writes line ends, GLM 4.7 does not."""
    parameters = ParameterForm(f"{_KEY}KEY{_KEY_END}{line_end}{_VALUE}", f"{_VALUE_END}{line_end}", (_KEY, _CLOSE))
    return CallForm(f"{_OPEN}NAME{line_end}", _CLOSE, trigger=_OPEN, parameters=parameters)


class Glm45Parser(TypedToolParser):
    """A value ends at the first `</arg_value>` behind which, after white space, another key, the call's end or the answer's
    stands; tags inside it are text. A doubled closing tag of a key is read as one."""

    special = (_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END)
    forms = (_form("\n"), _form(""))

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        yield from self.calls_behind([_OPEN], [_CLOSE], self._call)

    def _call(self, marker: str) -> Reading[bool]:
        scanner = self.scanner
        yield from scanner.space()
        name = yield from scanner.name(".-")
        if not name or not (yield from self.stands_ahead(_KEY, _CLOSE)) or (yield from self._breaks_off()):
            return False
        self.begin(name)
        while True:
            yield from scanner.space()
            if not (yield from scanner.match(_KEY)):
                break
            if not (yield from self._argument()):
                return True
        if not scanner.is_at_end or scanner.ended_well:
            self.end()
        return True

    def _breaks_off(self) -> Reading[bool]:
        """Whether nothing comes after the name."""
        self.scanner.mark()
        yield from self.scanner.space()
        is_at_end = not (yield from self.scanner.peek())
        self.scanner.reset()
        return is_at_end

    def _argument(self) -> Reading[bool]:
        key: list[str] = []
        end = yield from self.scanner.until(_AFTER_KEY, key.append)
        while end == _KEY_END:
            yield from self.scanner.space()
            end = (yield from self.scanner.match(_KEY_END, _VALUE)) or _CLOSE
        if end != _VALUE:  # broken off, or no value after all
            self.key_part("".join(key))
            return False
        return (yield from self.argument("".join(key).strip()))

    def read_value(self, emit: Emit) -> Reading[bool]:
        """See `TypedToolParser`."""
        while marker := (yield from self.scanner.until(_AFTER_VALUE, emit)):
            if (yield from self.stands_ahead(_KEY, _CLOSE)):
                return True
            emit(marker)
        return False
