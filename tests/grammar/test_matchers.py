"""The engine's side: what is built when, in which thread, and whose fault a fault is."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from octavo.engine.request import Grammar
from octavo.errors import OctavoError
from octavo.grammar import matchers as module
from octavo.grammar.compile import Judge
from octavo.grammar.matchers import Matcher, Matchers
from octavo.sampling.structured import StructuredOutputsParams
from octavo.text.tokenizer import Tokenizer
from tests.grammar.walks import allowed


class Opening:
    """Gives the tokenizer when the test lets it, and counts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.gate = threading.Event()
        self.gate.set()
        self.threads: list[str] = []

    def __call__(self) -> Tokenizer:
        assert self.gate.wait(30)
        self.threads.append(threading.current_thread().name)
        return self.tokenizer


@pytest.fixture
def opening(tokenizer: Tokenizer) -> Opening:
    return Opening(tokenizer)


@pytest.fixture
def own(opening: Opening) -> Iterator[Matchers]:
    own = Matchers(opening, lambda tokenizer: tokenizer.eos_token_ids)
    yield own
    own.close()


def grammar(judge: Judge, *choices: str) -> Grammar:
    return Grammar(judge.compile(StructuredOutputsParams(choice=list(choices))))


def test_nothing_is_read_before_the_first_grammar_and_that_in_a_thread(
    judge: Judge, own: Matchers, opening: Opening
) -> None:
    own.wait()
    assert opening.threads == []
    opening.gate.clear()
    futures = [own.prepare(grammar(judge, text)) for text in ("a", "b", "a")]
    assert futures[0] is futures[2]
    assert not futures[0].done()
    opening.gate.set()
    assert {future.result(30) is not None for future in futures} == {True}
    assert len(opening.threads) == 1
    assert opening.threads[0].startswith("grammars")


def test_masks_are_computed_in_a_thread_of_their_own(
    judge: Judge, own: Matchers, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step goes on until it needs them."""
    threads: list[str] = []
    follow, gate = Matcher.follow, threading.Event()

    def noted(matcher: Matcher, token_ids: list[int]) -> None:
        assert gate.wait(30)
        threads.append(threading.current_thread().name)
        follow(matcher, token_ids)

    monkeypatch.setattr(Matcher, "follow", noted)
    matcher = own.matcher(grammar(judge, "yes", "no"), [])
    own.follow([(matcher, tokenizer.encode("y"))])
    assert matcher.mask is None
    gate.set()
    own.wait()
    texts = {tokenizer.token_text(token_id) for token_id in allowed(matcher, tokenizer.vocab_size)}
    assert texts == {"es"}
    assert [name.startswith("masks") for name in threads] == [True, True]


def test_a_fault_of_one_is_not_the_others(judge: Judge, own: Matchers, tokenizer: Tokenizer) -> None:
    """A token that cannot come, and one that the vocabulary does not have."""
    yes, no, other = (own.matcher(grammar(judge, "yes", "no"), []) for _ in range(3))
    own.follow([(yes, [10**9]), (no, tokenizer.encode("x")), (other, tokenizer.encode("no"))])
    own.wait()
    assert yes.error is not None
    assert no.error is not None
    assert (other.error, allowed(other, tokenizer.vocab_size).tolist()) == (None, [tokenizer.eos_token_id])


def test_a_grammar_that_does_not_compile_is_its_futures_matter(judge: Judge, own: Matchers) -> None:
    bad = own.prepare(Grammar("start: nowhere"))
    with pytest.raises(OctavoError, match="the grammar does not compile"):
        bad.result(30)
    assert own.prepare(grammar(judge, "a")).result(30) is not None


def test_the_least_recently_used_are_forgotten(judge: Judge, own: Matchers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    built, build = [], own._build
    monkeypatch.setattr(own, "_build", lambda text: [built.append(text), build(text)][1])
    a, b, c = (grammar(judge, text) for text in "abc")
    for each in (a, b, a, c, a, b):
        own.matcher(each, [])
    assert built == [each.text for each in (a, b, c, b)]


def test_what_somebody_holds_is_not_built_again(judge: Judge, own: Matchers, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many other grammars come meanwhile, so that no step has to wait for one."""
    held = [own.prepare(grammar(judge, str(i))) for i in range(3 * module.MAX_KEPT)]
    assert own.num_alive == len(held)
    for future in held:
        future.result(30)
    monkeypatch.setattr(own, "_build", lambda text: pytest.fail("was built again"))
    assert [own.prepare(grammar(judge, str(i))) for i in range(len(held))] == held
    assert [own.matcher(grammar(judge, str(i)), []).error for i in range(len(held))] == [None] * len(held)
    del held
    assert own.num_alive == module.MAX_KEPT


def test_what_nobody_waits_for_any_more_is_not_built(judge: Judge, own: Matchers, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a request that is gone before its grammar's turn."""
    begun, gate, built = threading.Event(), threading.Event(), []

    def build(text: str) -> str:
        begun.set()
        assert gate.wait(30)
        built.append(text)
        return text

    monkeypatch.setattr(own, "_build", build)
    texts = [grammar(judge, text) for text in "abc"]
    futures = [own.prepare(each) for each in texts]
    assert begun.wait(30)
    del futures[1]
    gate.set()
    futures[-1].result(30)
    assert built == [texts[0].text, texts[2].text]
    assert own.num_alive == 2


def test_closing_twice_and_going_on(judge: Judge, own: Matchers, tokenizer: Tokenizer) -> None:
    own.matcher(grammar(judge, "a"), [])
    own.close()
    own.close()
    matcher = own.matcher(grammar(judge, "a"), [])
    own.wait()
    assert [tokenizer.token_text(token_id) for token_id in allowed(matcher, tokenizer.vocab_size)] == ["a"]


def test_a_grammar_that_cannot_be_built_again_fails_its_own_sequence(
    own: Matchers, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = grammar(judge, "one", "two")
    own.prepare(wanted).result()

    def fail(text: str) -> None:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(own, "_build", fail)
        assert own.matcher(wanted, []).error == "the grammar cannot be built: no room"
    assert own.matcher(wanted, []).error is None
