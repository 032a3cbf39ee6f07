"""What the sampler remembers of one sequence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from octavo.engine.request import Request
from octavo.sampling.thinking import ThinkingBudget

if TYPE_CHECKING:
    from octavo.grammar.matchers import Matcher


class TokenCounts:
    """Distinct tokens of a sequence and how often each was generated (0: only in the prompt), growing in O(1) a token."""

    def __init__(self, prompt_token_ids: Iterable[int], output_token_ids: Iterable[int], vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._slots: dict[int, int] = {}
        self._ids = np.empty(64, dtype=np.int64)
        self._counts = np.zeros(64, dtype=np.int64)
        for token_id in prompt_token_ids:
            self._slot(token_id)
        for token_id in output_token_ids:
            self.add(token_id)

    def add(self, token_id: int) -> None:
        """Count one more generated token."""
        slot = self._slot(token_id)
        if slot is not None:
            self._counts[slot] += 1

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct token ids [d], all inside the vocabulary."""
        return self._ids[: len(self._slots)]

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each of `ids` was generated [d]."""
        return self._counts[: len(self._slots)]

    def _slot(self, token_id: int) -> int | None:
        slot = self._slots.get(token_id)
        if slot is None and 0 <= token_id < self._vocab_size:
            slot = self._slots[token_id] = len(self._slots)
            if slot == len(self._ids):
                self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
                self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
            self._ids[slot] = token_id
        return slot


class SamplingState:
    """One sequence's params and history. Rebuilt from `output_token_ids` after a preemption it is what it was.

    `vocab_size` is how many ids may be drawn: columns of the logits from there on (padding of the embedding matrix) count
    for nothing. Ids of params outside the vocabulary are ignored; intake has refused them before.
    """

    __slots__ = (
        "_counts",
        "allowed_mask",
        "bad_words",
        "bias_ids",
        "bias_values",
        "has_changing_edits",
        "index",
        "is_penalized",
        "is_special",
        "matcher",
        "output_token_ids",
        "params",
        "prepared",
        "prompt_token_ids",
        "stop_token_ids",
        "thinking",
        "vocab_size",
    )

    def __init__(
        self,
        request: Request,
        index: int,
        output_token_ids: Sequence[int],
        vocab_size: int,
        matcher: Matcher | None = None,
    ) -> None:
        params = request.params
        self.params = params
        self.index = index
        self.prompt_token_ids = request.prompt_token_ids
        self.output_token_ids = list(output_token_ids)
        self.vocab_size = vocab_size
        self.stop_token_ids = _inside({*request.eos_token_ids, *(params.stop_token_ids or ())}, vocab_size)
        biases = {token: bias for token, bias in (params.logit_bias or {}).items() if 0 <= token < vocab_size}
        self.bias_ids = np.array(list(biases), dtype=np.int64)
        self.bias_values = np.array(list(biases.values()), dtype=np.float32)
        allowed = params.allowed_token_ids
        self.allowed_mask = None if allowed is None else _mask(_inside(allowed, vocab_size), vocab_size)
        self.bad_words = request.bad_words_token_ids
        self.matcher = matcher
        self.thinking = None if request.thinking is None else ThinkingBudget(request.thinking, output_token_ids)
        self.prepared: bytes | None = None  # what a backend's sampler keeps with it
        self.is_penalized = (  # by any of the three
            params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        )
        self.has_changing_edits = (  # with each token
            self.is_penalized or matcher is not None or bool(self.bad_words) or self.thinking is not None
        )
        self.is_special = self.has_changing_edits or params.logprobs is not None  # a token is not all that is asked for
        self._counts: TokenCounts | None = None

    def append(self, token_id: int) -> None:
        """Take over the token that the sequence goes on with."""
        self.output_token_ids.append(token_id)
        if self.thinking is not None:
            self.thinking.append(token_id)
        if self._counts is not None:
            self._counts.add(token_id)

    @property
    def position(self) -> int:
        """Of the token to draw next, in the output."""
        return len(self.output_token_ids)

    @property
    def forced_id(self) -> int | None:
        """The only token that may come next, if there is just one: the budget of thinking is used up."""
        return None if self.thinking is None else self.thinking.forced_id

    @property
    def must_go_on(self) -> bool:
        """Whether min_tokens is not reached yet, so that no token that would end the sequence may be drawn."""
        return len(self.output_token_ids) < self.params.min_tokens

    @property
    def banned_ids(self) -> list[int]:
        """Tokens that would complete one of `bad_words`."""
        output = self.output_token_ids
        return [
            word[-1]
            for word in self.bad_words
            if word[-1] < self.vocab_size and output[len(output) - len(word) + 1 :] == word[:-1]
        ]

    @property
    def counts(self) -> TokenCounts:
        """The tokens that penalties act on, counted at first use; the prompt's only where repetition_penalty is on."""
        if self._counts is None:
            prompt = self.prompt_token_ids if self.params.repetition_penalty != 1.0 else ()
            self._counts = TokenCounts(prompt, self.output_token_ids, self.vocab_size)
        return self._counts


def _inside(token_ids: Iterable[int], vocab_size: int) -> NDArray[np.int64]:
    return np.array([token for token in token_ids if 0 <= token < vocab_size], dtype=np.int64)


def _mask(token_ids: NDArray[np.int64], vocab_size: int) -> NDArray[np.uint8]:
    """Bit i % 8 of byte i // 8 says whether token i is among the ids."""
    bits = np.zeros(vocab_size, dtype=np.bool_)
    bits[token_ids] = True
    return np.packbits(bits, bitorder="little")
