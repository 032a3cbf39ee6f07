"""Every format reads its texts, and the same from them however they are cut."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.request import RequestDelta
from octavo.options.parsers import REASONING_PARSERS, TOOL_PARSERS
from octavo.parsing.answer import AnswerParser
from octavo.parsing.formats import output_formats, recognized_reasoning, recognized_tools
from octavo.parsing.parts import CallArguments, CallBegin, Part, reasoning_and_calls
from octavo.parsing.pipeline import OutputPipeline
from octavo.sampling.params import SamplingParams
from octavo.text.tokenizer import Tokenizer, load_tokenizer
from tests.parsing.feeding import every_cut_in_two, feed, formats, parser, pieces, random_cuts, with_special_tokens
from tests.parsing.fixtures import PATTERN, REASONING_FIXTURES, TOOL_FIXTURES, Fixture, Thought

TOOLS = [(name, fixture) for name, fixtures in TOOL_FIXTURES.items() for fixture in fixtures]
THOUGHTS = [(name, fixture) for name, fixtures in REASONING_FIXTURES.items() for fixture in fixtures]
ALIASES = {
    "glm47": "glm45",
    "granite4": "hermes",
    "llama4_json": "llama3_json",
    "llama4_pythonic": "pythonic",
    "qwen3_xml": "qwen3_coder",
    "seed_oss": "qwen3_coder",
}


@pytest.fixture(scope="module")
def smol(smollm2: Path) -> Tokenizer:
    return load_tokenizer(smollm2)


@pytest.fixture(scope="session")
def num_random_cuts(request: pytest.FixtureRequest) -> int:
    return 200 if request.config.getoption("--nightly") else 20


@pytest.fixture(scope="session")
def num_mixtures(request: pytest.FixtureRequest) -> int:
    return 200 if request.config.getoption("--nightly") else 2


def test_every_format_has_its_fixtures() -> None:
    assert {*TOOL_FIXTURES, *ALIASES, "auto"} == set(TOOL_PARSERS)
    assert {*REASONING_FIXTURES, "auto"} == set(REASONING_PARSERS)
    assert min(map(len, [*TOOL_FIXTURES.values(), *REASONING_FIXTURES.values()])) >= 8
    assert all(type(formats(a).tools) is type(formats(b).tools) for a, b in ALIASES.items())


@pytest.mark.parametrize(("name", "fixture"), TOOLS)
def test_calls(name: str, fixture: Fixture, num_random_cuts: int) -> None:
    known = formats(name)
    whole = feed(parser(known), [fixture.text])
    assert whole.content == fixture.content
    assert [call for call, _ in whole.calls] == [call for call, _ in fixture.calls]
    for (_, arguments), (_, expected) in zip(whole.calls, fixture.calls, strict=True):
        assert expected is None or json.loads(arguments) == expected
    assert whole.has_calls == bool(fixture.calls)
    for cuts in (*every_cut_in_two(fixture.text), *random_cuts(fixture.text, num_random_cuts)):
        assert feed(parser(known), pieces(fixture.text, cuts)) == whole, cuts


@pytest.mark.parametrize(("name", "fixture"), TOOLS)
def test_calls_that_are_cut_off(name: str, fixture: Fixture) -> None:
    """Wherever the text ends, it is read the same at once and by characters, and nothing that is sent is taken back."""
    known = formats(name)
    for end in range(len(fixture.text)):
        text = fixture.text[:end]
        whole = feed(parser(known), [text], is_cut=True)
        assert feed(parser(known), text, is_cut=True) == whole, text
        assert whole.calls or whole.content == text or name == "openai", text


@pytest.mark.parametrize(("name", "fixture"), THOUGHTS)
def test_reasoning(name: str, fixture: Thought, num_random_cuts: int) -> None:
    known = formats(reasoning=name)
    whole = feed(parser(known, fixture.prompt), [fixture.text])
    assert (whole.reasoning, whole.content) == (fixture.reasoning, fixture.content)
    for cuts in (*every_cut_in_two(fixture.text), *random_cuts(fixture.text, num_random_cuts)):
        assert feed(parser(known, fixture.prompt), pieces(fixture.text, cuts)) == whole, cuts


def by_tokens(
    tokenizer: Tokenizer, answer: AnswerParser, text: str, sizes: Sequence[int]
) -> tuple[list[list[Part]], tuple[str, str, list[tuple[str, str]], bool, int]]:
    """The parts of each delta of so many tokens, and everything they say together: content, reasoning, calls, whether there
    are any, and the number of tokens of reasoning."""
    pipeline = OutputPipeline(tokenizer, SamplingParams(max_tokens=None), parser=answer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    pushed, start = [], 0
    while start < len(ids):
        size = sizes[len(pushed) % len(sizes)]
        finish = "stop" if start + size >= len(ids) else None
        ids_now = ids[start : start + size] + ([0] if finish else [])  # the last one is what stopped it
        pushed.append(pipeline.push(RequestDelta("r", token_ids=ids_now, finish_reason=finish)))
        start += size
    parts = [part for piece in pushed for part in piece.parts]
    reasoning, calls = reasoning_and_calls(parts)
    content, named = "".join(piece.text for piece in pushed), [(call.name, call.arguments) for call in calls]
    said = content, reasoning, named, pipeline.has_calls, pipeline.num_reasoning_tokens
    return [piece.parts for piece in pushed], said


THINKING = "I think.</think>"


def calling(name: str) -> AnswerParser:
    """Of calls in this format behind `THINKING`; `openai` has channels instead."""
    return parser(formats(name, None if name == "openai" else "deepseek_r1"))


def bursts(text: str, count: int) -> list[list[int]]:
    """Numbers of tokens in a delta: each from 2 to 8 all along, and so many mixtures, the same ones for the same text."""
    numbers = random.Random(text)
    return [*([size] for size in range(2, 9)), *(numbers.choices(range(1, 9), k=40) for _ in range(count))]


@pytest.mark.parametrize(("name", "fixture"), TOOLS)
def test_c38_bursts_of_tokens(smol: Tokenizer, name: str, fixture: Fixture, num_mixtures: int) -> None:
    text = fixture.text if name == "openai" else THINKING + fixture.text
    _, one_by_one = by_tokens(smol, calling(name), text, [1])
    assert one_by_one[0] == fixture.content
    assert name == "openai" or one_by_one[1] == "I think."
    assert [call for call, _ in one_by_one[2]] == [call for call, _ in fixture.calls]
    for sizes in bursts(fixture.text, num_mixtures):
        assert by_tokens(smol, calling(name), text, sizes)[1] == one_by_one, sizes


@pytest.mark.parametrize(("name", "fixture"), THOUGHTS)
def test_c38_bursts_of_reasoning(smol: Tokenizer, name: str, fixture: Thought, num_mixtures: int) -> None:
    known = formats(reasoning=name)
    _, one_by_one = by_tokens(smol, parser(known, fixture.prompt), fixture.text, [1])
    assert one_by_one[:3] == (fixture.content, fixture.reasoning, [])
    for sizes in bursts(fixture.text, num_mixtures):
        assert by_tokens(smol, parser(known, fixture.prompt), fixture.text, sizes)[1] == one_by_one, sizes


@pytest.mark.parametrize(("name", "fixture"), TOOLS)
def test_marks_that_are_special_tokens(name: str, fixture: Fixture) -> None:
    """They are read, though special tokens are no text; others stay hidden."""
    kind: Any = formats(name).tools
    tokenizer = with_special_tokens(set(getattr(kind, "special", ())))
    known = output_formats(name, None, pattern=PATTERN, tokenizer=tokenizer)
    pad, end = (tokenizer.encode(text)[0] for text in ("<|pad|>", "<|eos|>"))
    ids = [pad, *tokenizer.encode(fixture.text, add_special_tokens=False), pad]
    whole = feed(parser(known), [fixture.text])
    for size in (1, 5):
        pipeline = OutputPipeline(tokenizer, SamplingParams(max_tokens=None), parser=parser(known))
        deltas = [RequestDelta("r", token_ids=ids[i : i + size]) for i in range(0, len(ids), size)]
        pieces = [pipeline.push(delta) for delta in [*deltas, RequestDelta("r", token_ids=[end], finish_reason="stop")]]
        _, calls = reasoning_and_calls([part for piece in pieces for part in piece.parts])
        assert "".join(piece.text for piece in pieces) == whole.content
        assert [(call.name, call.arguments) for call in calls] == whole.calls


LONG = "word " * 400


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", f'<tool_call>{{"name": "save", "arguments": {{"note": "{LONG}"}}}}</tool_call>'),
        ("llama3_json", f'{{"name": "save", "parameters": {{"note": "{LONG}"}}}}'),
        ("mistral", f'[TOOL_CALLS]save[ARGS]{{"note": "{LONG}"}}'),
        ("pythonic", f'[save(note="{LONG}")]'),
        ("qwen3_coder", f"<tool_call>\n<function=save>\n<parameter=note>\n{LONG}\n</parameter>\n</function>\n</tool_call>"),
        ("deepseek_v31", f'<｜tool▁call▁begin｜>save<｜tool▁sep｜>{{"note": "{LONG}"}}<｜tool▁call▁end｜>'),
        ("glm45", f"<tool_call>save<arg_key>note</arg_key><arg_value>{LONG}</arg_value></tool_call>"),
        ("granite", f'<|tool_call|>[{{"name": "save", "arguments": {{"note": "{LONG}"}}}}]'),
        ("phi4_mini_json", f'functools[{{"name": "save", "arguments": {{"note": "{LONG}"}}}}]'),
        ("json", f'{{"name": "save", "arguments": {{"note": "{LONG}"}}}}'),
        ("gemma4", f'<|tool_call>call:save{{note:<|"|>{LONG}<|"|>}}<tool_call|>'),
    ],
)
def test_c37_arguments_come_as_they_are_written(smol: Tokenizer, name: str, text: str) -> None:
    pushed, said = by_tokens(smol, calling(name), THINKING + text, [1])
    assert json.loads(said[2][0][1]) == {"note": LONG}
    parts = [part for parts in pushed for part in parts]
    place = next(i for i, part in enumerate(parts) if isinstance(part, CallBegin))
    assert all(not isinstance(part, CallArguments) for part in parts[:place])
    arguments = [[part for part in parts if isinstance(part, CallArguments)] for parts in pushed]
    assert sum(map(bool, arguments)) > 350
    assert max(len(part.text) for parts in arguments for part in parts) < 80


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("{{ '<tool_call>\\n{\"name\"' }}", "hermes", None),
        ("<tool_call>\n<function=f>\n<parameter=k>", "qwen3_coder", None),
        ("<|channel|>analysis<|message|>", "openai", "openai_gptoss"),
        ("<｜tool▁call▁begin｜>' + type + '<｜tool▁sep｜>' + name + '\\n```json' <think>", "deepseek_v3", "qwen3"),
        ("<｜tool▁call▁begin｜>' + name + '<｜tool▁sep｜>' + arguments </think>", "deepseek_v31", "qwen3"),
        ("<tool_call>name<arg_key>", "glm45", None),
        ("[TOOL_CALLS] [THINK]", "mistral", "mistral"),
        ("<|tool_call|> followed by a JSON list of tools. Here is my thought process:", "granite", "granite"),
        ("<|tool|>{{ tools }}<|/tool|>", "phi4_mini_json", None),
        ('{"name": function name, "parameters": dictionary of argument name and its value}', "llama3_json", None),
        ("[func_name1(params_name1=params_value1), func_name2(params)]", "pythonic", None),
        ("<|tool_call>call:f{} <|channel>thought", "gemma4", "gemma4"),
        ("<start_function_call>call:", "functiongemma", None),
        ("<seed:tool_call><function=f><parameter=k> <seed:think>", "qwen3_coder", "seed_oss"),
        ("<minimax:tool_call><invoke name='f'> <tool_call>", None, None),
        ("{{ messages }}", None, None),
    ],
)
def test_formats_are_recognized(template: str, tools: str | None, reasoning: str | None) -> None:
    assert (recognized_tools(template), recognized_reasoning(template)) == (tools, reasoning)
