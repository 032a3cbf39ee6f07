"""Feeding an answer to the stages in pieces, and ways to cut it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from octavo.parsing.answer import AnswerParser
from octavo.parsing.formats import OutputFormats, output_formats
from octavo.parsing.parts import CallArguments, CallBegin, Content, Part, reasoning_and_calls
from octavo.text.tokenizer import Tokenizer
from tests.parsing.fixtures import PATTERN, TOOLS


class Result(NamedTuple):
    """All that came out."""

    content: str
    reasoning: str
    calls: list[tuple[str, str]]
    has_calls: bool


def formats(tools: str | None = None, reasoning: str | None = None) -> OutputFormats:
    """The formats of these names."""
    return output_formats(tools, reasoning, pattern=PATTERN)


def parser(formats: OutputFormats, prompt: str = "", *, only_one_call: bool = False) -> AnswerParser:
    """For one answer, with all the tools of the fixtures."""
    calls = None if formats.tools is None else formats.tools(TOOLS)
    answer = formats.answer(prompt, None, calls, only_one_call=only_one_call)
    assert answer is not None
    return answer


def pieces(text: str, cuts: Iterable[int]) -> Iterator[str]:
    """The text cut at these places."""
    last = 0
    for cut in (*cuts, len(text)):
        yield text[last:cut]
        last = cut


def feed(answer: AnswerParser, texts: Iterable[str], *, is_cut: bool = False) -> Result:
    """What comes out of texts that come one after the other. Every delta is checked."""
    parts: list[Part] = []
    for text in texts:
        parts += answer.push(text)
    parts += answer.finish(is_cut=is_cut)
    check_order(parts)
    reasoning, calls = reasoning_and_calls(parts)
    content = "".join(part.text for part in parts if isinstance(part, Content))
    return Result(content, reasoning, [(call.name, call.arguments) for call in calls], answer.has_calls)


def check_order(parts: Sequence[Part]) -> None:
    """Calls begin in order, each with a name and an id of its own, and arguments belong to the last one (C34). All text can
    be sent."""
    begun = [part for part in parts if isinstance(part, CallBegin)]
    assert [part.index for part in begun] == list(range(len(begun)))
    assert all(part.name and part.id for part in begun)
    assert len({part.id for part in begun}) == len(begun)
    current = -1
    for part in parts:
        if isinstance(part, CallBegin):
            current = part.index
            part.name.encode()
        else:
            part.text.encode()
            assert not isinstance(part, CallArguments) or part.index == current


def every_cut_in_two(text: str) -> Iterator[list[int]]:
    """All of them, and the text in single characters."""
    yield from ([cut] for cut in range(len(text) + 1))
    yield list(range(1, len(text)))


def random_cuts(text: str, count: int) -> Iterator[list[int]]:
    """So many ways to cut the text into pieces, the same ones for the same text."""
    numbers = random.Random(text)
    for _ in range(count):
        yield sorted(numbers.choices(range(len(text) + 1), k=numbers.randrange(1, 12)))


def with_special_tokens(marks: set[str]) -> Tokenizer:
    """A small tokenizer in which these, and `<|pad|>` and `<|eos|>`, are special tokens."""
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={c: i for i, c in enumerate(pre_tokenizers.ByteLevel.alphabet())}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = sorted({*marks, "<|pad|>", "<|eos|>"})
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return Tokenizer(backend, {"eos_token": "<|eos|>"})
