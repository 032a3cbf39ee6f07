"""Grammars of forced and of strict tool calls, followed at random and read back by the parsers."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest

from octavo.errors import ValidationError
from octavo.grammar.compile import Judge
from octavo.grammar.matchers import Matchers
from octavo.options.parsers import TOOL_PARSERS
from octavo.parsing.formats import OutputFormats, output_formats
from octavo.sampling.structured import StructuredOutputsParams
from octavo.server.openai.tools import ToolChoice, read_tools
from octavo.text.tokenizer import Tokenizer
from tests.grammar.walks import accepts, start, walk
from tests.parsing.feeding import Result, feed, with_special_tokens

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
FORMATS = ["hermes", "granite", "phi4_mini_json", "mistral", "deepseek_v31", "llama3_json", "qwen3_coder", None]


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
def test_c44_required(judge: Judge, matchers: Matchers, tokenizer: Tokenizer, format: str | None, only_one: bool) -> None:
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


GOOD, BAD = {"x": 3}, {"y": 3}
HERMES = '<tool_call>\n{"name": "%s", "arguments": %s}\n</tool_call>'
QWEN = "<tool_call>\n<function=%s>\n%s</function>\n</tool_call>"
GLM = "<tool_call>%s\n%s</tool_call>"
DEEPSEEK = "<｜tool▁calls▁begin｜>%s<｜tool▁calls▁end｜>"
V31 = "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>"
V3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n%s\n```<｜tool▁call▁end｜>"
JSON_LIST = '[{"name": "%s", "arguments": %s}]'
STRICT_FORMS = {
    "hermes": [HERMES, '<tool_calls>[{"name": "%s", "arguments": %s}]</tool_calls>'],
    "granite": [f"<|tool_call|>{JSON_LIST}", f"<tool_call>{JSON_LIST}"],
    "phi4_mini_json": [f"functools{JSON_LIST}", f"<|tool_call|>{JSON_LIST}<|/tool_call|>"],
    "llama3_json": ['<|python_tag|>{"name": "%s", "parameters": %s}'],
    "mistral": ["[TOOL_CALLS]%s[ARGS]%s", f"[TOOL_CALLS]{JSON_LIST}"],
    "deepseek_v3": [V3, DEEPSEEK.replace("%s", V3)],
    "deepseek_v31": [V31, DEEPSEEK.replace("%s", V31)],
}
BARE_FORMS = {
    "json": [JSON_LIST, JSON_LIST[1:-1]],
    "llama3_json": ['{"name": "%s", "parameters": %s}'],
    "granite": [JSON_LIST],
}


@pytest.fixture(scope="module")
def marked(tokenizer: Tokenizer) -> tuple[Judge, Matchers, Tokenizer]:
    """Where all marks of all formats are special tokens."""
    names = {*TOOL_PARSERS} - {"auto", "regex"}
    special = {mark for name in names for mark in getattr(output_formats(name, None).tools, "special", ())}
    other = with_special_tokens(special)
    matchers = Matchers(lambda: other, lambda tokenizer: tokenizer.eos_token_ids)
    return Judge([other.token_text(id) for id in other.special_ids]), matchers, other


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, forms in STRICT_FORMS.items() for form in forms], ids=str)
@pytest.mark.parametrize("are_special", [False, True])
def test_strict_functions_among_free_text(
    judge: Judge, matchers: Matchers, tokenizer: Tokenizer, marked: Any, name: str, form: str, are_special: bool
) -> None:
    """Text is free until a call begins, whether its marks are text or special tokens."""
    if are_special:
        judge, matchers, tokenizer = marked
    wanted = tag(chosen("auto", "point"), output_formats(name, None))

    def is_allowed(text: str) -> bool:
        return accepts(start(judge, matchers, **wanted), tokenizer, text)

    good, bad = form % ("point", json.dumps(GOOD)), form % ("point", json.dumps(BAD))
    assert is_allowed("Just text with {braces}.")
    assert is_allowed("")
    assert is_allowed(good)
    assert is_allowed("Let me see. " + good + form % ("tree", '{"any": [1]}'))
    assert is_allowed(f"Both: {good}{good}")
    assert not is_allowed(bad)
    assert not is_allowed(f"Ok. {bad}")
    assert not is_allowed(f"{good} {bad}")
    assert not is_allowed(form % ("nothing", "{}"))
    assert not is_allowed(good[:-2])


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, forms in BARE_FORMS.items() for form in forms], ids=str)
def test_strict_functions_without_a_mark(
    judge: Judge, matchers: Matchers, tokenizer: Tokenizer, name: str, form: str
) -> None:
    """What begins like a call is one."""
    wanted = tag(chosen("auto", "point"), output_formats(name, None))

    def is_allowed(text: str) -> bool:
        return accepts(start(judge, matchers, **wanted), tokenizer, text)

    good, bad = form % ("point", json.dumps(GOOD)), form % ("point", json.dumps(BAD))
    assert is_allowed(good)
    assert is_allowed(f"{good} and so on {bad}")  # behind text it is no call
    assert is_allowed(f"So: {bad}")
    assert is_allowed("")
    assert not is_allowed(bad)
    assert not is_allowed(f"\n {bad}")
    assert not is_allowed('{"k": 2} is what I keep')


ORDER = {
    "type": "object",
    "properties": {
        "note": {"type": "string"},
        "kind": {"type": "string", "enum": ["tea", "dark coffee"]},
        "count": {"type": "integer", "minimum": 1, "maximum": 99},
        "where": {"$ref": "#/properties/place"},
        "place": {"type": ["object", "null"], "properties": {"x": {"type": "integer"}}, "additionalProperties": False},
    },
    "required": ["note", "kind", "count"],
    "additionalProperties": False,
}
VALUES = {"note": "a < b\n</p>", "kind": "tea", "count": "7", "place": '{"x": 1}'}
QWEN_PARAMETER, GLM_PARAMETER = "<parameter=%s>\n%s\n</parameter>\n", "<arg_key>%s</arg_key>\n<arg_value>%s</arg_value>\n"


@pytest.mark.parametrize(("name", "form", "one"), [("qwen3_coder", QWEN, QWEN_PARAMETER), ("glm45", GLM, GLM_PARAMETER)])
@pytest.mark.parametrize("are_special", [False, True])
def test_strict_functions_whose_arguments_have_marks(
    judge: Judge,
    matchers: Matchers,
    tokenizer: Tokenizer,
    marked: Any,
    name: str,
    form: str,
    one: str,
    are_special: bool,
) -> None:
    if are_special:
        judge, matchers, tokenizer = marked
    functions = [
        {"type": "function", "function": {"name": "order", "strict": True, "parameters": ORDER}},
        {"type": "function", "function": {"name": "other"}},
    ]
    formats = output_formats(name, None)
    choice = read_tools(functions, "auto", looks_for_calls=True)
    wanted = tag(choice, formats)

    def is_allowed(values: dict[str, str], function: str = "order") -> bool:
        text = "Well. " + form % (function, "".join(one % item for item in values.items()))
        good = accepts(start(judge, matchers, **wanted), tokenizer, text)
        if good:
            ((called, arguments),) = read(choice, formats, text).calls
            assert called == function
            if function == "order":
                jsonschema.validate(json.loads(arguments), ORDER)
        return good

    assert accepts(start(judge, matchers, **wanted), tokenizer, "Only text < with > marks.")
    assert is_allowed(VALUES)
    assert is_allowed({**VALUES, "kind": "dark coffee"})
    assert is_allowed({key: VALUES[key] for key in ORDER["required"]})
    assert is_allowed({"anything": "goes", "like": "this"}, "other")
    for wrong in (
        {"kind": "water"},
        {"count": "seven"},
        {"count": "100"},
        {"place": '{"y": 1}'},
        {"place": "here"},
        {"more": "1"},
        {"note": f"a{one % ('count', '5')}"},
    ):
        assert not is_allowed({**VALUES, **wrong}), wrong
    assert not is_allowed({"note": "x", "count": "7"})
    assert not is_allowed({}, "nothing")


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ({"properties": {"a": {"type": "string", "pattern": "a+"}}}, "$.properties.a.pattern"),
        ({"properties": {"a": {"type": "string", "enum": [1]}}}, "$.properties.a.enum"),
        ({"anyOf": [{"properties": {"a": {}}}]}, "$.anyOf"),
        ({"properties": {"a": {}}, "required": ["b"]}, "$.required"),
        ({"properties": {"a>b": {}}}, "$.properties"),
        ({"properties": {"a": {"not": {}}}}, "$.properties.a.not"),
    ],
)
def test_schemas_that_arguments_with_marks_cannot_have(judge: Judge, schema: Any, path: str) -> None:
    functions = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": schema}}]
    choice = read_tools(functions, "auto", looks_for_calls=True)
    with pytest.raises(ValidationError, match=re.escape(f"The JSON schema cannot be enforced: {path}: ")):
        judge.compile(choice.constrained(None, output_formats("qwen3_coder", None)))


@pytest.mark.parametrize("are_special", [False, True])
def test_strict_functions_among_messages(
    judge: Judge, matchers: Matchers, tokenizer: Tokenizer, marked: Any, are_special: bool
) -> None:
    """Of gpt-oss: notes to itself are free, calls follow their schema, and what is neither ends the answer."""
    if are_special:
        judge, matchers, tokenizer = marked
    formats = output_formats("openai", None)
    choice = chosen("auto", "point")
    wanted = tag(choice, formats)
    assert choice.covers_reasoning(formats)

    def is_allowed(text: str) -> bool:
        return accepts(start(judge, matchers, **wanted), tokenizer, text)

    thought = "<|channel|>analysis<|message|>Hm, {x}.<|end|><|start|>assistant"
    preamble = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    final = "<|channel|>final<|message|>It is 3."
    call = "<|channel|>commentary to=functions.%s <|constrain|>json<|message|>%s"
    good, bad = call % ("point", '{"x": 3}'), call % ("point", '{"y": 3}')
    for text in (final, thought + final, good, thought + good, thought + preamble + thought + good):
        assert is_allowed(text), text
    assert is_allowed(thought + call % ("tree", '{"any": 1}'))
    for text in (bad, thought + bad, thought, final + "<|start|>assistant" + bad, call % ("nothing", "{}"), "Free text."):
        assert not is_allowed(text), text
    assert read(choice, formats, thought + good).calls == [("point", '{"x": 3}')]
    assert not chosen("auto").covers_reasoning(formats)
    with pytest.raises(ValidationError, match="cannot go with a response format"):
        choice.constrained(StructuredOutputsParams(json={"type": "object"}), formats)


@pytest.mark.parametrize("name", ["gemma4", "functiongemma", "pythonic", "regex", "raw"])
def test_formats_in_which_strict_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=rf"cannot be enforced in this model's format of calls \({name}\)"):
        chosen("auto", "point").constrained(None, output_formats(name, None, pattern="(?P<name>)(?P<arguments>)"))


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
    assert chosen("auto").constrained(asked, output_formats("hermes", None)) is asked
    assert chosen("none", "point").constrained(None, output_formats("gemma4", None)) is None


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
