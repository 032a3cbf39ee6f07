"""The judge of grammars, and SmolLM2's vocabulary to follow them with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.grammar.compile import Judge
from octavo.grammar.matchers import Matchers
from octavo.text.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def judge() -> Judge:
    """In this process, for texts that end well."""
    return Judge(["<|im_start|>", "<|im_end|>"])


@pytest.fixture(scope="session")
def tokenizer(smollm2: Path) -> Tokenizer:
    return load_tokenizer(smollm2)


@pytest.fixture(scope="session")
def matchers(tokenizer: Tokenizer) -> Iterator[Matchers]:
    matchers = Matchers(lambda: tokenizer, lambda tokenizer: tokenizer.eos_token_ids)
    yield matchers
    matchers.close()
