"""What the masks let through is valid, for every schema; drawn without a model, which would only choose among it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from octavo.errors import ValidationError
from octavo.grammar.compile import Judge
from octavo.grammar.matchers import Matchers
from octavo.text.tokenizer import Tokenizer
from tests.grammar.schemas import SCHEMAS, validate
from tests.grammar.walks import accepts, start, walk

SEEDS = range(12)


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_a_schema_lets_through_validates(judge: Judge, matchers: Matchers, tokenizer: Tokenizer, name: str) -> None:
    texts = [walk(start(judge, matchers, json=SCHEMAS[name]), tokenizer, seed) for seed in SEEDS]
    finished = [text for text in texts if text is not None]
    assert len(finished) > len(SEEDS) // 2
    for text in finished:
        validate(json.loads(text), SCHEMAS[name])


NAMES = st.sampled_from(["a", "b", "c", "x_1", 'q"', "é"])
NUMBERS = st.integers(-50, 50)
TEXTS = st.text('abé"\\\n', max_size=3)
LEAVES = st.one_of(
    st.sampled_from(
        [{"type": "boolean"}, {"type": "null"}, {"type": "string"}, {"type": "number"}, {"type": "integer"}, {}, True]
    ),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.one_of(st.none(), NUMBERS, st.text('abé"\\\n', max_size=3)), min_size=1, max_size=3),
    ),
    st.builds(
        lambda value: {"const": value},
        st.one_of(NUMBERS, st.lists(NUMBERS, max_size=2), st.dictionaries(NAMES, NUMBERS, max_size=2)),
    ),
    st.builds(
        lambda kind, low, size: {"type": kind, "minimum": low, "maximum": low + size},
        st.sampled_from(["integer", "number"]),
        NUMBERS,
        st.integers(0, 20),
    ),
    st.builds(
        lambda low, size: {"type": "number", "exclusiveMinimum": low, "exclusiveMaximum": low + size},
        NUMBERS,
        st.integers(1, 20),
    ),
    st.builds(lambda factor: {"type": "integer", "multipleOf": factor}, st.integers(1, 9)),
    st.builds(
        lambda low, size: {"type": "string", "minLength": low, "maxLength": low + size}, st.integers(0, 5), st.integers(0, 5)
    ),
    st.builds(
        lambda pattern, most: {"type": "string", "pattern": pattern, "maxLength": most},
        st.sampled_from(["^[a-z]+$", "b", "^a|b$", r"\d", r"^\w{2,4}$", "[^x]{2}"]),
        st.integers(2, 8),
    ),
    st.builds(
        lambda name: {"type": "string", "format": name},
        st.sampled_from(["date", "date-time", "uuid", "ipv4", "ipv6", "email"]),
    ),
    st.builds(
        lambda types, most: {"type": types, "maxLength": most},
        st.sampled_from([["string", "null"], ["integer", "string"], ["boolean"]]),
        st.integers(0, 4),
    ),
)


def composed(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas made of schemas."""
    lists = st.lists(inner, min_size=1, max_size=3)
    properties = st.dictionaries(NAMES, inner, max_size=4)
    return st.one_of(
        st.builds(
            _object, properties, st.sets(NAMES, max_size=2), st.one_of(st.booleans(), st.none(), inner), st.integers(0, 4)
        ),
        st.builds(
            lambda items, low, size: {"type": "array", "items": items, "minItems": low, "maxItems": low + size},
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(
            lambda first, rest: {"type": "array", "prefixItems": first, "items": rest},
            lists,
            st.one_of(st.booleans(), inner),
        ),
        st.builds(lambda key, branches: {key: branches}, st.sampled_from(["anyOf", "oneOf", "allOf"]), lists),
        st.builds(lambda base, branches: {**(base if isinstance(base, dict) else {}), "anyOf": branches}, inner, lists),
        st.builds(
            lambda one, pattern: {"type": "object", "patternProperties": {pattern: one}, "additionalProperties": False},
            inner,
            st.sampled_from(["^x_", "a$"]),
        ),
        st.builds(
            lambda one, more: {"$defs": {"d": one}, "$ref": "#/$defs/d", **more},
            inner,
            st.sampled_from([{}, {"maxLength": 3}, {"type": "string"}]),
        ).map(_at_root),
    )


def _object(properties: dict[str, Any], required: set[str], additional: Any, most: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "required": sorted(required)}
    if additional is not None:
        schema["additionalProperties"] = additional
    if most:
        schema["maxProperties"] = most
    return schema


def _at_root(schema: dict[str, Any]) -> Any:
    """References are to the root, so one that is to stand elsewhere is written out."""
    return {"allOf": [schema["$defs"]["d"], {key: schema[key] for key in schema if key not in ("$defs", "$ref")}]}


@given(schema=st.recursive(LEAVES, composed, max_leaves=6), seed=st.integers(0, 3))
def test_random_schemas(judge: Judge, matchers: Matchers, tokenizer: Tokenizer, schema: Any, seed: int) -> None:
    """A schema is refused, or what it lets through is valid: there is no third way."""
    try:
        matcher = start(judge, matchers, json={"allOf": [schema]} if isinstance(schema, bool) else schema)
    except ValidationError:
        return
    text = walk(matcher, tokenizer, seed)
    if text is not None:
        validate(json.loads(text), schema)


CHARACTERS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=6)  # DEL is escaped
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, CHARACTERS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(CHARACTERS, inner, max_size=3)),
    max_leaves=8,
)


@given(value=VALUES, indent=st.sampled_from([None, 1, 2, 4, "\t"]), is_compact=st.booleans())
def test_every_json_object_may_be_written(
    judge: Judge, matchers: Matchers, tokenizer: Tokenizer, value: Any, indent: int | str | None, is_compact: bool
) -> None:
    """Compact, with the usual spaces, or indented; characters as they are."""
    separators = (",", ":") if is_compact else None
    text = json.dumps({"value": value}, indent=indent, ensure_ascii=False, separators=separators)
    assume(tokenizer.decode(tokenizer.encode(text)) == text)  # the vocabulary lacks some bytes
    assert accepts(start(judge, matchers, json_object=True), tokenizer, text)
