"""No format: tools are shown to the model, and what it answers is content, to be read by the client."""

from __future__ import annotations

from octavo.parsing.scanner import Markers, Reading
from octavo.parsing.tools.base import ToolParser


class RawParser(ToolParser):
    """All text is content."""

    def run(self) -> Reading[None]:
        """See `ToolParser`."""
        yield from self.scanner.until(Markers([]), self.content)
