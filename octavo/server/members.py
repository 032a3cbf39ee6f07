"""Members of objects that no struct describes, since they are of many kinds: read one by one, and refused by their paths."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from octavo.errors import ValidationError


def refuse(where: str, rule: str) -> NoReturn:
    """Say what is wrong with what stands at the path `where`."""
    raise ValidationError(f"{where} {rule}.", parameter=where)


def text_member(where: str, value: Mapping[str, Any], name: str) -> str:
    """A member of the object at `where` that must be text."""
    text = value.get(name)
    if not isinstance(text, str):
        refuse(f"{where}.{name}", "must be text")
    return text
