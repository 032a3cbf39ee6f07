"""Texts that broke other parsers. The numbers are those of the bug reports; that each is read the same however it is cut is
checked here too. (More of them are among the fixtures, and over HTTP in tests/server/test_tool_calls.py.)"""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.parsing.parts import merged
from tests.parsing.feeding import Result, every_cut_in_two, feed, formats, parser, pieces, random_cuts
from tests.parsing.fixtures import TOOLS


def read(name: str, text: str, reasoning: str | None = None) -> Result:
    """What a format makes of a text, however it is cut."""
    known = formats(name, reasoning)
    whole = feed(parser(known), [text])
    for cuts in (*every_cut_in_two(text), *random_cuts(text, 20)):
        assert feed(parser(known), pieces(text, cuts)) == whole, cuts
    return whole


def calls(name: str, text: str) -> list[tuple[str, Any]]:
    """The calls, their arguments decoded as strictly as a client may do it."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    return [(call, json.loads(arguments, parse_constant=refuse)) for call, arguments in read(name, text).calls]


def test_c01_no_arguments() -> None:
    assert read("hermes", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>').calls == [("now", "{}")]


@pytest.mark.parametrize("value", ["a/{b,c", "}", "]", '\\"', "\\\\", "<tool_call>"])
def test_c02_unbalanced_characters(value: str) -> None:
    for text in (
        '<tool_call>\n{"name":"run","arguments":{"cmd":"%s"}}\n</tool_call>',
        '<tool_call>{"arguments":{"cmd":"%s"},"name":"run"}',
    ):
        assert read("hermes", text % value).calls == [("run", f'{{"cmd":"{value}"}}')]


@pytest.mark.parametrize("depth", [1, 5])
def test_c11_arguments_that_look_like_calls(depth: int) -> None:
    inner: Any = {"k": 1}
    for _ in range(depth):
        inner = {"name": "now", "parameters": inner}
    text = json.dumps({"name": "save", "parameters": {"options": inner}})
    assert calls("llama3_json", text) == [("save", {"options": inner})]


def test_c13_braces_behind_a_call() -> None:
    got = read("llama3_json", '{"name":"save","parameters":{"x":1}} I took {lookup} and {"q":"x"}')
    assert got.calls == [("save", '{"x":1}')]
    assert got.content == ' I took {lookup} and {"q":"x"}'


@pytest.mark.parametrize(
    "text", ["{}", '{"k": 2} is what I keep', '{"name":"Rex","age":4}', '```\n{"name":"Rex","age":4}\n```']
)
@pytest.mark.parametrize("name", ["llama3_json", "hermes", "json", "mistral", "pythonic", "granite", "phi4_mini_json"])
def test_c14_json_that_is_no_call(name: str, text: str) -> None:
    assert read(name, text) == Result(text, "", [], False)


def test_c16_braces_before_the_marker() -> None:
    got = read("mistral", 'Use the form {x}. [TOOL_CALLS] [{"name":"f","arguments":{"a":1}}]')
    assert (got.content, got.calls) == ("Use the form {x}. ", [("f", '{"a":1}')])
    broken = 'Use the form {x}. [TOOL_CALLS] [{"name":"f","arg'
    assert read("mistral", broken).content == broken


def test_c17_nested_objects() -> None:
    text = '[TOOL_CALLS] [{"name":"f","arguments":{"o":{"p":{"q":[{"r":"]}"}]}}}}]'
    assert calls("mistral", text) == [("f", {"o": {"p": {"q": [{"r": "]}"}]}}})]


def test_c19_nested_python() -> None:
    text = '[save(points=[[1,2],[3,4]], style={"color":"red","w":None,"on":True})]'
    assert calls("pythonic", text) == [
        ("save", {"points": [[1, 2], [3, 4]], "style": {"color": "red", "w": None, "on": True}})
    ]


@pytest.mark.parametrize("value", ["9e400", "-9e400", "[1, 9e400]", "inf", "nan", "float('inf')"])
def test_c20_no_infinity(value: str) -> None:
    got = read("pythonic", f"[weather(r={value}), save(y=1)]")
    assert got.content == f"weather(r={value})"
    assert got.calls == [("save", '{"y": 1}')]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "<tool_call>\n<function=save>\n<parameter=scale>\n%s\n</parameter>\n</function>\n</tool_call>"),
        ("glm45", "<tool_call>save<arg_key>scale</arg_key><arg_value>%s</arg_value></tool_call>"),
    ],
)
@pytest.mark.parametrize("value", ["9e400", "Infinity", "NaN", "-inf"])
def test_c20_no_infinity_in_typed_texts(name: str, text: str, value: str) -> None:
    assert calls(name, text % value) == [("save", {"scale": value})]


def test_c22_brackets_in_strings_and_prose() -> None:
    text = '[save(query="a]b)c")] then [now()]'
    got = read("pythonic", text)
    assert (got.content, [name for name, _ in got.calls]) == (" then ", ["save", "now"])
    assert json.loads(got.calls[0][1]) == {"query": "a]b)c"}
    assert read("pythonic", "[D'Arcy's] notes").content == "[D'Arcy's] notes"


QWEN = "<tool_call>\n<function=save>\n%s</function>\n</tool_call>"


def test_c23_missing_closing_tags() -> None:
    text = QWEN % "<parameter=days>\n1\n<parameter=note>\ntwo\n</parameter>\n"
    assert calls("qwen3_coder", text) == [("save", {"days": 1, "note": "two"})]
    text = text.replace("</function>\n", "")
    assert calls("qwen3_coder", text) == [("save", {"days": 1, "note": "two"})]
    assert calls("qwen3_coder", text.replace("</parameter>\n", "")) == [("save", {"days": 1, "note": "two"})]


@pytest.mark.parametrize(("key", "value"), [("days", "2031-05-02"), ("metric", "maybe"), ("scale", "1,000")])
def test_c25_values_that_do_not_fit(key: str, value: str) -> None:
    assert calls("qwen3_coder", QWEN % f"<parameter={key}>\n{value}\n</parameter>\n") == [("save", {key: value})]


@pytest.mark.parametrize(
    "code",
    [
        'x = "</parameter>"\ny = "</tool_call>"\n',
        "a </parameter> b\n</parameter> c",
        "one </function>\n two <parameter=days> three",
        "</tool_call> at the start\n\nand <parameter=other>\nat a line's start",
        "\nempty lines round it\n",
    ],
)
def test_c26_tags_inside_of_values(code: str) -> None:
    """A value goes on until a `</parameter>` that another tag follows."""
    text = QWEN % f"<parameter=note>\n{code}\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    assert calls("qwen3_coder", text) == [("save", {"note": code, "days": 2})]


def test_c28_a_call_and_what_follows() -> None:
    first, second = QWEN % "<parameter=days>\n1\n</parameter>\n", QWEN % "<parameter=note>\nx\n</parameter>\n"
    got = read("qwen3_coder", first + "\n" + second + "Prose.")
    assert got == Result("Prose.", "", [("save", '{"days": 1}'), ("save", '{"note": "x"}')], True)


def test_c29_a_call_in_one_delta() -> None:
    call = '<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a":1}\n```<｜tool▁call▁end｜>'
    text = f"<｜tool▁calls▁begin｜>{call}<｜tool▁calls▁end｜>"
    assert read("deepseek_v3", text) == Result("", "", [("f", '{"a":1}')], True)


def test_c31_types_of_the_schema() -> None:
    args = [("scale", "10"), ("ids", "[]"), ("note", "20095"), ("city", "true"), ("metric", "true"), ("days", "001")]
    text = "".join(f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in args)
    expected = {"scale": 10, "ids": [], "note": "20095", "city": "true", "metric": True, "days": "001"}
    assert calls("glm45", f"<tool_call>save\n{text}</tool_call>") == [("save", expected)]


def test_c32_doubled_tags_and_tags_inside_of_values() -> None:
    text = "<tool_call>save<arg_key>note</arg_key></arg_key><arg_value>/srv/</arg_key>a</arg_value></tool_call>"
    assert calls("glm45", text) == [("save", {"note": "/srv/</arg_key>a"})]


def test_c49_calls_and_reasoning() -> None:
    call = '<tool_call>{"name":"now","arguments":{}}</tool_call>'
    assert read("hermes", f"<think>I should look.</think>{call}", "qwen3") == Result(
        "", "I should look.", [("now", "{}")], True
    )
    inside = read("hermes", f"<think>I should look.{call}</think>", "qwen3")
    assert inside == Result("", f"I should look.{call}", [], False)


def test_only_one_call() -> None:
    known = formats("hermes")
    text = 'A<tool_call>{"name":"now","arguments":{}}</tool_call> b <tool_call>{"name":"save","arguments":{}}</tool_call>'
    whole = feed(parser(known, only_one_call=True), [text])
    assert whole == Result("A b ", "", [("now", "{}")], True)
    for cuts in every_cut_in_two(text):
        answer = parser(known, only_one_call=True)
        assert feed(answer, pieces(text, cuts)) == whole
        assert answer.is_full
        assert answer.num_calls == 1


@pytest.mark.parametrize("name", ["hermes", "llama3_json", "json"])
def test_deep_nesting_ends_nothing(name: str) -> None:
    text = '{"name":"save","arguments":' + '{"a":' * 5000 + "1" + "}" * 5000 + "}"
    (call,) = feed(parser(formats(name)), ["<tool_call>" * (name == "hermes") + text]).calls
    assert call == ("save", '{"a":' * 5000 + "1" + "}" * 5000)
    deep = f"[save(x={'[' * 5000}{']' * 5000})]"
    assert feed(parser(formats("pythonic")), [deep]) == Result(deep, "", [], False)


@pytest.mark.parametrize(
    ("name", "piece", "end"),
    [
        ("hermes", '<tool_call>{"x":[', "</tool_call>"),
        ("hermes", '<tool_call>{"x":"', ""),
        ("pythonic", "[save(", ""),
        ("pythonic", "[save(a=[", ")"),
        ("granite", '<|tool_call|>[{"x":[', "</tool_call>"),
        ("mistral", "[TOOL_CALLS][[", ""),
        ("deepseek_v3", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>", ""),
        ("qwen3_coder", "<tool_call><function=save><parameter=note></parameter>", ""),
        ("glm45", "<tool_call>save<arg_key>note</arg_key><arg_value></arg_value>", ""),
        ("openai", "<|start|>", "<|message|>"),
    ],
)
def test_work_stays_in_bounds(name: str, piece: str, end: str) -> None:
    """Texts of many beginnings cannot make the parser read them over and over."""
    make = formats(name).tools
    assert make is not None
    tools = make(TOOLS)
    tools.push(piece * (60_000 // len(piece)) + end)
    tools.finish()
    assert tools.scanner.num_reread < 1 << 20


def test_ids_that_mistral_can_read_again() -> None:
    answer = parser(formats("mistral"))
    first, _, second, _ = merged(answer.push("[TOOL_CALLS]now[ARGS]{}[TOOL_CALLS]now[CALL_ID]Ab3dEf7hJ[ARGS]{}"))
    assert len(first.id) == 9  # type: ignore[union-attr]
    assert first.id.isalnum()  # type: ignore[union-attr]
    assert second.id == "Ab3dEf7hJ"  # type: ignore[union-attr]
    third, _ = merged(answer.push("[TOOL_CALLS]now[CALL_ID]Ab3dEf7hJ[ARGS]{}"))
    assert third.id != second.id  # type: ignore[union-attr]
