"""`functools[{"name": ..., "arguments": {...}}, ...]`: Phi-4-mini."""

from __future__ import annotations

from octavo.parsing.tools.base import CallForm
from octavo.parsing.tools.json_calls import MarkedJsonParser


class Phi4MiniParser(MarkedJsonParser):
    """`<|tool_call|>[...]<|/tool_call|>`, which the same models write too, is read as well."""

    opening = ("functools", "<|tool_call|>")
    closing = ("<|/tool_call|>",)
    special = ("<|tool_call|>", "<|/tool_call|>")
    form = CallForm('functools[{"name": NAME, "arguments": ', "}]", trigger="functools[")
