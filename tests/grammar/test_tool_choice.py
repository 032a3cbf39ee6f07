"""Grammars of forced and of strict tool calls, followed at random and read back by the parsers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.errors import ValidationError
from octavo.grammar.compile import Judge
from octavo.grammar.matchers import Matchers
from octavo.parsing.formats import OutputFormats, output_formats
from octavo.sampling.structured import StructuredOutputsParams
from octavo.server.openai.tools import ToolChoice, read_tools
from octavo.text.tokenizer import Tokenizer
from tests.grammar.walks import accepts, start, walk
from tests.parsing.feeding import Result, feed

POINT = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
TREE = {
    "type": "object",
    "properties": {
        "leaf": {"$ref": "#/$defs/kind"},
        "children": {"type": "array", "items": {"$ref": "#"}, "minItems": 1, "maxItems": 1},
    },
    "required": ["leaf"],
    "additionalProperties": False,
    "$defs": {"kind": {"enum": ["red", "blue"]}},
}
FORMATS = ["hermes", "granite", "phi4_mini_json", "mistral", "qwen3_coder", None]  # the first three have a form for grammars


def tools(*strict: str) -> list[Any]:
    """Three functions, one without parameters."""
    named = {"point": {"parameters": POINT}, "tree": {"parameters": TREE}, "now": {}}
    return [
        {"type": "function", "function": {"name": name, "strict": name in strict, **more}} for name, more in named.items()
    ]


def chosen(choice: Any, *strict: str, only_one: bool = False) -> ToolChoice:
    """What a request chooses."""
    return read_tools(tools(*strict), choice, looks_for_calls=True, only_one_call=only_one)


def read(choice: ToolChoice, formats: OutputFormats, text: str) -> Result:
    """What the parser makes of an answer."""
    answer = formats.answer("", None, choice.parser(formats), only_one_call=choice.only_one_call)
    assert answer is not None
    return feed(answer, [text])


def tag(choice: ToolChoice, formats: OutputFormats, asked: StructuredOutputsParams | None = None) -> dict[str, Any]:
    """The constraint as arguments of StructuredOutputsParams."""
    params = choice.constrained(asked, formats)
    assert params is not None
    return {kind: getattr(params, kind) for kind in params.given}


def check_arguments(name: str, arguments: str) -> None:
    """They are as the function's schema says."""
    value = json.loads(arguments)
    if name == "point":
        assert [*value] == ["x"]
        assert type(value["x"]) is int
    elif name == "tree":
        assert value["leaf"] in ("red", "blue")
        assert {*value} <= {"leaf", "children"}
        for child in value.get("children", []):
            check_arguments("tree", json.dumps(child))
    else:
        assert (name, value) == ("now", {})


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("only_one", [True, False])
def test_required(judge: Judge, matchers: Matchers, tokenizer: Tokenizer, format: str | None, only_one: bool) -> None:  # C44
    formats = output_formats(format, None)
    choice = chosen("required", only_one=only_one)
    wanted = tag(choice, formats)
    texts = [walk(start(judge, matchers, **wanted), tokenizer, seed, 150) for seed in range(6)]
    ended = [text for text in texts if text is not None]
    assert ended, "some of the walks come to an end"
    for text in ended:
        got = read(choice, formats, text)
        assert (got.content, got.has_calls) == ("", True)
        assert not only_one or len(got.calls) == 1
        for name, arguments in got.calls:
            check_arguments(name, arguments)
    assert not accepts(start(judge, matchers, **wanted), tokenizer, "I would rather talk.")


@pytest.mark.parametrize("name", ["point", "tree", "now"])
def test_named(judge: Judge, matchers: Matchers, tokenizer: Tokenizer, name: str) -> None:
    formats = output_formats("hermes", None)
    choice = chosen({"type": "function", "function": {"name": name}})
    for seed in range(4):
        text = walk(start(judge, matchers, **tag(choice, formats)), tokenizer, seed, 150)
        if text is not None:
            ((called, arguments),) = read(choice, formats, text).calls
            assert (called, arguments) == (name, text.strip())
            check_arguments(name, arguments)


def test_strict_functions_among_free_text(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    formats = output_formats("hermes", None)
    choice = chosen("auto", "point")
    wanted = tag(choice, formats)

    def is_allowed(text: str) -> bool:
        return accepts(start(judge, matchers, **wanted), tokenizer, text)

    call = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
    assert is_allowed("Just text with {braces}.")
    assert is_allowed("Let me see. " + call % ("point", '{"x": 3}') + " and " + call % ("tree", '{"any": [1]}'))
    assert not is_allowed(call % ("point", '{"y": 3}'))
    assert not is_allowed(call % ("nothing", "{}"))
    assert not is_allowed('<tool_call>{"name": "point"')


def test_strict_functions_beside_a_response_format(judge: Judge, matchers: Matchers, tokenizer: Tokenizer) -> None:
    formats = output_formats("hermes", None)
    asked = StructuredOutputsParams(json={"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
    wanted = tag(chosen("auto", "point"), formats, asked)
    for text, good in [
        ('{"a": 1}', True),
        ('<tool_call>\n{"name": "point", "arguments": {"x": 3}}\n</tool_call>', True),
        ("hello", False),
        ('{"b": 1}', False),
    ]:
        assert accepts(start(judge, matchers, **wanted), tokenizer, text) == good


def test_what_cannot_be_forced_is_refused() -> None:
    asked = StructuredOutputsParams(regex="a+")
    with pytest.raises(ValidationError, match="cannot go with a `tool_choice` that forces a call"):
        chosen("required").constrained(asked, output_formats("hermes", None))
    with pytest.raises(ValidationError, match="only with a response format of JSON"):
        chosen("auto", "point").constrained(asked, output_formats("hermes", None))
    with pytest.raises(ValidationError, match="cannot be enforced in this model's format of calls"):
        chosen("auto", "point").constrained(None, output_formats("qwen3_coder", None))
    assert chosen("auto").constrained(asked, output_formats("hermes", None)) is asked
    assert chosen("none", "point").constrained(None, output_formats("qwen3_coder", None)) is None


@pytest.mark.parametrize(
    ("reasoning", "prompt", "after"),
    [
        ("qwen3", "<think>\n", ("", "</think>")),
        ("qwen3", "<think>\n\n</think>\n\n", ("", "")),
        ("qwen3", "<assistant>", ("<think>", "</think>")),
        ("deepseek_r1", "<assistant>", ("", "</think>")),
        ("deepseek_r1", "</think>", ("", "")),
        ("mistral", "[THINK]", ("", "[/THINK]")),
        ("mistral", "", ("[THINK]", "[/THINK]")),
        ("openai_gptoss", "<|start|>assistant", ("", "<|channel|>final<|message|>")),
        (None, "<think>\n", ("", "")),
    ],
)
def test_grammars_begin_behind_the_reasoning(reasoning: str | None, prompt: str, after: tuple[str, str]) -> None:
    formats = output_formats(None, reasoning)
    assert formats.grammar_start(prompt) == after
    if reasoning == "qwen3":
        assert formats.grammar_start("", "<think>I was") == ("", "</think>")
        assert formats.grammar_start("", "<think>I was</think>") == ("", "")
