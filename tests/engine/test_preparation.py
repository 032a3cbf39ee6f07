"""Requests wait until their grammar is built, and keep nobody else waiting."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import Future
from typing import Any

import msgspec
import pytest

from octavo.engine.engine import Engine
from octavo.engine.preparation import MAX_GRAMMARS
from octavo.engine.request import Grammar, Request
from octavo.errors import OctavoError
from tests.scripted import ScriptedRunner, make_request


class Builds:
    """In the place of `Matchers`: builds that end when the test says so."""

    def __init__(self) -> None:
        self.futures: dict[str, Future[Any]] = {}
        self.num_alive = 0
        self.closed = False

    def prepare(self, grammar: Grammar) -> Future[Any]:
        return self.futures.setdefault(grammar.text, Future())

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def builds() -> Builds:
    return Builds()


@pytest.fixture
def engine(builds: Builds) -> Engine:
    return Engine(
        ScriptedRunner(),
        block_size=16,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=512,
        matchers=builds,  # type: ignore[arg-type]
    )


def with_grammar(request_id: str, grammar: str = "g", **params: object) -> Request:
    return msgspec.structs.replace(make_request(request_id, max_tokens=2, **params), grammar=Grammar(grammar))


def finished(engine: Engine, steps: int = 10) -> dict[str, str]:
    """How each sequence ended within so many steps, by "id/index"."""
    ends: dict[str, str] = {}
    for _ in range(steps):
        for delta in engine.step().deltas:
            if delta.finish_reason is not None:
                ends[f"{delta.request_id}/{delta.index}"] = delta.error or delta.finish_reason
    return ends


def test_it_waits_and_others_do_not(engine: Engine, builds: Builds) -> None:
    engine.add(with_grammar("held"))
    engine.add(make_request("free", max_tokens=2))
    assert finished(engine) == {"free/0": "length"}
    assert engine.has_work
    assert (engine.stats().num_waiting, engine.stats().num_running) == (1, 0)
    builds.futures["g"].set_result(None)
    assert finished(engine) == {"held/0": "length"}
    assert not engine.has_work


def test_it_stays_held_as_long_as_its_request(engine: Engine, builds: Builds) -> None:
    engine.add(with_grammar("a"))
    built = builds.futures.pop("g")
    alive = weakref.ref(built)
    built.set_result(None)
    del built
    assert engine.step().deltas[0].token_ids
    assert alive() is not None
    assert finished(engine) == {"a/0": "length"}
    gc.collect()
    assert alive() is None


def test_no_more_are_built_than_there_is_room_for(engine: Engine, builds: Builds) -> None:
    builds.num_alive = MAX_GRAMMARS - 1
    engine.add(with_grammar("a", "first"))
    builds.num_alive = MAX_GRAMMARS
    engine.add(with_grammar("b", "second"))
    assert [*builds.futures] == ["first"]
    builds.futures["first"].set_result(None)
    assert finished(engine) == {"a/0": "length"}
    builds.num_alive -= 1
    assert finished(engine, 1) == {}
    builds.futures["second"].set_result(None)
    assert finished(engine) == {"b/0": "length"}


def test_one_that_is_built_already_does_not_wait(engine: Engine, builds: Builds) -> None:
    builds.prepare(Grammar("g")).set_result(None)
    engine.add(with_grammar("at once"))
    assert engine.step().deltas[0].token_ids


def test_a_grammar_that_cannot_be_built_ends_its_requests_alone(engine: Engine, builds: Builds) -> None:
    engine.add(with_grammar("bad", n=2, temperature=1.0, seed=1))
    engine.add(make_request("good", max_tokens=2))
    builds.futures["g"].set_exception(OctavoError("it does not compile"))
    ends = finished(engine)
    assert ends.pop("good/0") == "length"
    assert ends == {f"bad/{i}": "The grammar cannot be used: it does not compile" for i in range(2)}
    assert engine.stats().num_failed == 2


def test_aborts_while_it_waits(engine: Engine, builds: Builds) -> None:
    engine.add(with_grammar("a", n=3, temperature=1.0, seed=1))
    engine.abort("a", 1)
    engine.abort("a", 1)
    assert engine.stats().num_waiting == 2
    builds.futures["g"].set_result(None)
    assert finished(engine) == {"a/0": "length", "a/2": "length"}
    engine.add(with_grammar("b", "other"))
    engine.abort("b")
    assert not engine.has_work
    builds.futures["other"].set_result(None)
    assert finished(engine) == {}
    stats = engine.stats()
    assert (stats.num_received, stats.num_finished, stats.num_aborted) == (4, 2, 2)
    assert engine.check_integrity()["held"] == 0


def test_an_id_in_use_is_not_taken_twice(engine: Engine, builds: Builds) -> None:
    engine.add(with_grammar("a"))
    engine.add(with_grammar("a"))
    builds.futures["g"].set_result(None)
    assert finished(engine) == {"a/0": "length"}
    assert engine.stats().num_received == 1


def test_without_matchers_it_is_refused() -> None:
    engine = Engine(ScriptedRunner(), block_size=16, max_num_seqs=8, max_num_batched_tokens=64, max_model_len=512)
    engine.add(with_grammar("a"))
    assert finished(engine) == {"a/0": "This engine follows no grammars."}


def test_closing_ends_the_builds(engine: Engine, builds: Builds) -> None:
    engine.close()
    assert builds.closed
