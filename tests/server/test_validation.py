"""The converter of request bodies, against pydantic itself: what it takes, and the words in which it refuses."""

from __future__ import annotations

import ast
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.server.body import decode_json
from octavo.server.issues import SchemaError
from octavo.server.openai.chat_schema import ChatCompletionRequest
from octavo.server.validation import convert


class Ours(msgspec.Struct, kw_only=True):
    i: int | None = None
    f: float | None = None
    b: bool | None = None
    s: str | None = None
    ints: list[int] | None = None
    bounded: Annotated[int, msgspec.Meta(ge=1)] | None = None
    biases: dict[str, float] | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=4)] | None = None
    kind: Literal["a", "b", "c"] | None = None


class Theirs(pydantic.BaseModel):
    i: int | None = None
    f: float | None = None
    b: bool | None = None
    s: str | None = None
    ints: list[int] | None = None
    bounded: Annotated[int, pydantic.Field(ge=1)] | None = None
    biases: dict[str, float] | None = None
    stop: str | Annotated[list[str], pydantic.Field(max_length=4)] | None = None
    kind: Literal["a", "b", "c"] | None = None


TRICKY_TEXTS = [
    "",
    " 5 ",
    "5.0",
    "5.",
    "1_0",
    "1__0",
    "_1",
    "+5",
    "5e1",
    "0x5",
    "١",
    "true",
    "Yes",
    "ON",
    "t",
    " true ",
    "-0",
    "007",
]
# pydantic takes these for floats, which no answer of ours could repeat in JSON
texts = st.text(max_size=5).filter(lambda text: text.strip().strip("+-").lower() not in ("nan", "inf"))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-3, 3),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([0.0, 1.0, 2.0, -1.5]),
    texts,
    st.sampled_from(TRICKY_TEXTS),
    st.sampled_from(["a", "b", "d"]),
)
values = st.one_of(scalars, st.lists(scalars, max_size=6), st.dictionaries(st.text(max_size=3), scalars, max_size=3))
fields = st.sampled_from(list(Theirs.model_fields))


def verdict_of_pydantic(body: dict[str, Any]) -> tuple[str, Any]:
    """Its value, or its errors with the location as a server names it: without the branches of a union."""
    try:
        (name,) = body
        return "value", getattr(Theirs.model_validate(body), name)
    except pydantic.ValidationError as error:
        return "errors", [(e["type"], e["msg"]) for e in error.errors(include_url=False)]


@given(fields, values)
def test_values_and_errors_are_those_of_pydantic(name: str, value: Any) -> None:
    try:
        ours: tuple[str, Any] = ("value", getattr(convert(Ours, {name: value}), name))
    except SchemaError as error:
        lines = error.message.splitlines()
        assert lines[0] == f"{len(lines) - 1} validation error{'s' if len(lines) > 2 else ''}:"
        errors = [ast.literal_eval(line.strip()) for line in lines[1:]]
        assert all(each["loc"].startswith(f"body.{name}") for each in errors)
        ours = ("errors", [(each["type"], each["msg"]) for each in errors])
    theirs = verdict_of_pydantic({name: value})
    assert ours == theirs
    assert [type(part) for part in flatten(ours[1])] == [type(part) for part in flatten(theirs[1])]


def flatten(value: Any) -> list[Any]:
    return [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]


@pytest.mark.parametrize(
    ("body", "text", "parameter"),
    [
        (
            {"messages": [], "max_tokens": "abc"},
            "1 validation error:\n  {'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid "
            "integer, unable to parse string as an integer', 'input': 'abc'}",
            "body.max_tokens",
        ),
        (
            {"model": "m"},
            "1 validation error:\n  {'type': 'missing', 'loc': 'body.messages', 'msg': 'Field required', 'input': "
            "'<dict of 1 items>'}",
            "body.messages",
        ),
        (
            {"messages": [], "stop": ["a"] * 17},
            "2 validation errors:\n  {'type': 'string_type', 'loc': 'body.stop', 'msg': 'Input should be a valid string', "
            "'input': '<list of 17 items>'}\n  {'type': 'too_long', 'loc': 'body.stop', 'msg': 'List should have at most 16 "
            "items after validation, not 17', 'input': '<list of 17 items>', 'ctx': {'field_type': 'List', 'max_length': "
            "16, 'actual_length': 17}}",
            "body.stop",
        ),
    ],
)
def test_texts_are_those_of_the_wire_capture(body: dict[str, Any], text: str, parameter: str) -> None:
    with pytest.raises(SchemaError) as caught:
        convert(ChatCompletionRequest, body)
    assert (caught.value.message, caught.value.parameter) == (text, parameter)


def test_at_most_ten_errors_are_shown_and_all_are_counted() -> None:
    with pytest.raises(SchemaError) as caught:
        convert(Ours, {"ints": ["x"] * 25})
    assert caught.value.message.startswith("25 validation errors:\n")
    assert len(caught.value.message.splitlines()) == 11


@pytest.mark.parametrize("body", [{"ints": ["x"] * 100_000}, {"biases": dict.fromkeys(map(str, range(100_000)), "x")}])
def test_a_list_with_many_errors_is_given_up(body: dict[str, Any]) -> None:
    with pytest.raises(SchemaError) as caught:
        convert(Ours, body)
    assert caught.value.message.startswith("100 validation errors:\n")


@pytest.mark.parametrize("name", ["i", "f", "bounded"])
@pytest.mark.parametrize("value", [10**400, -(10**400), "1" * 400, "9" * 5000])
def test_numbers_that_nothing_could_carry_are_refused(name: str, value: Any) -> None:
    with pytest.raises(SchemaError):
        convert(Ours, {name: value})


@pytest.mark.parametrize(
    ("body", "location", "reason"),
    [
        (b"{bad json", "body.1", "Expecting property name enclosed in double quotes"),
        (b'{"a": 1} x', "body.9", "Extra data"),
        (b'{"a": NaN}', "body.6", "JSON is malformed: invalid character (byte 6)"),
        (b'{"a": -Infinity}', "body.7", "JSON is malformed: invalid character (byte 7)"),
        (b'{"a": "\\ud800"}', "body.0", "Lone surrogate in a string"),
        (b'{"a": "\xff"}', "body.7", "Invalid UTF-8"),
        (b'{"a": 1e400}', "body.0", "Number out of range - at `$[...]`"),
        (b"[" * 100_000, "body.0", "Nested too deeply, or a number with too many digits"),
        (b'{"a": ' + b"9" * 5000 + b"}", "body.0", "Nested too deeply, or a number with too many digits"),
    ],
)
def test_c88_c130_what_is_no_json_is_refused_with_its_place(body: bytes, location: str, reason: str) -> None:
    with pytest.raises(SchemaError) as caught:
        decode_json(body)
    assert caught.value.parameter == location
    assert f"'ctx': {{'error': {reason!r}}}" in caught.value.message


def test_of_a_repeated_member_the_last_counts() -> None:
    assert decode_json(b'{"a": 1, "a": 2}') == {"a": 2}
