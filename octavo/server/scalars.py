"""Single JSON values as pydantic's lax mode takes them. A converter returns FAILED after it has noted why."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from octavo.server.issues import Issue

FAILED: Any = object()
INT64_MAX = 2**63 - 1
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE = frozenset({"0", "off", "f", "false", "n", "no"})
_INTEGER_TEXT = re.compile(r"[+-]?\d+(?:_\d+)*(?:\.0+)?", re.ASCII)
_MAX_INTEGER_TEXT = 4300  # CPython's own limit on digits
_TOO_BIG = "Unable to parse input string as an integer, exceeded maximum size"
_FRACTION = "Input should be a valid integer, got a number with a fractional part"

Converter = Callable[[Any, str, list[Issue]], Any]  # of a value and its location


def fail(issues: list[Issue], kind: str, location: str, message: str, value: Any, **context: Any) -> Any:
    """Note an issue."""
    issues.append(Issue(kind, location, message, value, context or None))
    return FAILED


def to_int(value: Any, location: str, issues: list[Issue]) -> Any:
    """An int of 64 bits, from an integral number or its text, or a bool."""
    if isinstance(value, int):
        result = int(value)
    elif isinstance(value, float):
        if not value.is_integer():
            return fail(issues, "int_from_float", location, _FRACTION, value)
        if not -INT64_MAX - 1 <= value <= INT64_MAX:
            return fail(issues, "int_parsing_size", location, _TOO_BIG, value)
        result = int(value)
    elif isinstance(value, str):
        text = value.strip()
        if len(text) > _MAX_INTEGER_TEXT:
            return fail(issues, "int_parsing_size", location, _TOO_BIG, value)
        if not _INTEGER_TEXT.fullmatch(text):
            message = "Input should be a valid integer, unable to parse string as an integer"
            return fail(issues, "int_parsing", location, message, value)
        result = int(text.partition(".")[0])
    else:
        return fail(issues, "int_type", location, "Input should be a valid integer", value)
    if result > INT64_MAX:
        return at_most(INT64_MAX, value, location, issues)
    if result < -INT64_MAX - 1:
        return at_least(-INT64_MAX - 1, value, location, issues)
    return result


def at_most(limit: float, value: Any, location: str, issues: list[Issue]) -> Any:
    """Note that a number is larger than it may be."""
    return fail(issues, "less_than_equal", location, f"Input should be less than or equal to {limit}", value, le=limit)


def at_least(limit: float, value: Any, location: str, issues: list[Issue]) -> Any:
    """Note that a number is smaller than it may be."""
    return fail(issues, "greater_than_equal", location, f"Input should be greater than or equal to {limit}", value, ge=limit)


def to_float(value: Any, location: str, issues: list[Issue]) -> Any:
    """A finite float, from a number, its text, or a bool."""
    if not isinstance(value, (int, float, str)):
        return fail(issues, "float_type", location, "Input should be a valid number", value)
    try:
        result = float(value if not isinstance(value, str) or value.isascii() else "")
    except OverflowError:
        result = math.inf
    except ValueError:
        message = "Input should be a valid number, unable to parse string as a number"
        return fail(issues, "float_parsing", location, message, value)
    if not math.isfinite(result):
        return fail(issues, "finite_number", location, "Input should be a finite number", value)
    return result


def to_bool(value: Any, location: str, issues: list[Issue]) -> Any:
    """A bool, from 0, 1 or a word for either."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
    elif isinstance(value, (int, float)):
        if value in (0, 1):
            return bool(value)
        if value % 1 or not -INT64_MAX - 1 <= value <= INT64_MAX:
            return fail(issues, "bool_type", location, "Input should be a valid boolean", value)
    else:
        return fail(issues, "bool_type", location, "Input should be a valid boolean", value)
    message = "Input should be a valid boolean, unable to interpret input"
    return fail(issues, "bool_parsing", location, message, value)


def to_none(value: Any, location: str, issues: list[Issue]) -> Any:
    """None alone."""
    if value is None:
        return None
    return fail(issues, "none_required", location, "Input should be None", value)


def to_any(value: Any, location: str, issues: list[Issue]) -> Any:
    """Whatever it is."""
    return value
