"""Structural tags, in both of their forms."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.errors import ValidationError
from octavo.grammar.compile import Judge
from octavo.grammar.matchers import Matchers
from octavo.sampling.structured import StructuredOutputsParams
from octavo.text.tokenizer import Tokenizer
from tests.grammar.walks import accepts, start

ARGUMENTS = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
NUMBER = {"type": "json_schema", "json_schema": {"type": "integer"}}
OLDER = {
    "structures": [
        {"begin": "<f=a>", "schema": ARGUMENTS, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "integer"}, "end": "</f>"},
    ],
    "triggers": ["<f="],
}
TAG = {"begin": "<t>", "content": {"type": "any_text"}, "end": "</t>"}


@pytest.mark.parametrize(
    ("tag", "good", "bad"),
    [
        (OLDER, ["hello", 'hi <f=a>{"x": 1}</f> and <f=b>3</f>.', "a < b"], ['<f=a>{"y": 1}</f>', "<f=c>", "<f=b>3"]),
        (
            {
                "format": {
                    "type": "sequence",
                    "elements": [
                        {"type": "const_string", "value": "A/"},
                        {"type": "or", "elements": [{"type": "regex", "pattern": "[0-9/]+"}, NUMBER]},
                    ],
                }
            },
            ["A/12/3", "A/-7"],
            ["A/", "B/1", "A/x"],
        ),
        (
            {
                "format": {
                    "type": "triggered_tags",
                    "triggers": ["<t"],
                    "tags": [TAG],
                    "at_least_one": True,
                    "stop_after_first": True,
                }
            },
            ["so <t>hello</t>"],
            ["so", "<t>hello</t> more", "<t>hello"],
        ),
        (
            {
                "format": {
                    "type": "tags_with_separator",
                    "separator": ",",
                    "tags": [{"begin": "(", "content": NUMBER, "end": ")"}],
                    "at_least_one": True,
                }
            },
            ["(1),(2)", "(1)"],
            ["", "(1)(2)", "(a)"],
        ),
        ({"format": {"type": "tag", **TAG}}, ["<t>a</t>"], ["a", "<t>a"]),
        ({"format": {"type": "grammar", "grammar": 'start: "a" "b"'}}, ["ab"], ["a"]),
        ({"format": {"type": "any_text", "excludes": ["no", "<"]}}, ["yes", "n o", ""], ["so no more", "a<"]),
        (
            {
                "format": {
                    "type": "tag",
                    "begin": "<",
                    "content": {"type": "any_text", "excludes": ["no"]},
                    "end": ">",
                }
            },
            ["<yes>", "<>"],
            ["<so no>", "<no>", "<yes"],
        ),
    ],
)
def test_what_tags_allow(
    judge: Judge, matchers: Matchers, tokenizer: Tokenizer, tag: Any, good: list[str], bad: list[str]
) -> None:
    for text in (*good, *bad):
        assert accepts(start(judge, matchers, structural_tag=json.dumps(tag)), tokenizer, text) is (text in good), text


@pytest.mark.parametrize(
    ("tag", "text"),
    [
        ({}, "structural_tag must have 'format', or 'structures' and 'triggers'."),
        ([], "structural_tag must be an object."),
        ({"format": {"type": "banana"}}, "structural_tag.format.type must be one of const_string, "),
        (
            {"format": {"type": "sequence", "elements": [{"type": "const_string"}]}},
            "structural_tag.format.elements[0].value must be a text.",
        ),
        ({"format": {"type": "any_text", "excludes": [""]}}, "structural_tag.format.excludes must be a list of one or more"),
        (
            {"structures": [{"begin": "<a>", "end": ""}], "triggers": ["<b"]},
            "structural_tag.triggers has '<b', with which no tag begins.",
        ),
        (
            {"structures": [{"begin": "<a>", "end": ""}, {"begin": "<c>", "end": ""}], "triggers": ["<a"]},
            "structural_tag.structures[1].begin begins with none of the triggers.",
        ),
        ({"structures": [{"begin": "<a>"}], "triggers": ["<a"]}, "structural_tag.structures[0].end must be a text."),
        ({"structures": OLDER["structures"], "triggers": []}, "structural_tag.triggers must be a list of one or more texts"),
        (
            {"format": {"type": "sequence", "elements": [{"type": "const_string", "value": "x"}] * 2000}},
            "structural_tag can have at most 1000 parts.",
        ),
    ],
)
def test_what_is_wrong_is_named(judge: Judge, tag: Any, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        judge.compile(StructuredOutputsParams(structural_tag=json.dumps(tag)))
    assert caught.value.message.startswith(f"The structural tag cannot be enforced: {text}")


def test_schemas_inside_are_checked_as_others_are(judge: Judge) -> None:
    tag = {"format": {"type": "json_schema", "json_schema": {"not": {}}}}
    with pytest.raises(ValidationError) as caught:
        judge.compile(StructuredOutputsParams(structural_tag=json.dumps(tag)))
    assert caught.value.message.startswith("The JSON schema cannot be enforced: $.not: ")
    assert caught.value.message.endswith("(in structural_tag.format)")
