"""JSON values to msgspec structs with pydantic's lax rules and error texts, because clients match on both.

`"5"` and `5.0` are taken for an int, `1` for a bool, but never `5` for a string. The problems of a body are collected
before it is refused, up to about `MAX_ISSUES`; the location is the dotted path (`body.messages.0.role`). NaN and infinities
are refused, and so are integers beyond 64 bits: nothing behind the server could carry them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from octavo.server.issues import MAX_ISSUES, Issue, SchemaError
from octavo.server.scalars import (
    FAILED,
    INT64_MAX,
    Converter,
    at_least,
    at_most,
    fail,
    to_any,
    to_bool,
    to_float,
    to_int,
    to_none,
)

StructType = TypeVar("StructType", bound=msgspec.Struct)


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


def _int_converter(info: inspect.IntType) -> Converter:
    def to_bounded_int(value: Any, location: str, issues: list[Issue]) -> Any:
        result = to_int(value, location, issues)
        if result is FAILED:
            return result
        if info.ge is not None and result < info.ge:
            return at_least(info.ge, value, location, issues)
        if info.le is not None and result > info.le:
            return at_most(info.le, value, location, issues)
        return result

    return to_int if info.ge is None and info.le is None else to_bounded_int


def _string_converter(info: inspect.StrType) -> Converter:
    def to_string(value: Any, location: str, issues: list[Issue]) -> Any:
        if not isinstance(value, str):
            return fail(issues, "string_type", location, "Input should be a valid string", value)
        if info.max_length is not None and len(value) > info.max_length:
            message = f"String should have at most {info.max_length} characters"
            return fail(issues, "string_too_long", location, message, value, max_length=info.max_length)
        return value

    return to_string


def _too_long(field_type: str, limit: int, value: Any, location: str, issues: list[Issue]) -> Any:
    message = f"{field_type} should have at most {limit} items after validation, not {len(value)}"
    return fail(
        issues, "too_long", location, message, value, field_type=field_type, max_length=limit, actual_length=len(value)
    )


def _list_converter(info: inspect.ListType) -> Converter:
    convert_item = _converter(info.item_type)
    is_plain = _plain_test(info.item_type)

    def to_list(value: Any, location: str, issues: list[Issue]) -> Any:
        if not isinstance(value, list):
            return fail(issues, "list_type", location, "Input should be a valid list", value)
        if info.max_length is not None and len(value) > info.max_length:
            return _too_long("List", info.max_length, value, location, issues)
        if is_plain(value):
            return value
        before = len(issues)
        result = []
        for i, item in enumerate(value):
            result.append(convert_item(item, f"{location}.{i}", issues))
            if len(issues) - before >= MAX_ISSUES:
                break
        return result if len(issues) == before else FAILED

    return to_list


def _plain_test(item: inspect.Type) -> Callable[[list[Any]], bool]:
    """A quick test for lists whose items need no conversion, as all lists of a good client are."""
    if isinstance(item, inspect.AnyType):
        return lambda values: True
    if isinstance(item, inspect.IntType):
        low = -INT64_MAX if item.ge is None else item.ge
        high = INT64_MAX if item.le is None else item.le
        return lambda values: all(type(value) is int and low <= value <= high for value in values)
    return lambda values: False


def _dict_converter(info: inspect.DictType) -> Converter:
    convert_value = _converter(info.value_type)
    takes_all = isinstance(info.value_type, inspect.AnyType)

    def to_dict(value: Any, location: str, issues: list[Issue]) -> Any:
        if not isinstance(value, dict):
            return fail(issues, "dict_type", location, "Input should be a valid dictionary", value)
        if info.max_length is not None and len(value) > info.max_length:
            return _too_long("Dictionary", info.max_length, value, location, issues)
        if takes_all:
            return value
        before = len(issues)
        result = {}
        for key, item in value.items():
            result[key] = convert_value(item, f"{location}.{key[:64]}", issues)
            if len(issues) - before >= MAX_ISSUES:
                break
        return result if len(issues) == before else FAILED

    return to_dict


def _literal_converter(info: inspect.LiteralType) -> Converter:
    shown = [repr(value) for value in info.values]
    expected = " or ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]

    def to_literal(value: Any, location: str, issues: list[Issue]) -> Any:
        if isinstance(value, str) and value in info.values:
            return value
        return fail(issues, "literal_error", location, f"Input should be {expected}", value, expected=expected)

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
            if result is not FAILED:
                return result
        issues.extend(collected)
        return FAILED

    return to_union


@functools.cache
def _struct_converter(struct: type[msgspec.Struct]) -> Converter:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    members = [(field.name, field.encode_name, _converter(field.type), field.required) for field in info.fields]

    def to_struct(value: Any, location: str, issues: list[Issue]) -> Any:
        if not isinstance(value, dict):
            message = "Input should be a valid dictionary or object to extract fields from"
            return fail(issues, "model_attributes_type", location, message, value)
        before = len(issues)
        arguments: dict[str, Any] = {}
        for name, key, convert_member, required in members:
            if key in value:
                arguments[name] = convert_member(value[key], f"{location}.{key}", issues)
            elif required:
                fail(issues, "missing", f"{location}.{key}", "Field required", value)
        return struct(**arguments) if len(issues) == before else FAILED

    return to_struct


def _converter(info: inspect.Type) -> Converter:
    """The converter of one annotation. TypeError for an annotation that no schema of ours uses."""
    if isinstance(info, inspect.Metadata):
        return _converter(info.type)
    if isinstance(info, inspect.StructType):
        return _struct_converter(info.cls)
    simple: dict[type[inspect.Type], Converter] = {
        inspect.FloatType: to_float,
        inspect.BoolType: to_bool,
        inspect.NoneType: to_none,
        inspect.AnyType: to_any,
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
