"""`<|tool_call|>[{"name": ..., "arguments": {...}}, ...]`: Granite 3."""

from __future__ import annotations

from octavo.parsing.tools.base import CallForm
from octavo.parsing.tools.json_calls import MarkedJsonParser


class GraniteParser(MarkedJsonParser):
    """Granite 3.1 writes `<tool_call>` instead. The marker may be missing at the start of the answer."""

    opening = ("<|tool_call|>", "<tool_call>")
    closing = ("<|/tool_call|>", "</tool_call>")
    special = (*opening, *closing)
    is_bare = True
    form = CallForm('<|tool_call|>[{"name": NAME, "arguments": ', "}]", trigger="<|tool_call|>")
