"""The one client protocol: the same tests against the engine in this process and in its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo.engine.client import EngineClient
from octavo.engine.request import EngineOutput, EngineStats
from octavo.errors import EngineDeadError, EngineError
from tests.engine.clients import KINDS, ended, make_client, poll_until, tokens
from tests.scripted import Script, default_token, make_request

Make = Callable[..., EngineClient]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    clients: list[EngineClient] = []

    def make(**script: object) -> EngineClient:
        clients.append(make_client(request.param, tmp_path, Script(**script)))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def test_requests_come_out_with_their_ids(make: Make) -> None:
    client = make(outputs={"a": [5, 6, 7], "b/1": [8, 9]})
    client.submit(make_request("a", max_tokens=3, logprobs=0, prompt_logprobs=0))
    client.submit(make_request("b", max_tokens=2, n=2, temperature=1.0, logit_bias={3: 1.0}, stop=["x"]))
    deltas = poll_until(client, lambda deltas: len([d for d in deltas if d.finish_reason]) == 3)
    assert tokens(deltas, "a") == [5, 6, 7]
    assert tokens(deltas, "b", 1) == [8, 9]
    first = next(d for d in deltas if d.request_id == "a")
    assert first.logprobs is not None
    assert first.logprobs[0].logprobs == [-1.0]
    assert first.prompt_logprobs is not None
    assert [entry and entry.logprobs[0] for entry in first.prompt_logprobs] == [None, -1.0, -2.0, -3.0]


def test_an_idle_poll_returns_nothing_and_one_in_another_thread_wakes_for_a_request(make: Make) -> None:
    client = make()
    poll_until(client, lambda _: client.status.is_ready)
    assert client.call("check_integrity")["held"] == 0
    assert client.poll(0.0) == EngineOutput()
    outputs = []
    reader = threading.Thread(target=lambda: outputs.extend(poll_until(client, ended("a"))))
    reader.start()
    client.submit(make_request("a", 5, max_tokens=2))
    reader.join(20)
    assert tokens(outputs, "a") == [default_token(make_request("a", 5), 0, i) for i in range(2)]


def test_an_abort_frees_the_blocks_and_no_delta_follows(make: Make) -> None:
    client = make(max_num_seqs=1)
    for name in "abc":
        client.submit(make_request(name, 20, max_tokens=400))
    poll_until(client, lambda deltas: len(deltas) >= 2)
    client.abort("a")
    client.abort("c", reason="stop")
    client.abort("unknown")
    assert client.call("check_integrity")["held"] <= 2
    names = {d.request_id for d in poll_until(client, ended("b"))}
    assert names <= {"a", "b"}  # "a": what was on its way before the abort
    assert client.call("check_integrity")["held"] == 0


def test_calls_come_between_steps_and_may_fail(make: Make) -> None:
    client = make()
    client.submit(make_request("a", 20, max_tokens=400))
    state = client.call("debug_state")
    assert state["num_running"] + state["num_waiting"] == 1
    assert state["blocks"]["total"] == 64
    with pytest.raises(EngineError, match="no operation 'close'; it has check_integrity, debug_state"):
        client.call("close")
    with pytest.raises(EngineError, match="debug_state failed: TypeError"):
        client.call("debug_state", 1)
    assert len(tokens(poll_until(client, ended("a")), "a")) == 400


def test_errors_end_one_request_and_leave_the_others(make: Make) -> None:
    client = make(row_errors={"b": 1}, num_blocks=4, max_model_len=200)
    client.submit(make_request("a", 5, max_tokens=3))
    client.submit(make_request("b", 5, max_tokens=3))
    client.submit(make_request("c", 5, max_tokens=100))
    last = {d.request_id: d for d in poll_until(client, ended("a", "b", "c")) if d.finish_reason}
    assert (last["a"].finish_reason, last["a"].error) == ("length", None)
    assert (last["b"].finish_reason, last["b"].error) == ("error", "row error by script at output position 1")
    assert last["c"].error is not None
    assert "needs up to 7 KV cache blocks" in last["c"].error


def test_failed_steps_end_their_requests_and_several_in_a_row_the_engine(make: Make) -> None:
    client = make(failing_steps=[1, 4, 5, 6], max_num_seqs=1)
    for name in "ab":
        client.submit(make_request(name, 5, max_tokens=2))
    deltas = poll_until(client, ended("a", "b"))
    assert [(d.request_id, d.finish_reason) for d in deltas if d.finish_reason] == [("a", "error"), ("b", "length")]
    for name in "cde":
        client.submit(make_request(name, 5, max_tokens=2))
    with pytest.raises(EngineDeadError, match="3 steps in a row failed, the last with ArithmeticError"):
        poll_until(client, ended("e"))
    assert client.status.is_dead
    assert client.status.message.startswith("3 steps in a row failed")
    with pytest.raises(EngineDeadError):
        client.call("debug_state")


def test_the_newest_stats_add_up_when_all_is_done(make: Make) -> None:
    client = make()
    seen: list[EngineStats] = []
    for i in range(6):
        client.submit(make_request(f"r{i}", 5, max_tokens=4))
    client.abort("r3")
    while not seen or seen[-1].num_finished < 5:
        stats = client.poll(1.0).stats
        seen += [stats] if stats is not None else []
    assert (seen[-1].num_received, seen[-1].num_aborted, seen[-1].num_running, seen[-1].num_waiting) == (6, 1, 0, 0)
    assert seen[-1].num_free_blocks == seen[-1].num_blocks == 64


def test_an_abort_that_leaves_nothing_to_do_still_brings_stats(make: Make) -> None:
    client = make()
    client.submit(make_request("a", 5, max_tokens=400))
    poll_until(client, lambda deltas: bool(deltas))
    client.abort("a")
    stats = None
    while stats is None or stats.num_aborted == 0:
        stats = client.poll(1.0).stats or stats
    assert (stats.num_running, stats.num_free_blocks) == (0, 64)


def test_requests_may_come_from_many_threads(make: Make) -> None:
    client = make(num_blocks=200)

    def submit(name: str) -> None:
        for i in range(25):
            client.submit(make_request(f"{name}{i}", 5, max_tokens=3))

    threads = [threading.Thread(target=submit, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    deltas = poll_until(client, ended(*(f"{name}{i}" for name in "abcd" for i in range(25))))
    for thread in threads:
        thread.join()
    assert len(deltas) == 300


def test_close_is_final_and_may_be_repeated(make: Make) -> None:
    client = make()
    client.submit(make_request("a", 5, max_tokens=400))
    client.close()
    client.close()
    client.abort("a")
    assert client.status.is_dead
    uses = [
        lambda: client.poll(0.0),
        lambda: client.call("debug_state"),
        lambda: client.submit(make_request("b")),
    ]
    for use in uses:
        with pytest.raises(EngineDeadError, match="The engine was closed"):
            use()


def test_close_wakes_a_poll_in_another_thread(make: Make) -> None:
    client = make()
    poll_until(client, lambda _: client.status.is_ready)
    deaths: list[str] = []

    def read() -> None:
        try:
            while True:
                client.poll(60.0)
        except EngineDeadError as error:
            deaths.append(error.message)

    reader = threading.Thread(target=read)
    reader.start()
    client.close()
    reader.join(5)
    assert deaths == ["The engine was closed."]
