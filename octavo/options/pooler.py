"""`--pooler-config`: vLLM's names for how a pooling model pools."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from octavo.errors import ConfigError

_Check = Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return type(value) is int and value > 0


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_flag(value: Any) -> bool:
    return type(value) is bool


_KEYS: Mapping[str, tuple[str, _Check]] = {
    "task": (
        "embed, classify, token_embed or token_classify",
        ("embed", "classify", "token_embed", "token_classify").__contains__,
    ),
    "pooling_type": ("CLS, LAST, MEAN or ALL", ("CLS", "LAST", "MEAN", "ALL").__contains__),
    "seq_pooling_type": ("CLS, LAST or MEAN", ("CLS", "LAST", "MEAN").__contains__),
    "tok_pooling_type": ("ALL", ("ALL",).__contains__),
    "use_activation": ("true or false", _is_flag),
    "normalize": ("true or false", _is_flag),
    "dimensions": ("a positive integer", _is_count),
    "is_matryoshka": ("true or false", _is_flag),
    "matryoshka_dimensions": (
        "a list of positive integers",
        lambda value: isinstance(value, list) and bool(value) and all(map(_is_count, value)),
    ),
    "logit_mean": ("a number", _is_number),
    "logit_sigma": ("a number other than 0", lambda value: _is_number(value) and value != 0),
    "logit_bias": ("a number", _is_number),
    "logit_scale": ("a number other than 0", lambda value: _is_number(value) and value != 0),
    "enable_chunked_processing": ("false: prompts are computed whole", lambda value: value is False),
}
_PAIRS = (("pooling_type", "seq_pooling_type"), ("pooling_type", "tok_pooling_type"), ("use_activation", "normalize"))


def read_pooler_config(text: str) -> dict[str, Any]:
    """The keys that were given a value. ConfigError names one that there is none of, or a value that it cannot have."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise _error(f'must be a JSON object as {{"pooling_type": "MEAN"}}, got {text:.80}')
    found = {name: value for name, value in given.items() if value is not None}
    for name, value in found.items():
        if name not in _KEYS:
            raise _error(f"has no {name!r:.60}; it has {', '.join(_KEYS)}")
        what, check = _KEYS[name]
        if not isinstance(value, str | int | float | list) or not check(value):
            raise _error(f"{name} must be {what}, got {value!r:.60}")
    for first, second in _PAIRS:
        if first in found and second in found:
            raise _error(f"cannot set both `{first}` and `{second}`")
    return found


def _error(what: str) -> ConfigError:
    return ConfigError(f"--pooler-config {what}", parameter="pooler_config")
