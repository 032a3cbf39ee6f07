"""How one option is described, read back and checked. `octavo.config` lists the options themselves."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_args, get_type_hints

from octavo.errors import ConfigError

TYPE_NAMES: Mapping[type, str] = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}


def flag_of(name: str) -> str:
    """`max_model_len` to `--max-model-len`."""
    return "--" + name.replace("_", "-")


def option(
    default: Any,
    help: str,
    *,
    group: str = "engine",
    flags: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    aliases: Mapping[str, str | None] | None = None,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
    multiple_of: int | None = None,
    words: Mapping[str, int] | None = None,
    holds_json: bool = False,
) -> Any:
    """A dataclass field with all that its flag, its check and its row in the docs need.

    `flags` are further spellings beside `--field-name`, `aliases` further spellings of choices. Numbers lie in
    [minimum, maximum], or in (above, maximum], or are what one of the `words` stands for.
    `holds_json`: the text is a JSON object, and mappings become one.
    """
    limits = {"minimum": minimum, "above": above, "maximum": maximum, "multiple_of": multiple_of}
    spellings = {"flags": flags, "choices": choices, "aliases": {**(aliases or {}), **(words or {})}, "words": words or {}}
    metadata = {"help": help, "group": group, "holds_json": holds_json, **spellings, **limits}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Option:
    """One described field."""

    name: str
    type: type  # of one value: str, int, float or bool
    optional: bool  # None is allowed
    many: bool  # a tuple of values
    default: Any
    metadata: Mapping[str, Any]

    @property
    def flag(self) -> str:
        """The first spelling."""
        return flag_of(self.name)

    @property
    def spellings(self) -> tuple[str, ...]:
        """All flags, the first spelling first."""
        return (self.flag, *self.metadata["flags"])

    @property
    def help(self) -> str:
        """The one-line description."""
        text: str = self.metadata["help"]
        return text

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values; empty when any will do."""
        choices: tuple[str, ...] = self.metadata["choices"]
        return choices

    @property
    def default_text(self) -> str:
        """The default as help and docs show it; empty for None and for no values."""
        if self.default is None or self.default == ():
            return ""
        if self.many:
            return " ".join(self.default)
        return str(self.default).lower() if self.type is bool else str(self.default)

    @property
    def range_text(self) -> str:
        """What numbers are allowed, in words; empty when all are."""
        at_least, above, at_most = (_short(self.metadata[limit]) for limit in ("minimum", "above", "maximum"))
        multiple_of = self.metadata["multiple_of"]
        if at_most is not None and multiple_of is not None:
            return f"a multiple of {multiple_of} between {at_least} and {at_most}"
        if at_most is not None:
            return f"between {at_least} and {at_most}" if above is None else f"above {above} and at most {at_most}"
        if at_least is None:
            return "" if above is None else f"above {above}"
        words = "".join(f", or {word} ({value})" for word, value in self.metadata["words"].items())
        return (f"at least {at_least}" if multiple_of is None else f"a multiple of {multiple_of}") + words

    def error(self, what: str) -> ConfigError:
        """`--flag` and what is wrong with its value, to be raised."""
        return ConfigError(f"{self.flag} {what}", parameter=self.name)

    def normalise(self, value: Any) -> Any:
        """Paths to text, one value to a tuple of one, another spelling of a choice to ours, whole numbers of any
        kind to int or float."""
        if self.many:
            return (value,) if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)
        if self.metadata["holds_json"] and isinstance(value, Mapping):
            return self._to_json(value)
        if self.type is str and isinstance(value, os.PathLike):
            return os.fspath(value)
        if self.type in (int, float) and hasattr(value, "__index__") and not isinstance(value, bool):
            return self.type(operator.index(value))
        return self.metadata["aliases"].get(value, value) if isinstance(value, str) else value

    def _to_json(self, value: Mapping[Any, Any]) -> str:
        try:
            return json.dumps(dict(value))
        except (TypeError, ValueError) as error:
            raise self.error(f"takes values that JSON has: {error}") from None

    def check(self, value: Any) -> None:
        """Raise ConfigError unless type, choice and range fit."""
        if value is None and self.optional:
            return
        for one in value if self.many else (value,):
            if type(one) is not self.type:
                raise self.error(f"takes {TYPE_NAMES[self.type]}, got {one!r}")
            if isinstance(one, str) and not _is_unicode(one):
                raise self.error(f"must be valid Unicode, got {one!r}")
        if self.choices and value not in self.choices:
            raise self.error(f"must be one of {', '.join(self.choices)}, got {value}")
        if not self._in_range(value):
            raise self.error(f"must be {self.range_text}, got {value}")

    def _in_range(self, value: Any) -> bool:
        limits = self.metadata
        return value in limits["words"].values() or (
            (limits["minimum"] is None or value >= limits["minimum"])
            and (limits["above"] is None or value > limits["above"])
            and (limits["maximum"] is None or value <= limits["maximum"])
            and (limits["multiple_of"] is None or value % limits["multiple_of"] == 0)
        )


def _is_unicode(text: str) -> bool:
    """False where bytes of the command line that are no UTF-8 have become halves of surrogate pairs."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _short(limit: float | None) -> str | None:
    """A limit in words: powers of two as such, where their digits would say nothing."""
    if limit is None:
        return None
    if abs(limit) < 2**40:
        return f"{limit:g}"
    return f"-2^{(-int(limit)).bit_length() - 1}" if limit < 0 else f"2^{int(limit).bit_length()} - 1"


def describe(config: type) -> dict[str, Option]:
    """Name -> option of every field of a dataclass whose fields were made by `option`."""
    hints = get_type_hints(config)
    return {item.name: _describe(item.name, hints[item.name], item.default, item.metadata) for item in fields(config)}


def _describe(name: str, hint: Any, default: Any, metadata: Mapping[str, Any]) -> Option:
    parts = get_args(hint)
    return Option(name, parts[0] if parts else hint, type(None) in parts, Ellipsis in parts, default, metadata)
