"""A format that is given as a regular expression (`--tool-call-regex`)."""

from __future__ import annotations

import re

from octavo.parsing.scanner import Markers, Reading
from octavo.parsing.tools.base import ToolParser, Tools
from octavo.parsing.tools.json_calls import arguments_text

GROUPS = ("name", "arguments")


class RegexParser(ToolParser):
    """Each match of the pattern is a call, of which the groups `name` and `arguments` are the parts; all else is content.

    Only the end of the text decides what a pattern matches, so nothing comes before it.
    """

    def __init__(self, tools: Tools, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        super().__init__(tools)

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        texts: list[str] = []
        yield from self.scanner.until(Markers([]), texts.append)
        text, last = "".join(texts), 0
        for match in self._pattern.finditer(text):
            name = (match["name"] or "").strip()
            if not name:
                continue
            self.content(text[last : match.start()])
            self.begin(name)
            self.arguments(arguments_text((match["arguments"] or "").strip() or "{}"))
            self.end()
            last = match.end()
        self.content(text[last:])
