"""JSON values to msgspec structs with pydantic's lax rules and error texts, because clients match on both.

`"5"` and `5.0` are taken for an int, `1` for a bool, but never `5` for a string. Every problem of a body is collected
before it is refused; the location is the dotted path (`body.messages.0.role`). NaN and infinities are refused, and so are
integers beyond 64 bits: nothing behind the server could carry them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import inspect

from octavo.errors import RequestError

MAX_ISSUES_SHOWN = 10
MAX_INPUT_SHOWN = 200  # characters of a string
_INT64_MAX = 2**63 - 1
_FAILED: Any = object()
_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})
_FALSE = frozenset({"0", "off", "f", "false", "n", "no"})
_INTEGER_TEXT = re.compile(r"[+-]?\d+(?:_\d+)*(?:\.0+)?", re.ASCII)
_MAX_INTEGER_TEXT = 4300  # CPython's own limit on digits

StructType = TypeVar("StructType", bound=msgspec.Struct)


class Issue(NamedTuple):
    """One thing wrong with a body, in pydantic's terms."""

    kind: str  # "int_parsing", "missing", ...
    location: str
    message: str
    value: Any
    context: dict[str, Any] | None = None


Converter = Callable[[Any, str, "list[Issue]"], Any]


class SchemaError(RequestError):
    """The body does not fit the schema: 400 with every issue; `param` is the location of the first one."""

    status = 400
    kind = "Bad Request"

    def __init__(self, issues: list[Issue]) -> None:
        super().__init__(_report(issues), parameter=issues[0].location)


def convert(struct: type[StructType], value: Any, location: str = "body") -> StructType:
    """The struct that a decoded JSON value means. Raises SchemaError with all issues. Unknown members are left out."""
    issues: list[Issue] = []
    result = _struct_converter(struct)(value, location, issues)
    if issues:
        raise SchemaError(issues)
    assert isinstance(result, struct)
    return result


def unknown_members(struct: type[msgspec.Struct], value: dict[str, Any]) -> list[str]:
    """Names in `value` that the schema does not have."""
    return [name for name in value if name not in _member_names(struct)]


@functools.cache
def _member_names(struct: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(struct))


def _report(issues: list[Issue]) -> str:
    lines = [f"{len(issues)} validation error{'s' if len(issues) > 1 else ''}:"]
    for issue in issues[:MAX_ISSUES_SHOWN]:
        shown = {"type": issue.kind, "loc": issue.location, "msg": issue.message, "input": _shown(issue.value)}
        if issue.context is not None:
            shown["ctx"] = issue.context
        lines.append(f"  {shown!r}")
    return "\n".join(lines)


def _shown(value: Any) -> Any:
    """The input as it may stand in an error text: containers by size, long strings and integers cut."""
    if isinstance(value, (dict, list)):
        return f"<{type(value).__name__} of {len(value)} items>"
    if isinstance(value, str) and len(value) > MAX_INPUT_SHOWN:
        return value[:MAX_INPUT_SHOWN] + "..."
    if isinstance(value, int) and value.bit_length() > 256:
        return f"<int of {value.bit_length()} bits>"
    return value


_TOO_BIG = "Unable to parse input string as an integer, exceeded maximum size"
_FRACTION = "Input should be a valid integer, got a number with a fractional part"


def _fail(issues: list[Issue], kind: str, location: str, message: str, value: Any, **context: Any) -> Any:
    issues.append(Issue(kind, location, message, value, context or None))
    return _FAILED


def _to_int(value: Any, location: str, issues: list[Issue]) -> Any:
    if isinstance(value, int):
        result = int(value)
    elif isinstance(value, float):
        if not value.is_integer():
            return _fail(issues, "int_from_float", location, _FRACTION, value)
        if not -_INT64_MAX - 1 <= value <= _INT64_MAX:
            return _fail(issues, "int_parsing_size", location, _TOO_BIG, value)
        result = int(value)
    elif isinstance(value, str):
        text = value.strip()
        if len(text) > _MAX_INTEGER_TEXT:
            return _fail(issues, "int_parsing_size", location, _TOO_BIG, value)
        if not _INTEGER_TEXT.fullmatch(text):
            message = "Input should be a valid integer, unable to parse string as an integer"
            return _fail(issues, "int_parsing", location, message, value)
        result = int(text.partition(".")[0])
    else:
        return _fail(issues, "int_type", location, "Input should be a valid integer", value)
    if result > _INT64_MAX:
        return _at_most(_INT64_MAX, value, location, issues)
    if result < -_INT64_MAX - 1:
        return _at_least(-_INT64_MAX - 1, value, location, issues)
    return result


def _at_most(limit: float, value: Any, location: str, issues: list[Issue]) -> Any:
    return _fail(issues, "less_than_equal", location, f"Input should be less than or equal to {limit}", value, le=limit)


def _at_least(limit: float, value: Any, location: str, issues: list[Issue]) -> Any:
    return _fail(
        issues, "greater_than_equal", location, f"Input should be greater than or equal to {limit}", value, ge=limit
    )


def _to_float(value: Any, location: str, issues: list[Issue]) -> Any:
    if not isinstance(value, (int, float, str)):
        return _fail(issues, "float_type", location, "Input should be a valid number", value)
    try:
        result = float(value if not isinstance(value, str) or value.isascii() else "")
    except OverflowError:
        result = math.inf
    except ValueError:
        message = "Input should be a valid number, unable to parse string as a number"
        return _fail(issues, "float_parsing", location, message, value)
    if not math.isfinite(result):
        return _fail(issues, "finite_number", location, "Input should be a finite number", value)
    return result


def _to_bool(value: Any, location: str, issues: list[Issue]) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.lower()
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
    elif isinstance(value, (int, float)):
        if value in (0, 1):
            return bool(value)
        if value % 1 or not -_INT64_MAX - 1 <= value <= _INT64_MAX:
            return _fail(issues, "bool_type", location, "Input should be a valid boolean", value)
    else:
        return _fail(issues, "bool_type", location, "Input should be a valid boolean", value)
    message = "Input should be a valid boolean, unable to interpret input"
    return _fail(issues, "bool_parsing", location, message, value)


def _to_none(value: Any, location: str, issues: list[Issue]) -> Any:
    if value is None:
        return None
    return _fail(issues, "none_required", location, "Input should be None", value)


def _to_any(value: Any, location: str, issues: list[Issue]) -> Any:
    return value


def _int_converter(info: inspect.IntType) -> Converter:
    def to_bounded_int(value: Any, location: str, issues: list[Issue]) -> Any:
        result = _to_int(value, location, issues)
        if result is _FAILED:
            return result
        if info.ge is not None and result < info.ge:
            return _at_least(info.ge, value, location, issues)
        if info.le is not None and result > info.le:
            return _at_most(info.le, value, location, issues)
        return result

    return _to_int if info.ge is None and info.le is None else to_bounded_int


def _string_converter(info: inspect.StrType) -> Converter:
    def to_string(value: Any, location: str, issues: list[Issue]) -> Any:
        if not isinstance(value, str):
            return _fail(issues, "string_type", location, "Input should be a valid string", value)
        if info.max_length is not None and len(value) > info.max_length:
            message = f"String should have at most {info.max_length} characters"
            return _fail(issues, "string_too_long", location, message, value, max_length=info.max_length)
        return value

    return to_string


def _too_long(field_type: str, limit: int, value: Any, location: str, issues: list[Issue]) -> Any:
    message = f"{field_type} should have at most {limit} items after validation, not {len(value)}"
    return _fail(
        issues, "too_long", location, message, value, field_type=field_type, max_length=limit, actual_length=len(value)
    )


def _list_converter(info: inspect.ListType) -> Converter:
    convert_item = _converter(info.item_type)
    plain_int = isinstance(info.item_type, inspect.IntType) and convert_item is _to_int

    def to_list(value: Any, location: str, issues: list[Issue]) -> Any:
        if not isinstance(value, list):
            return _fail(issues, "list_type", location, "Input should be a valid list", value)
        if info.max_length is not None and len(value) > info.max_length:
            return _too_long("List", info.max_length, value, location, issues)
        if plain_int and all(type(item) is int and -_INT64_MAX <= item <= _INT64_MAX for item in value):
            return value
        before = len(issues)
        result = [convert_item(item, f"{location}.{i}", issues) for i, item in enumerate(value)]
        return result if len(issues) == before else _FAILED

    return to_list


def _dict_converter(info: inspect.DictType) -> Converter:
    convert_value = _converter(info.value_type)

    def to_dict(value: Any, location: str, issues: list[Issue]) -> Any:
        if not isinstance(value, dict):
            return _fail(issues, "dict_type", location, "Input should be a valid dictionary", value)
        if info.max_length is not None and len(value) > info.max_length:
            return _too_long("Dictionary", info.max_length, value, location, issues)
        before = len(issues)
        result = {key: convert_value(item, f"{location}.{key[:64]}", issues) for key, item in value.items()}
        return result if len(issues) == before else _FAILED

    return to_dict


def _literal_converter(info: inspect.LiteralType) -> Converter:
    shown = [repr(value) for value in info.values]
    expected = " or ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]

    def to_literal(value: Any, location: str, issues: list[Issue]) -> Any:
        if isinstance(value, str) and value in info.values:
            return value
        return _fail(issues, "literal_error", location, f"Input should be {expected}", value, expected=expected)

    return to_literal


def _union_converter(info: inspect.UnionType) -> Converter:
    """The first branch that fits. When none does, the issues of every branch but null, as pydantic lists them."""
    allows_none = any(isinstance(branch, inspect.NoneType) for branch in info.types)
    branches = [_converter(branch) for branch in info.types if not isinstance(branch, inspect.NoneType)]

    def to_union(value: Any, location: str, issues: list[Issue]) -> Any:
        if value is None and allows_none:
            return None
        collected: list[Issue] = []
        for branch in branches:
            result = branch(value, location, collected)
            if result is not _FAILED:
                return result
        issues.extend(collected)
        return _FAILED

    return to_union


@functools.cache
def _struct_converter(struct: type[msgspec.Struct]) -> Converter:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    members = [(field.name, field.encode_name, _converter(field.type), field.required) for field in info.fields]

    def to_struct(value: Any, location: str, issues: list[Issue]) -> Any:
        if not isinstance(value, dict):
            message = "Input should be a valid dictionary or object to extract fields from"
            return _fail(issues, "model_attributes_type", location, message, value)
        before = len(issues)
        arguments: dict[str, Any] = {}
        for name, key, convert_member, required in members:
            if key in value:
                arguments[name] = convert_member(value[key], f"{location}.{key}", issues)
            elif required:
                _fail(issues, "missing", f"{location}.{key}", "Field required", value)
        return struct(**arguments) if len(issues) == before else _FAILED

    return to_struct


def _converter(info: inspect.Type) -> Converter:
    """The converter of one annotation. TypeError for an annotation that no schema of ours uses."""
    if isinstance(info, inspect.Metadata):
        return _converter(info.type)
    if isinstance(info, inspect.StructType):
        return _struct_converter(info.cls)
    simple: dict[type[inspect.Type], Converter] = {
        inspect.FloatType: _to_float,
        inspect.BoolType: _to_bool,
        inspect.NoneType: _to_none,
        inspect.AnyType: _to_any,
    }
    if type(info) in simple:
        return simple[type(info)]
    makers: dict[type[inspect.Type], Callable[[Any], Converter]] = {
        inspect.IntType: _int_converter,
        inspect.StrType: _string_converter,
        inspect.ListType: _list_converter,
        inspect.DictType: _dict_converter,
        inspect.LiteralType: _literal_converter,
        inspect.UnionType: _union_converter,
    }
    if type(info) not in makers:
        raise TypeError(f"no converter for {info}")
    return makers[type(info)](info)
