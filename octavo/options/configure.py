"""From what a user gave (flags, a YAML file, keywords) to an EngineConfig: one path for all three, so that each spelling,
number and refusal is the same everywhere."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from octavo.config import OPTIONS, EngineConfig
from octavo.errors import ConfigError, did_you_mean
from octavo.options import vllm
from octavo.options.description import TYPE_NAMES, Option

logger = logging.getLogger(__name__)

_MULTIPLES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "": 1}
_NUMBER = re.compile(r"([+-]?[0-9]{1,20}(?:\.[0-9]{1,12})?)([kmgtKMGT]?)")
_FLAG = re.compile(r"(--[a-z][a-z-]*[a-z])( (?=[0-9]))?")  # and a number after it
_TRUTH = {"true": True, "false": False}


@dataclass(frozen=True)
class Given:
    """One option as the user wrote it. `spelling` is what messages call it."""

    name: str
    value: Any
    spelling: str


def plain_name(spelling: str) -> str:
    """`--Max-Model_len` and `max-model-len` to `max_model_len`."""
    return spelling.lstrip("-").replace("-", "_")


# Every name that an option goes by -> the field's name.
FIELD_NAMES: Mapping[str, str] = {plain_name(flag): name for name, option in OPTIONS.items() for flag in option.spellings}


def configure(given: Iterable[Given]) -> EngineConfig:
    """An EngineConfig of what was given; a later entry for the same option wins.

    Raises ConfigError for unknown names (with the nearest known one), for options of vLLM that are not there yet, and for
    values that do not fit. Logs one warning for all names that no longer mean anything.
    """
    values: dict[str, Any] = {}
    retired: list[str] = []
    for item in given:
        if item.name in FIELD_NAMES:
            field = FIELD_NAMES[item.name]
            values[field] = parse_value(OPTIONS[field], item.value, item.spelling)
        elif item.name in vllm.RETIRED:
            retired.append(item.spelling)
        else:
            _refuse_unless_neutral(item)
    if retired:
        logger.warning("ignored, since it has no meaning here: %s", ", ".join(retired))
    config = EngineConfig(**values)
    if config.trust_remote_code and config.model_impl != "transformers":
        logger.warning("--trust-remote-code: Octavo's own model code runs none of the model repository's (see --model-impl)")
    return config


def from_keywords(keywords: Mapping[str, Any]) -> EngineConfig:
    """What `LLM(**keywords)` means. Raises ConfigError as `configure` does, and for the HTTP server's options."""
    given = [Given(plain_name(name), value, name) for name, value in keywords.items()]
    for item in given:
        option = OPTIONS.get(FIELD_NAMES.get(item.name, ""))
        if option is not None and option.metadata["group"] == "server":
            raise ConfigError(
                f"{item.spelling} is an option of the HTTP server, which LLM does not have", parameter=item.name
            )
    return configure(given)


@contextmanager
def named_as_keywords() -> Iterator[None]:
    """In messages of the ConfigErrors that leave it, options are written as keywords of `LLM(...)` in place of flags, as
    `max_model_len=4096`."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_FLAG.sub(_as_keyword, error.message), parameter=error.parameter) from None


def _as_keyword(match: re.Match[str]) -> str:
    name, value = plain_name(match[1]), match[2] or ""
    if name in FIELD_NAMES:
        return name + value.replace(" ", "=")
    negated = name.removeprefix("no_")
    return f"{negated}=False{value}" if negated in FIELD_NAMES else match[0]


def parse_value(option: Option, value: Any, spelling: str) -> Any:
    """Text (of a flag, or quoted in YAML) to the option's type; values that have it already stay as they are."""
    if option.many:
        return _parse_many(option, value, spelling)
    if not isinstance(value, str) or option.type is str:
        return _whole(value) if option.type is int else value
    if option.optional and value.lower() in ("none", "null"):
        return None
    if value.lower() in option.metadata["words"]:
        return option.metadata["words"][value.lower()]
    try:
        return _from_text(option.type, value)
    except (ValueError, KeyError):
        hint = _hint(option)
        raise ConfigError(f"{spelling} takes {TYPE_NAMES[option.type]}, got {value}{hint}", parameter=option.name) from None


def _parse_many(option: Option, value: Any, spelling: str) -> tuple[Any, ...]:
    """Values one by one, or as text that is a JSON list, which is how vLLM takes them."""
    given = list(value) if isinstance(value, (list, tuple)) else [] if value is None else [value]
    if len(given) == 1 and isinstance(given[0], str) and given[0].startswith("["):
        with contextlib.suppress(ValueError):
            given = json.loads(given[0])
    single = dataclasses.replace(option, many=False)
    return tuple(parse_value(single, one, spelling) for one in given)


def unknown(spelling: str, known: Iterable[str] = FIELD_NAMES) -> ConfigError:
    """The refusal of a name that neither Octavo nor vLLM knows, with the nearest that Octavo does."""
    name = spelling.rpartition(": ")[2].rpartition(".")[2]
    return ConfigError(f"unknown option {spelling}{did_you_mean(name, known)}", parameter=spelling)


def not_yet(item: Given) -> ConfigError:
    """The refusal of an option of vLLM that Octavo does not have, with the values that it would take."""
    values = [value for value in vllm.NEUTRAL_VALUES[item.name] if value not in ("", "true", "false")]
    what = item.spelling if item.value is None or isinstance(item.value, bool) else f"{item.spelling} {item.value}"
    remedy = " or ".join(["leave it out", *(f"give {value}" for value in values)])
    return ConfigError(f"{what} is not supported by Octavo yet; {remedy}", parameter=item.name)


def _refuse_unless_neutral(item: Given) -> None:
    if item.name not in vllm.NEUTRAL_VALUES:
        raise unknown(item.spelling)
    if not vllm.is_neutral(item.name, item.value):
        raise not_yet(item)


def _from_text(kind: type, text: str) -> Any:
    if kind is bool:
        return _TRUTH[text.lower()]
    if kind is float:
        return float(text)
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(text)
    number = Fraction(match[1]) * _MULTIPLES[match[2]]
    if number.denominator != 1:
        raise ValueError(text)
    return int(number)


def _whole(value: Any) -> Any:
    """8000.0 (as YAML reads 8.0e+3) to 8000; the rest is left for the check to judge."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _hint(option: Option) -> str:
    return "; for instance 2048, 2k (2000) or 2K (2048)" if option.type is int else ""
