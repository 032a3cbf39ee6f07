"""`functools[{"name": ..., "arguments": {...}}, ...]`: Phi-4-mini."""

from __future__ import annotations

from octavo.parsing.tools.base import CallForm
from octavo.parsing.tools.json_calls import MarkedJsonParser


class Phi4MiniParser(MarkedJsonParser):
    """`<|tool_call|>[...]<|/tool_call|>`, which the same models write too, is read as well."""

    opening = ("functools", "<|tool_call|>")
    closing = ("<|/tool_call|>",)
    special = ("<|tool_call|>", "<|/tool_call|>")
    forms = (
        CallForm(
            '{"name": "NAME", "arguments": ', "}", trigger="functools", opening="functools[", separator=", ", closing="]"
        ),
        CallForm(
            '{"name": "NAME", "arguments": ',
            "}",
            trigger="<|tool_call|>",
            opening="<|tool_call|>[",
            separator=", ",
            closing="]<|/tool_call|>",
        ),
    )
