"""`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`: Hermes 2 and 3, Qwen 2.5 and 3, Granite 4. Apriel writes a
list of such objects in `<tool_calls>...</tool_calls>`."""

from __future__ import annotations

from octavo.parsing.tools.base import CallForm
from octavo.parsing.tools.json_calls import MarkedJsonParser


class HermesParser(MarkedJsonParser):
    """A marker that no call follows is text like any other. What stands between a call and its closing marker is content,
    and the closing marker may be missing."""

    opening = ("<tool_call>", "<tool_calls>")
    closing = ("</tool_call>", "</tool_calls>")
    special = (*opening, *closing)
    forms = (
        CallForm('<tool_call>\n{"name": "NAME", "arguments": ', "}\n</tool_call>", trigger="<tool_call>"),
        CallForm(
            '{"name": "NAME", "arguments": ',
            "}",
            trigger="<tool_calls>",
            opening="<tool_calls>[",
            separator=", ",
            closing="]</tool_calls>",
        ),
    )
