"""Formats that write each argument as plain text, whose type the tool's schema says."""

from __future__ import annotations

from typing import Any

from octavo.parsing.arguments import is_text, property_schema, value_json
from octavo.parsing.json_text import escaped
from octavo.parsing.scanner import Reading
from octavo.parsing.tools.base import ToolParser


class TypedToolParser(ToolParser):
    """Puts arguments together from keys and texts. Texts of type string are passed on as they come, others when they are
    complete."""

    def begin(self, name: str, id: str | None = None) -> None:
        """See `ToolParser`; the arguments are an object."""
        super().begin(name, id)
        self._parameters = self.tools.get(name, {})
        self.keys: set[str] = set()
        self.arguments("{")

    def end(self) -> None:
        """See `ToolParser`."""
        self.arguments("}")
        super().end()

    def knows(self, key: str) -> bool:
        """Whether the call may still have this argument, as far as its schema tells."""
        properties = self._parameters.get("properties")
        return key not in self.keys and (not isinstance(properties, dict) or not properties or key in properties)

    def argument(self, key: str) -> Reading[bool]:
        """Read the value of an argument. False if the text ends within it."""
        schema = property_schema(self._parameters, key)
        self.key_part(key)
        self.arguments('": ')
        self.keys.add(key)
        return (yield from (self._text() if is_text(schema) else self._value(schema)))

    def key_part(self, key: str) -> None:
        """Pass on the beginning of an argument: a key, perhaps not all of it."""
        self.arguments(f'{", " if self.keys else ""}"{escaped(key)}')

    def _text(self) -> Reading[bool]:
        self.arguments('"')
        if not (yield from self.read_value(lambda text: self.arguments(escaped(text)))) and not self.scanner.ended_well:
            return False
        self.arguments('"')
        return True

    def _value(self, schema: Any) -> Reading[bool]:
        texts: list[str] = []
        is_whole = yield from self.read_value(texts.append)
        if not is_whole and not self.scanner.ended_well:
            self.arguments("".join(texts))  # what there is of it, as it is
            return False
        self.arguments(value_json("".join(texts), schema))
        return True

    def read_value(self, emit: Any) -> Reading[bool]:
        """Emit the text of a value, and read its end. False if the text ends before. To be overridden."""
        raise NotImplementedError
        yield

    def stands_ahead(self, *options: str) -> Reading[bool]:
        """Whether white space and then one of the options, or the end of the text, comes next; nothing is read."""
        self.scanner.mark()
        yield from self.scanner.space()
        found = bool((yield from self.scanner.match(*options))) or self.scanner.is_at_end
        self.scanner.reset()
        return found
