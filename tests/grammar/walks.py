"""Texts that a grammar allows, found by drawing from its masks, and whether it allows a given one."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from octavo.engine.request import Grammar
from octavo.grammar.compile import Judge
from octavo.grammar.matchers import Matcher, Matchers
from octavo.sampling.structured import StructuredOutputsParams
from octavo.text.tokenizer import Tokenizer

CLOSING = b'"}],:0123456789'


def start(
    judge: Judge,
    matchers: Matchers,
    after: str = "",
    opening: int | None = None,
    max_digits: int | None = None,
    **params: object,
) -> Matcher:
    """A matcher at the beginning of what the parameters ask for, its mask computed."""
    text = judge.compile(StructuredOutputsParams(**params))  # type: ignore[arg-type]
    matcher = matchers.matcher(Grammar(text, after, opening, max_digits), [])
    matchers.wait()
    return matcher


def allowed(matcher: Matcher, vocab_size: int) -> NDArray[np.int64]:
    """Ids that may come next."""
    assert matcher.mask is not None
    bits = np.unpackbits(np.frombuffer(matcher.mask, np.uint8), bitorder="little")
    return np.flatnonzero(bits[:vocab_size])


def accepts(matcher: Matcher, tokenizer: Tokenizer, text: str | Iterable[int]) -> bool:
    """Whether the text, as its usual tokens or those given, and then the end, may come next."""
    ids = tokenizer.encode(text, add_special_tokens=False) if isinstance(text, str) else list(text)
    for token_id in [*ids, tokenizer.eos_token_id]:
        if token_id not in allowed(matcher, tokenizer.vocab_size):
            return False
        matcher.follow([token_id])
    return matcher.error is None


def walk(matcher: Matcher, tokenizer: Tokenizer, seed: int, most: int = 120) -> str | None:
    """A text drawn from the masks alone, which leans towards its end; None if it has none within `most` tokens."""
    generator = random.Random(seed)
    closing = closing_tokens(tokenizer)
    text = b""
    for step in range(most):
        assert matcher.error is None
        ids = allowed(matcher, tokenizer.vocab_size)
        assert len(ids), f"nothing may follow {text!r}"
        preferred = ids[np.isin(ids, closing)]
        if len(preferred) and generator.random() < 0.4 + step / 40:
            ids = preferred
        if tokenizer.eos_token_id in ids and generator.random() < 0.3 + step / 40:
            return text.decode()
        token_id = int(generator.choice(ids))
        if token_id == tokenizer.eos_token_id:
            return text.decode()
        text += tokenizer.token_bytes(token_id)
        matcher.follow([token_id])
    return None


_closing: dict[int, NDArray[np.int64]] = {}


def closing_tokens(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """Short tokens that begin with what ends a part of JSON."""
    if id(tokenizer) not in _closing:
        texts = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        _closing[id(tokenizer)] = np.array([i for i, text in enumerate(texts) if text[:1] in CLOSING and len(text) <= 2])
    return _closing[id(tokenizer)]
