"""Replays of what went wrong elsewhere; the numbers are those of the cases."""

from __future__ import annotations

import json
import random
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from octavo.errors import ValidationError
from octavo.grammar.compile import Judge
from octavo.grammar.matchers import Matchers
from octavo.sampling.structured import StructuredOutputsParams
from octavo.text.tokenizer import Tokenizer
from tests.grammar.schemas import validate
from tests.grammar.walks import accepts, allowed, start, walk


def refusal(judge: Judge, **params: Any) -> str:
    """The text of the 400."""
    with pytest.raises(ValidationError) as caught:
        judge.compile(StructuredOutputsParams(**params))
    assert caught.value.status == 400
    return caught.value.message


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
        {"type": "string", "pattern": "^[a-z]+$", "minLength": 4, "maxLength": 9},
        {"type": "string", "format": "ipv4", "maxLength": 9},
    ],
)
def test_c52_pattern_or_format_with_a_length(judge: Judge, matchers: Matchers, tokenizer: Tokenizer, schema: Any) -> None:
    texts = [walk(start(judge, matchers, json=schema), tokenizer, seed) for seed in range(40)]
    assert sum(text is not None for text in texts) >= 35
    for text in filter(None, texts):
        validate(json.loads(text), schema)


def test_c52_a_format_that_no_such_length_has(judge: Judge) -> None:
    schema = {"type": "object", "properties": {"d": {"type": "string", "format": "date", "maxLength": 5}}, "required": ["d"]}
    assert refusal(judge, json=schema).startswith("The JSON schema cannot be enforced: $.properties.d: Unsatisfiable schema")


@pytest.mark.parametrize("rest", ["", "T00:00:00Z"])
def test_years_are_those_of_calendars(judge: Judge, matchers: Matchers, tokenizer: Tokenizer, rest: str) -> None:
    for more in ({}, {"maxLength": 30}, {"allOf": [{"minLength": 5}]}):
        schema = {"type": ["string", "null"], "format": "date-time" if rest else "date", **more}
        for year, good in (("0000", False), ("0001", True), ("0400", True), ("2031", True)):
            assert accepts(start(judge, matchers, json=schema), tokenizer, f'"{year}-02-03{rest}"') is good
        assert not accepts(start(judge, matchers, json=schema), tokenizer, f'"2031-02-30{rest}"')


def test_c53_an_escape_that_is_none(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    matcher = start(judge, matchers, json={"type": "string", "pattern": r"^wait\!$"})
    assert walk(matcher, tokenizer, 0) == '"wait!"'


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (
            {"properties": {"c": {"$ref": "#/$defs/C"}}, "$defs": {"C": {"enum": ["red", "blue"]}}, "type": "object"},
            ['{"c":"red"}', '{"c":"blue"}'],
            ['{"c":"green"}', '{"c":{}}', '{"c":"\\"red\\""}'],
        ),
        (
            {"anyOf": [{"const": "x"}, {"enum": [1, None, True, {"a": 1}]}]},
            ['"x"', "1", "null", "true", '{"a":1}'],
            ['"y"', "2", "false", '{"a":2}', '"\\"x\\""'],
        ),
    ],
)
def test_c55_enums_behind_references_and_in_any_of(
    judge: Judge, matchers: Matchers, tokenizer: Tokenizer, schema: Any, good: list[str], bad: list[str]
) -> None:
    assert [text for text in good if not accepts(start(judge, matchers, json=schema), tokenizer, text)] == []
    assert [text for text in bad if accepts(start(judge, matchers, json=schema), tokenizer, text)] == []


def test_c56_recursion_and_references_into_the_schema(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    tree = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}}},
        "additionalProperties": False,
    }
    assert accepts(start(judge, matchers, json=tree), tokenizer, '{"children":[{"children":[]},{}]}')
    assert not accepts(start(judge, matchers, json=tree), tokenizer, '{"children":[{"children":[1]}]}')
    inner = {
        "type": "object",
        "properties": {"a": {"anyOf": [{"enum": [1, 2]}]}, "b": {"$ref": "#/properties/a/anyOf/0"}},
        "required": ["b"],
    }
    assert accepts(start(judge, matchers, json=inner), tokenizer, '{"b":2}')
    assert not accepts(start(judge, matchers, json=inner), tokenizer, '{"b":3}')
    missing = {"type": "object", "properties": {"a": {"items": {"$ref": "#/$defs/none"}}}}
    assert "$.properties.a.items.$ref: Pointer '/$defs/none' does not exist" in refusal(judge, json=missing)
    assert "$.$defs.a: no text satisfies it" in refusal(
        judge, json={"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}
    )


@pytest.mark.parametrize("name", ["a b", "List[int]", "é", 'q"', "100%25", "x^y|z"])
def test_names_in_references_may_be_any(judge: Judge, matchers: Matchers, tokenizer: Tokenizer, name: str) -> None:
    schema = {"$ref": f"#/$defs/{name}", "$defs": {name.replace("%25", "%"): {"enum": ["ok"]}}}
    assert accepts(start(judge, matchers, json=schema), tokenizer, '"ok"')
    bad = {"type": "object", "properties": {name: {"type": "array", "items": {"pattern": "("}}}}
    assert f"$.properties.{name}.items.pattern: regex" in refusal(judge, json=bad)


def test_c58_what_can_be_kept_is_kept(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 10, "multipleOf": 3}},
        "required": ["n"],
    }
    kept = [n for n in range(-3, 21) if accepts(start(judge, matchers, json=schema), tokenizer, f'{{"n":{n}}}')]
    assert kept == [3, 6, 9]


@pytest.mark.parametrize(
    ("inner", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "object", "minProperties": 1}, "minProperties"),
        ({"not": {"type": "string"}}, "not"),
        ({"if": {"type": "string"}, "then": {"minLength": 1}}, "if"),
        ({"type": "object", "dependentRequired": {"a": ["b"]}}, "dependentRequired"),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({"type": "array", "contains": {"type": "integer"}}, "contains"),
        ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"$dynamicRef": "#a"}, "$dynamicRef"),
        ({"$ref": "https://example.com/schema"}, "$ref"),
        ({"$id": "https://example.com/inner", "type": "string"}, "$id"),
        ({"type": "string", "format": "regex"}, "format"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern"),
        ({"type": "string", "maxLenght": 3}, "maxLenght"),
        ({"type": "integer", "minimum": "1"}, "minimum"),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, "exclusiveMinimum"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
        ({"x-guidance": {"lenient": True}}, "x-guidance"),
        ({"type": "banana"}, "type"),
        ({"enum": []}, "enum"),
        ({"anyOf": []}, "anyOf"),
        ({"required": "a"}, "required"),
        ({"minLength": -1}, "minLength"),
    ],
)
def test_c58_what_cannot_is_named_with_its_path(judge: Judge, inner: Any, keyword: str) -> None:
    message = refusal(judge, json={"type": "object", "properties": {"n": {"type": "array", "items": inner}}})
    assert message.startswith(f"The JSON schema cannot be enforced: $.properties.n.items.{keyword}: ")
    assert message.endswith("(parameter=structured_outputs)")


def test_annotations_do_not_matter(judge: Judge) -> None:
    notes = {
        "title": "T",
        "description": "D",
        "default": 1,
        "examples": [1],
        "deprecated": True,
        "x-order": 3,
        "nullable": True,
    }
    plain = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    noted = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **notes,
        **plain,
        "properties": {"a": {"type": "integer", **notes}},
    }
    assert judge.compile(StructuredOutputsParams(json=noted)) == judge.compile(StructuredOutputsParams(json=plain))
    named = {"type": "object", "properties": {"title": {"type": "integer"}, "default": {"enum": [{"title": 1}]}}}
    assert (
        json.loads(judge.compile(StructuredOutputsParams(json=named)))["grammars"][0]["json_schema"]["properties"]
        == named["properties"]
    )


def test_c59_names_by_pattern_and_no_others(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "patternProperties": {"^x_": {"type": "integer"}}, "additionalProperties": False}
    for text, good in (('{"x_a":1}', True), ('{"x_a":"1"}', False), ('{"y":1}', False), ("{}", True)):
        assert accepts(start(judge, matchers, json=schema), tokenizer, text) is good


@pytest.mark.parametrize("schema", [{}, {"type": "number"}, {"type": "integer"}])
def test_c61_a_number_may_end_after_each_digit(judge: Judge, matchers: Matchers, tokenizer: Tokenizer, schema: Any) -> None:
    matcher = start(judge, matchers, json=schema)
    for token_id in tokenizer.encode("1234567"):
        matcher.follow([token_id])
        assert tokenizer.eos_token_id in allowed(matcher, tokenizer.vocab_size)


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "number"},
        {"type": "integer"},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "integer", "multipleOf": 7},
        {"type": "array", "items": {"type": "number"}, "maxItems": 1},
    ],
)
def test_c61_numbers_end_whatever_is_preferred(judge: Judge, matchers: Matchers, tokenizer: Tokenizer, schema: Any) -> None:
    digits = {token_id for token_id in range(tokenizer.vocab_size) if tokenizer.token_bytes(token_id).isdigit()}
    for seed in range(3):
        generator = random.Random(seed)
        matcher, text = start(judge, matchers, max_digits=32, json=schema), b""
        while len(text) < 200:
            ids = allowed(matcher, tokenizer.vocab_size).tolist()
            wanted = sorted(digits.intersection(ids))
            if not wanted and tokenizer.eos_token_id in ids:
                break
            token_id = generator.choice(wanted or ids)
            matcher.follow([token_id])
            text += tokenizer.token_bytes(token_id)
        assert 0 < len(text) < 200
        validate(json.loads(text), schema)


def test_digits_may_go_on_where_they_must(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    schema = {"type": "string", "pattern": "^[0-9]{50}$"}
    assert accepts(start(judge, matchers, max_digits=32, json=schema), tokenizer, '"' + "7" * 50 + '"')


@pytest.mark.parametrize("before", ['"', '"a', '"\\"', '"\\\\\\"', '{"k": "', '["a", 1, "'])
def test_digits_of_strings_are_not_counted(judge: Judge, matchers: Matchers, tokenizer: Tokenizer, before: str) -> None:
    end = {"{": '"}', "[": '"]'}.get(before[0], '"')
    text = before + "7" * 50 + end
    json.loads(text)
    assert accepts(start(judge, matchers, max_digits=32, json={}), tokenizer, text)
    behind = '["\\\\", ' + "7" * 40 + "]"
    assert not accepts(start(judge, matchers, max_digits=32, json={}), tokenizer, behind)


def test_c61_white_space_ends(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    """Whatever is preferred, after a bounded amount of space something else must follow."""
    space = {token_id for token_id in range(tokenizer.vocab_size) if not tokenizer.token_bytes(token_id).strip(b" \t\r\n")}
    for seed in range(5):
        generator = random.Random(seed)
        matcher = start(judge, matchers, json={"type": "object"})
        matcher.follow(tokenizer.encode("{"))
        length = 0
        while choices := sorted(
            space.intersection(allowed(matcher, tokenizer.vocab_size).tolist()) - {tokenizer.eos_token_id}
        ):
            token_id = generator.choice(choices)
            length += len(tokenizer.token_bytes(token_id))
            matcher.follow([token_id])
        assert 0 < length <= 22


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"regex": "["}, "structured_outputs.regex cannot be enforced: regex parse error: unclosed character class"),
        ({"regex": "(?:(?:(?:(?:a?){100}){100}){100})b"}, "structured_outputs.regex cannot be enforced: lexer error"),
        ({"regex": r"(a)\1"}, "structured_outputs.regex cannot be enforced: regex parse error: backreferences"),
        ({"json": {"type": "banana"}}, "The JSON schema cannot be enforced: $.type: it must be one of null, boolean, "),
        ({"json": "not json"}, "structured_outputs.json is not JSON: Expecting value"),
        ({"json": ""}, "structured_outputs.json is not JSON: Expecting value"),
        ({"json": "[1]"}, "A JSON schema must be an object or a boolean, but $ is list."),
        ({"json": '{"minimum": NaN}'}, "structured_outputs.json is not JSON: NaN"),
        ({"json": "false"}, "The JSON schema cannot be enforced: $: "),
        ({"grammar": "start: a"}, 'structured_outputs.grammar cannot be enforced: at 1(8): unknown name: "a"'),
        ({"grammar": "root ::= a"}, "structured_outputs.grammar cannot be enforced: Rule 'a' not found"),
        ({"grammar": "root ::= " + "(" * 50_000}, "structured_outputs.grammar cannot be enforced: maximum recursion depth"),
        (
            {"json": {"type": "object"}, "whitespace_pattern": "["},
            "structured_outputs.whitespace_pattern cannot be enforced: regex",
        ),
    ],
)
def test_c62_what_cannot_be_compiled_is_told(judge: Judge, params: dict[str, Any], text: str) -> None:
    assert refusal(judge, **params).startswith(text)


def test_c62_an_exponential_expression_is_followed_in_linear_time(
    judge: Judge, matchers: Matchers, tokenizer: Tokenizer
) -> None:
    matcher = start(judge, matchers, regex="(a+)+$")
    assert accepts(matcher, tokenizer, "a" * 200)


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({}, "structured_outputs must give one of 'json', "),
        ({"json_object": False}, "structured_outputs must give one of 'json', "),
        (
            {"json": {}, "regex": "a"},
            "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').",
        ),
        ({"choice": []}, "structured_outputs.choice must be a list of one or more texts"),
        ({"choice": ["a", ""]}, "structured_outputs.choice must be a list of one or more texts"),
        ({"regex": 5}, "structured_outputs.regex must be str, got int."),
        ({"json": [1]}, "structured_outputs.json must be str or dict, got list."),
        (
            {"json": {"enum": [float("nan")]}, "disable_any_whitespace": 1},
            "structured_outputs.disable_any_whitespace must be a boolean.",
        ),
        ({"regex": "a" * 300_000}, "structured_outputs.regex can have at most 262144 characters, got 300000."),
        ({"json": {"enum": ["a" * 300_000]}}, "structured_outputs.json can have at most 262144 characters"),
        ({"choice": ["a"] * 10_001}, "structured_outputs.choice can hold at most 10000 texts, got 10001."),
        (
            {"regex": "a", "whitespace_pattern": " "},
            "whitespace_pattern belongs to 'json' and 'json_object', not to 'regex'.",
        ),
        ({"json": {"enum": [{1, 2}]}}, "structured_outputs.json must be a JSON schema, which can be written as JSON"),
    ],
)
def test_c62_what_is_wrong_before_anything_is_compiled(params: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        StructuredOutputsParams(**params)
    assert caught.value.message.startswith(text)


def test_c64_the_schemas_order_and_every_subset_of_the_optional(
    judge: Judge, matchers: Matchers, tokenizer: Tokenizer
) -> None:
    schema = {
        "type": "object",
        "properties": {"z": {"enum": [1]}, "a": {"enum": [2]}, "m": {"enum": [3]}},
        "required": ["a"],
    }
    values = {"z": 1, "a": 2, "m": 3}
    subsets = [("a",), ("z", "a"), ("a", "m"), ("z", "a", "m")]
    for names in (names for size in range(4) for names in combinations(values, size)):
        text = json.dumps({name: values[name] for name in names})
        assert accepts(start(judge, matchers, json=schema), tokenizer, text) is (names in subsets)
    assert not accepts(start(judge, matchers, json=schema), tokenizer, '{"a": 2, "z": 1}')


@pytest.mark.parametrize("text", ["東京 🙂 Zürich", "👩‍👩‍👧"])
def test_c65_characters_stand_for_themselves(judge: Judge, matchers: Matchers, tokenizer: Tokenizer, text: str) -> None:
    """Also those whose bytes are spread over several tokens, which are allowed one after the other."""
    schema = {"type": "object", "properties": {"t": {"type": "string", "maxLength": 20}}, "required": ["t"]}
    written = json.dumps({"t": text}, ensure_ascii=False)
    assert accepts(start(judge, matchers, json=schema), tokenizer, written)
    ids = tokenizer.encode(written)
    assert any("\ufffd" in tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids)
    assert not accepts(start(judge, matchers, json=schema), tokenizer, json.dumps({"t": text}))


def test_choices_are_taken_literally(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    choices = ['a"b', "c\\d", "e\nf", "/g/", "日本", "a", "{x}"]
    assert all(accepts(start(judge, matchers, choice=choices), tokenizer, choice) for choice in choices)
    assert not any(accepts(start(judge, matchers, choice=choices), tokenizer, text) for text in ("", "ab", "cd", "g", "x"))


def test_how_json_is_written(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    for options, good, bad in (
        ({"disable_any_whitespace": True}, ['{"a":1}'], ['{"a": 1}', '{ "a":1}']),
        ({"whitespace_pattern": "__"}, ['{"a":__1}'], ['{"a": 1}']),
        ({"disable_additional_properties": True}, ['{"a": 1}'], ['{"a": 1, "b": 2}']),
        ({}, ['{"a":1}', '{\n  "a": 1\n}', '{"a": 1, "b": 2}'], ['{"a":' + " " * 40 + "1}"]),
    ):
        for text in (*good, *bad):
            assert accepts(start(judge, matchers, json=schema, **options), tokenizer, text) is (text in good)


def test_no_token_behind_the_vocabulary_is_allowed(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    matcher = start(judge, matchers, regex="[\\s\\S]*")
    assert matcher.mask is not None
    bits = np.unpackbits(np.frombuffer(matcher.mask, np.uint8), bitorder="little")
    assert not bits[tokenizer.vocab_size :].any()
    assert not bits[sorted(tokenizer.special_ids - set(tokenizer.eos_token_ids))].any()


def test_free_text_until_a_marker(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    """As after a reasoning block: the marker may be cut into tokens in any way, and begin again."""
    ids = tokenizer.encode('hm </thin </think>{"a"', add_special_tokens=False)
    matcher = start(judge, matchers, "</think>", json={"enum": [5]})
    masks = []
    for token_id in ids:
        masks.append(matcher.mask is None)
        matcher.follow([token_id])
    text = b"".join(tokenizer.token_bytes(token_id) for token_id in ids[: masks.count(True)])
    assert text.startswith(b"hm </thin </think>")
    assert masks == sorted(masks, reverse=True)
    assert True in masks[1:]


def test_a_reasoning_block_that_may_be_missing(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    """Its first token may come in place of the grammar's, and only as the first; the grammar then waits for its end."""
    (opening,) = tokenizer.encode("<|im_start|>")
    end = "</think>"
    ids = tokenizer.encode(end)
    without = start(judge, matchers, end, opening, choice=["yes"])
    assert opening in allowed(without, tokenizer.vocab_size)
    assert accepts(without, tokenizer, "yes")
    thinking = start(judge, matchers, end, opening, choice=["yes"])
    thinking.follow([opening, *tokenizer.encode("no, yes")])
    assert thinking.mask is None
    thinking.follow(ids)
    assert opening not in allowed(thinking, tokenizer.vocab_size)
    assert accepts(thinking, tokenizer, "yes")


def test_a_matcher_that_starts_late_is_where_it_was(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    """As after a preemption."""
    ids = tokenizer.encode('{"a": [1, 2')
    stepwise = start(judge, matchers, json_object=True)
    for token_id in ids:
        stepwise.follow([token_id])
    late = start(judge, matchers, json_object=True)
    late.follow(ids)
    assert late.mask == stepwise.mask
