"""StructuredOutputsParams: what the text of an answer must be, under vLLM's names."""

from __future__ import annotations

import json as json_module
from typing import Any

import msgspec

from octavo.errors import ValidationError

MAX_SOURCE_CHARACTERS = 1 << 18
"""Of a schema, expression or grammar; all choices together."""

MAX_CHOICES = 10_000

_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_NAME = "structured_outputs"


class StructuredOutputsParams(msgspec.Struct, omit_defaults=True):
    """Exactly one of the first six fields says what the text is; the others say how JSON is written.

    Raises `ValidationError` where none or several are given, or one has a wrong type or is too long. What the text of a
    schema, expression or grammar means is judged when it is compiled (`octavo.grammar`).
    """

    json: str | dict[str, Any] | None = None  # a JSON schema
    regex: str | None = None  # matches the whole text
    choice: list[str] | None = None
    grammar: str | None = None  # Lark, or GBNF (`root ::= ...`)
    json_object: bool | None = None  # any JSON object
    structural_tag: str | None = None  # JSON text of a structural tag: free text with constrained parts
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False  # objects have no members but those of their `properties`
    whitespace_pattern: str | None = None  # the space allowed between two parts of JSON; by default a bounded amount

    def __post_init__(self) -> None:
        _check_types(self)
        given = self.given
        if not given:
            kinds = ", ".join(f"'{kind}'" for kind in _KINDS)
            raise ValidationError(f"structured_outputs must give one of {kinds}.", parameter=_NAME)
        if len(given) > 1:
            text = "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice')."
            raise ValidationError(text, parameter=_NAME)
        if self.whitespace_pattern is not None and given[0] not in ("json", "json_object"):
            text = f"whitespace_pattern belongs to 'json' and 'json_object', not to '{given[0]}'."
            raise ValidationError(text, parameter=_NAME)
        _check_size(self)

    @property
    def given(self) -> list[str]:
        """The kinds that are given; one, once constructed."""
        return [kind for kind in _KINDS if getattr(self, kind) not in (None, False)]


def _check_types(params: StructuredOutputsParams) -> None:
    expected: dict[str, tuple[type, ...]] = {
        "json": (str, dict),
        "choice": (list, tuple),
        "json_object": (bool,),
        **dict.fromkeys(("regex", "grammar", "structural_tag", "whitespace_pattern"), (str,)),
    }
    for name, types in expected.items():
        value = getattr(params, name)
        if value is not None and not isinstance(value, types):
            what = " or ".join(kind.__name__ for kind in types)
            raise ValidationError(f"structured_outputs.{name} must be {what}, got {type(value).__name__}.", parameter=_NAME)
    for name in ("disable_any_whitespace", "disable_additional_properties"):
        if not isinstance(getattr(params, name), bool):
            raise ValidationError(f"structured_outputs.{name} must be a boolean.", parameter=_NAME)
    if params.choice is not None:
        params.choice = list(params.choice)
        if not params.choice or not all(isinstance(choice, str) and choice for choice in params.choice):
            text = "structured_outputs.choice must be a list of one or more texts, none of them empty."
            raise ValidationError(text, parameter=_NAME)


def _check_size(params: StructuredOutputsParams) -> None:
    kind = params.given[0]
    value = getattr(params, kind)
    if kind == "choice":
        if len(value) > MAX_CHOICES:
            text = f"structured_outputs.choice can hold at most {MAX_CHOICES} texts, got {len(value)}."
            raise ValidationError(text, parameter=_NAME)
        value = "".join(value)
    if kind == "json" and isinstance(value, dict):
        value = _json_text(value)
    if isinstance(value, str) and len(value) > MAX_SOURCE_CHARACTERS:
        text = f"structured_outputs.{kind} can have at most {MAX_SOURCE_CHARACTERS} characters, got {len(value)}."
        raise ValidationError(text, parameter=_NAME)


def _json_text(value: dict[str, Any]) -> str:
    try:
        return json_module.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        text = f"structured_outputs.json must be a JSON schema, which can be written as JSON: {error}"
        raise ValidationError(text, parameter=_NAME) from None
