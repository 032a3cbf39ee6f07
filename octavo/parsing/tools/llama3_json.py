"""`{"name": ..., "parameters": {...}}` and nothing round it: Llama 3 and 4."""

from __future__ import annotations

from octavo.parsing.tools.base import CallForm
from octavo.parsing.tools.json_calls import MarkedJsonParser


class Llama3JsonParser(MarkedJsonParser):
    """Calls stand at the start of the answer, behind each other (`;` may part them), or behind `<|python_tag|>`; text after
    them is content. JSON anywhere else is never a call, whatever it looks like."""

    opening = ("<|python_tag|>",)
    closing = ("<|eom_id|>",)
    special = ("<|python_tag|>",)
    is_bare = True
    forms = (
        CallForm('{"name": "NAME", "parameters": ', "}", separator="; ", starts="[{"),
        CallForm('{"name": "NAME", "parameters": ', "}", trigger="<|python_tag|>", opening="<|python_tag|>", separator="; "),
    )
