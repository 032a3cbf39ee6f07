"""`<|tool_call>call:NAME{key:<|"|>text<|"|>,other:1}<tool_call|>` (`gemma4`), and FunctionGemma's form of it."""

from __future__ import annotations

from typing import ClassVar

from octavo.parsing.literals import LiteralReader
from octavo.parsing.scanner import Reading
from octavo.parsing.tools.base import ToolParser


class Gemma4Parser(ToolParser):
    """Values are JSON but for strings, which are raw text between quotes of their own, and keys, which have none."""

    opening: ClassVar[str] = "<|tool_call>"
    closing: ClassVar[str] = "<tool_call|>"
    quote: ClassVar[str] = '<|"|>'
    special = (opening, closing, quote)

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        yield from self.calls_behind([self.opening], [self.closing], self._call)

    def _call(self, marker: str) -> Reading[bool]:
        yield from self.scanner.space()
        if not (yield from self.scanner.match("call:")):
            return False
        name = yield from self.scanner.name(".-")
        yield from self.scanner.space()
        if not name or (yield from self.scanner.peek()) != "{":
            return False
        self.begin(name)
        if (yield from LiteralReader(self.scanner, self.arguments, self.quote).value()):
            self.end()
        return True


class FunctionGemmaParser(Gemma4Parser):
    """`<start_function_call>call:NAME{key:<escape>text<escape>}<end_function_call>`."""

    opening = "<start_function_call>"
    closing = "<end_function_call>"
    quote = "<escape>"
    special = (opening, closing, quote)
