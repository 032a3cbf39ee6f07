"""`[TOOL_CALLS][{"name": ..., "arguments": {...}}]` and `[TOOL_CALLS]name[ARGS]{...}`: Mistral's models."""

from __future__ import annotations

import secrets
import string

from octavo.parsing.json_text import pass_value
from octavo.parsing.scanner import Reading
from octavo.parsing.tools.base import CallForm
from octavo.parsing.tools.json_calls import JsonToolParser

_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_LETTERS = string.ascii_letters + string.digits
_ID_LENGTH = 9  # Mistral's templates refuse any other


class MistralParser(JsonToolParser):
    """The older form is a list of objects, the newer one a name (perhaps with an id) and an object for each call."""

    special = (_CALLS, _ID, _ARGUMENTS)
    forms = (
        CallForm("[TOOL_CALLS]NAME[ARGS]", "", trigger=_CALLS, separator=""),
        CallForm(
            '{"name": "NAME", "arguments": ', "}", trigger=_CALLS, opening="[TOOL_CALLS][", separator=", ", closing="]"
        ),
    )

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        yield from self.calls_behind([_CALLS], [], self._calls)

    def _calls(self, marker: str) -> Reading[bool]:
        yield from self.scanner.space()
        if (yield from self.scanner.peek()) in ("[", "{"):
            return (yield from self.call_or_list([_CALLS]))
        return (yield from self._named())

    def _named(self) -> Reading[bool]:
        name = yield from self.scanner.name(".-")
        yield from self.scanner.space()
        id = ""
        if (yield from self.scanner.match(_ID)):
            id = yield from self.scanner.name()
        yield from self.scanner.match(_ARGUMENTS)
        yield from self.scanner.space()
        if not name or (yield from self.scanner.peek()) != "{":
            return False
        self.begin(name, id if len(id) == _ID_LENGTH and set(id) <= set(_LETTERS) else None)
        if (yield from pass_value(self.scanner, self.arguments, [_CALLS])):
            self.end()
        return True

    def new_id(self) -> str:
        """Nine letters and digits."""
        return "".join(secrets.choice(_LETTERS) for _ in range(_ID_LENGTH))
