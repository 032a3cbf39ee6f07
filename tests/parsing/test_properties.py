"""Whatever a model writes: nothing raises, nothing is lost, and the cuts do not matter."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.parsing.arguments import value_json
from octavo.parsing.formats import output_formats
from octavo.parsing.json_text import escaped
from octavo.parsing.literals import literal_to_json
from tests.parsing.feeding import feed, formats, parser, pieces
from tests.parsing.fixtures import REASONING_FIXTURES, TOOL_FIXTURES

GLUE = ["{", "}", "[", "]", "(", ")", '"', "'", ":", ",", "\\", "\n", " ", "=", "```", "é", "🙂", "<", ">", "null", "1e999"]


@st.composite
def answers(draw: st.DrawFn, texts: list[str]) -> tuple[str, list[int], bool]:
    """Pieces of good answers with words and characters among them, cuts, and whether the end is cut off."""
    part = st.sampled_from(texts).flatmap(
        lambda text: st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(
            lambda ends: text[min(ends) : max(ends)]
        )
    )
    word = st.integers(0, 99).map(lambda number: f" w{number}w ")
    text = "".join(draw(st.lists(st.one_of(part, word, st.sampled_from(GLUE), st.sampled_from(texts)), max_size=7)))
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return text, cuts, draw(st.booleans())


@pytest.mark.parametrize("name", sorted(TOOL_FIXTURES))
def test_any_text_is_read_the_same_however_it_is_cut(name: str) -> None:
    known = formats(name)

    @given(answers([fixture.text for fixture in TOOL_FIXTURES[name]]))
    def check(given: tuple[str, list[int], bool]) -> None:
        text, cuts, is_cut = given
        whole = feed(parser(known), [text], is_cut=is_cut)
        assert feed(parser(known), pieces(text, cuts), is_cut=is_cut) == whole
        assert feed(parser(known), text, is_cut=is_cut) == whole
        if not whole.calls and name != "openai":
            assert whole.content == text

    check()


@pytest.mark.parametrize("name", sorted(REASONING_FIXTURES))
def test_any_reasoning_is_read_the_same_however_it_is_cut(name: str) -> None:
    known = formats(reasoning=name)

    @given(answers([fixture.text for fixture in REASONING_FIXTURES[name]]), st.sampled_from(REASONING_FIXTURES[name]))
    def check(given: tuple[str, list[int], bool], prompt: Any) -> None:
        text, cuts, is_cut = given
        whole = feed(parser(known, prompt.prompt), [text], is_cut=is_cut)
        assert feed(parser(known, prompt.prompt), pieces(text, cuts), is_cut=is_cut) == whole
        assert feed(parser(known, prompt.prompt), text, is_cut=is_cut) == whole
        if name == "openai_gptoss":
            return
        shown, place = whole.reasoning + whole.content, 0
        for letter in shown:  # all of it is in the text, in this order, and no more than two marks are missing
            place = text.index(letter, place) + 1
        assert len(text) - len(shown) <= 2 * 28 + len(text) - len(text.strip())

    check()


@pytest.mark.parametrize("name", ["glm45", "gemma4", "hermes", "llama3_json", "mistral", "pythonic", "qwen3_coder"])
def test_no_word_is_lost(name: str) -> None:
    """Words before, between and behind good calls, and inside of their texts, all come out."""
    known, texts = formats(name), [fixture.text for fixture in TOOL_FIXTURES[name] if fixture.calls]

    @given(st.lists(st.one_of(st.sampled_from(texts), st.integers(0, 999).map("w{}w".format)), max_size=6))
    def check(texts: list[str]) -> None:
        text = " ".join(texts)
        got = feed(parser(known), [text])
        shown = got.content + "".join(arguments for _, arguments in got.calls)
        assert set(re.findall(r"w\d+w", text)) == set(re.findall(r"w\d+w", shown))

    check()


values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=8,
)


@given(values)
def test_python_literals_become_the_same_json(value: Any) -> None:
    assert json.loads(literal_to_json(repr(value)) or "") == value


@given(st.text(st.characters(exclude_categories=[])))
def test_every_text_is_a_json_string(text: str) -> None:
    assert json.loads(f'"{escaped(text)}"') == text
    f'"{escaped(text)}"'.encode()


@given(
    st.text(max_size=20),
    st.sampled_from([None, {}, {"type": "integer"}, {"type": ["string", "null"]}, {"anyOf": [{"type": "object"}]}]),
)
def test_every_value_is_json(text: str, schema: Any) -> None:
    json.loads(value_json(text, schema))
    assert json.loads(value_json(text, {"type": "string"})) == text


def test_regular_expressions_hold_all_back() -> None:
    answer = parser(output_formats("regex", None, pattern=r"(?P<name>\w+)!(?P<arguments>)"))
    assert answer.push("now! and") == []
    assert [type(part).__name__ for part in answer.finish(is_cut=False)] == ["CallBegin", "CallArguments", "Content"]
