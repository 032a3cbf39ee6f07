"""`<|tool_call|>[{"name": ..., "arguments": {...}}, ...]`: Granite 3."""

from __future__ import annotations

from octavo.parsing.tools.base import CallForm
from octavo.parsing.tools.json_calls import MarkedJsonParser


def _form(mark: str) -> CallForm:
    return CallForm('{"name": "NAME", "arguments": ', "}", trigger=mark, opening=f"{mark}[", separator=", ", closing="]")


class GraniteParser(MarkedJsonParser):
    """Granite 3.1 writes `<tool_call>` instead. The marker may be missing at the start of the answer."""

    opening = ("<|tool_call|>", "<tool_call>")
    closing = ("<|/tool_call|>", "</tool_call>")
    special = (*opening, *closing)
    is_bare = True
    forms = (
        _form("<|tool_call|>"),
        _form("<tool_call>"),
        CallForm('{"name": "NAME", "arguments": ', "}", opening="[", separator=", ", closing="]", starts="[{"),
    )
