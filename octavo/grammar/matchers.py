"""The engine's side of structured output: follows the tokens of a sequence, and says which may come next.

Building and following grammars happens in threads, while the model computes; the library leaves the interpreter to
others meanwhile.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from octavo.engine.request import Grammar
from octavo.errors import OctavoError
from octavo.grammar.lark import special_name
from octavo.grammar.shortest_first import ShortestFirst

if TYPE_CHECKING:
    import llguidance

    from octavo.text.tokenizer import Tokenizer

STACK = 16 << 20  # more than the process had that found the grammar good
_DIGITS = frozenset(b"0123456789")
_QUOTE, _BACKSLASH = b'"\\'
MAX_KEPT = 32  # grammars that were followed and are remembered for later requests, whether or not somebody has them


class Matcher:
    """One sequence's place in its grammar. `mask` says which tokens may come next, one bit each from the lowest bit of the
    first byte on; None while the text is still free. After an `error` the sequence cannot go on."""

    def __init__(self, matcher: llguidance.LLMatcher, grammar: Grammar, vocabulary: _Vocabulary) -> None:
        self.mask: bytes | None = None
        self.error: str | None = None
        self._grammar = matcher
        self._opening = grammar.opening
        self._awaited = grammar.after.encode()
        self._after = self._awaited if grammar.opening is None else b""
        self._vocabulary = vocabulary
        self._tail = b""  # of the free text
        self._max_digits = grammar.max_digits
        self._numbers = _Numbers()

    def follow(self, token_ids: Iterable[int]) -> None:
        """Take these tokens, and compute the mask behind them."""
        for token_id in token_ids:
            if self._opening is not None:
                self._after = self._awaited if token_id == self._opening else b""
                self._opening = None
            if self._after:
                self._look_for_the_start(token_id)
            elif not self._grammar.is_stopped() and not self._grammar.consume_token(token_id):
                break
            elif self._max_digits is not None:
                self._numbers.follow(self._vocabulary.tokens[token_id])
        if self._after:
            self.mask = None
            return
        self.mask = self._grammar.compute_bitmask()
        if self._max_digits is not None and self._numbers.num_digits >= self._max_digits:
            self.mask = _without(self.mask, self._vocabulary.digits)
        if self._opening is not None:
            self.mask = _with_bit(self.mask, self._opening)
        if self._grammar.is_error():
            self.error = f"the grammar cannot be followed: {self._grammar.get_error().partition(chr(10))[0]:.200}"

    def _look_for_the_start(self, token_id: int) -> None:
        text = self._tail + self._vocabulary.tokens[token_id]
        if self._after in text:
            self._after = b""
        self._tail = text[max(0, len(text) - len(self._after) + 1) :]


class _Numbers:
    """Counts digits at the end of a JSON text, outside of its strings."""

    def __init__(self) -> None:
        self.num_digits = 0
        self._is_string = False
        self._is_escaped = False

    def follow(self, text: bytes) -> None:
        """The text goes on."""
        for byte in text:
            if self._is_string:
                self._is_string = byte != _QUOTE or self._is_escaped
                self._is_escaped = byte == _BACKSLASH and not self._is_escaped
            else:
                self.num_digits = self.num_digits + 1 if byte in _DIGITS else 0
                self._is_string = byte == _QUOTE


class FailedMatcher(Matcher):
    """Of a grammar that could not be built again: its sequence cannot go on."""

    def __init__(self, error: str) -> None:
        self.mask = None
        self.error = error

    def follow(self, token_ids: Iterable[int]) -> None:
        """Nothing more to follow."""


class Matchers:
    """All grammars of one engine. The vocabulary is read when the first one comes."""

    def __init__(self, open_tokenizer: Callable[[], Tokenizer], eos_token_ids: Callable[[Tokenizer], Sequence[int]]) -> None:
        self._open_tokenizer = open_tokenizer
        self._eos_token_ids = eos_token_ids
        self._vocabulary: _Vocabulary | None = None
        self._kept: OrderedDict[str, Future[llguidance.LLMatcher]] = OrderedDict()
        self._alive: WeakValueDictionary[str, Future[llguidance.LLMatcher]] = WeakValueDictionary()
        self._builder: ShortestFirst | None = None
        self._follower: ThreadPoolExecutor | None = None
        self._following: Future[None] | None = None

    def prepare(self, grammar: Grammar) -> Future[llguidance.LLMatcher]:
        """Begin to build what `matcher` needs for the grammar, in a thread. The result, or its error, is the caller's only
        to wait for; as long as somebody holds it, it need not be built again. Where nobody does when it would begin, it does
        not."""
        text = grammar.text
        future = self._alive.get(text)
        if future is None or (future.done() and future.exception() is not None):
            if self._builder is None:
                self._builder = ShortestFirst(_thread("grammars"))
            future = self._alive[text] = self._builder.submit(len(text), partial(self._build, text))
        return future

    @property
    def num_alive(self) -> int:
        """Grammars that somebody has, or that are kept for later."""
        return len(self._alive)

    def matcher(self, grammar: Grammar, output_token_ids: Sequence[int]) -> Matcher:
        """For a sequence with this output so far; its first mask is computed in a thread (`wait`). One that fails concerns
        this sequence alone."""
        try:
            future = self.prepare(grammar)
            base = future.result()
        except Exception as error:  # memory, above all: it was built once, or the request would not be here
            return FailedMatcher(f"the grammar cannot be built: {error}")
        self._keep(grammar.text, future)
        assert self._vocabulary is not None
        matcher = Matcher(base.deep_copy(), grammar, self._vocabulary)
        self.follow([(matcher, output_token_ids)])
        return matcher

    def follow(self, steps: Sequence[tuple[Matcher, Sequence[int]]]) -> None:
        """Let the matchers take their new tokens, in a thread, in the order of the calls."""
        if self._follower is None:
            self._follower = _thread("masks")
        self._following = self._follower.submit(_follow, steps)

    def wait(self) -> None:
        """Until every mask is there."""
        if self._following is not None:
            self._following.result()
            self._following = None

    def close(self) -> None:
        """End the threads. Idempotent."""
        if self._builder is not None:
            self._builder.close()
        if self._follower is not None:
            self._follower.shutdown(wait=True, cancel_futures=True)
        self._kept.clear()
        self._alive.clear()
        self._builder = self._follower = self._following = self._vocabulary = None

    def _keep(self, text: str, future: Future[llguidance.LLMatcher]) -> None:
        self._kept[text] = future
        self._kept.move_to_end(text)
        while len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)

    def _build(self, text: str) -> llguidance.LLMatcher:
        import llguidance

        from octavo.grammar.limits import limits

        if self._vocabulary is None:
            tokenizer = self._open_tokenizer()
            self._vocabulary = _Vocabulary(tokenizer, self._eos_token_ids(tokenizer))
        matcher = llguidance.LLMatcher(self._vocabulary.grammars, text, log_level=0, limits=limits())
        if matcher.is_error():
            raise OctavoError(f"the grammar does not compile: {matcher.get_error():.200}")
        return matcher


def _with_bit(mask: bytes, token_id: int) -> bytes:
    changed = bytearray(mask)
    changed[token_id // 8] |= 1 << (token_id % 8)
    return bytes(changed)


def _without(mask: bytes, bits: int) -> bytes:
    """The mask less these bits, unless nothing is left of it then."""
    rest = int.from_bytes(mask, "little") & ~bits
    return rest.to_bytes(len(mask), "little") if rest else mask


def _follow(steps: Sequence[tuple[Matcher, Sequence[int]]]) -> None:
    for matcher, token_ids in steps:
        try:
            matcher.follow(token_ids)
        except BaseException as error:  # a panic of the library too: it ends this sequence, not the step
            matcher.error = f"the grammar cannot be followed: {type(error).__name__}: {error}"


class _Vocabulary:
    """The bytes of a tokenizer's tokens, and what llguidance makes of it (`grammars`)."""

    def __init__(self, tokenizer: Tokenizer, eos_token_ids: Sequence[int]) -> None:
        import llguidance

        self.eos_token_id = eos_token_ids[0]
        self.tokens = [tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)]
        bits = bytearray(len(self.tokens) // 8 + 1)
        for token_id, text in enumerate(self.tokens):
            bits[token_id // 8] |= (text[:1].isdigit()) << (token_id % 8)
        self.digits = int.from_bytes(bits, "little")  # tokens that begin with one, as a mask
        wrapper = llguidance.TokenizerWrapper(_Named(self, tokenizer))
        self.grammars = llguidance.LLTokenizer(wrapper, n_vocab=len(self.tokens), eos_token=list(eos_token_ids))


class _Named:
    """A tokenizer as llguidance wants it, with the names that grammars have for its special tokens as their bytes."""

    bos_token_id = None

    def __init__(self, vocabulary: _Vocabulary, tokenizer: Tokenizer) -> None:
        self.eos_token_id = vocabulary.eos_token_id
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.tokens = [*vocabulary.tokens]
        for token_id in self.special_token_ids:
            self.tokens[token_id] = special_name(tokenizer.token_text(token_id)).encode()
        self._tokenizer = tokenizer

    def __call__(self, text: bytes | str) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace") if isinstance(text, bytes) else text, False)


def _thread(name: str) -> ThreadPoolExecutor:
    """An executor of one thread with STACK, which is started at once: the size is one setting for all new threads."""
    executor = ThreadPoolExecutor(1, thread_name_prefix=name)
    before = threading.stack_size(STACK)
    try:
        executor.submit(int).result()
    finally:
        threading.stack_size(before)
    return executor
