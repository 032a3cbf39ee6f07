"""Prompts for benchmarks: random tokens, or the lines of a file."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Sample:
    """A prompt, and how many tokens it is to be answered with."""

    token_ids: list[int]
    output_len: int


@dataclass(frozen=True)
class Lengths:
    """Tokens of random prompts: `prefix` that all have in common, then `input` of their own, answered with `output`. The
    last two are drawn evenly within `spread` (0 to 1) of themselves."""

    input: int
    output: int
    prefix: int = 0
    spread: float = 0.0


def random_samples(tokenizer: Tokenizer, count: int, lengths: Lengths, seed: int) -> list[Sample]:
    """Prompts of random ordinary tokens, the same for the same seed."""
    source = random.Random(seed)
    ordinary = [id for id in range(tokenizer.vocab_size) if id not in tokenizer.added_ids]
    prefix = source.choices(ordinary, k=lengths.prefix)

    def around(length: int) -> int:
        return max(1, round(length * source.uniform(1 - lengths.spread, 1 + lengths.spread)))

    return [Sample(prefix + source.choices(ordinary, k=around(lengths.input)), around(lengths.output)) for _ in range(count)]


def file_samples(path: str, tokenizer: Tokenizer, count: int, output_len: int) -> list[Sample]:
    """The first `count` lines of a file of JSON objects with a `prompt` (and an `output_len` of their own, if they like).
    ConfigError for a line that is none, and for a file that has too few."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()[:count]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--dataset-path {path} cannot be read: {error}", parameter="dataset_path") from None
    if len(lines) < count:
        message = f"--dataset-path {path} has {len(lines)} lines, and --num-prompts asks for {count}"
        raise ConfigError(message, parameter="dataset_path")
    return [_file_sample(path, number, line, tokenizer, output_len) for number, line in enumerate(lines, 1)]


def _file_sample(path: str, number: int, line: str, tokenizer: Tokenizer, output_len: int) -> Sample:
    try:
        entry = json.loads(line)
        prompt, length = entry["prompt"], int(entry.get("output_len", output_len))
        if not isinstance(prompt, str):
            raise TypeError
        return Sample(tokenizer.encode(prompt), length)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        message = f'--dataset-path {path}: line {number} must be an object like {{"prompt": "text"}}'
        raise ConfigError(message, parameter="dataset_path") from None
