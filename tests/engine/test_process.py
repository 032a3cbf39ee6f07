"""The engine's own process: start, death on either side, signals, and what it leaves behind."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from octavo.config import EngineConfig
from octavo.engine.process import ProcessClient
from octavo.engine.request import EngineStatus
from octavo.errors import EngineDeadError, StartupError
from tests.engine.clients import ended, poll_until, tokens
from tests.scripted import FACTORY, Script, make_request, script_file

Start = Callable[..., ProcessClient]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts scripted engines; afterwards nothing of them is left, neither process nor file."""
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(sockets))
    clients: list[ProcessClient] = []

    def start(factory: str = FACTORY, **script: object) -> ProcessClient:
        clients.append(ProcessClient(script_file(tmp_path, Script(**script)), factory=factory))
        return clients[-1]

    yield start
    for client in clients:
        client.close()
        assert not psutil.pid_exists(client.pid)
    assert not list(sockets.iterdir())


def statuses_until_the_end(client: ProcessClient) -> list[EngineStatus]:
    """All statuses up to ready, or up to the death."""
    seen: list[EngineStatus] = []
    try:
        while not client.status.is_ready:
            status = client.poll(5.0).status
            seen += [status] if status is not None else []
    except EngineDeadError:
        seen.append(client.status)
    return seen


def test_loading_reports_its_phases_and_seconds(start: Start) -> None:
    client = start()
    assert client.status.phase == "starting"
    loading, ready = statuses_until_the_end(client)
    assert (loading.phase, loading.percent) == ("loading weights", 50.0)
    assert (ready.phase, ready.percent) == ("ready", 100.0)
    assert 0.0 < ready.seconds["process start"] < 20.0


def test_requests_made_before_it_is_ready_are_kept(start: Start) -> None:
    client = start(outputs={"a": [5, 6]}, start_seconds=0.2)
    client.submit(make_request("a", max_tokens=2))
    assert client.status.phase == "starting"
    assert tokens(poll_until(client, ended("a")), "a") == [5, 6]


def test_a_failed_start_says_why(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    client = start(start_error="--dtype float8 is not known")
    assert statuses_until_the_end(client)[-1] == EngineStatus("dead", message="--dtype float8 is not known")
    assert "Traceback" not in capfd.readouterr().err


def test_an_unexpected_failure_of_the_start_is_logged_with_its_traceback(
    start: Start, capfd: pytest.CaptureFixture[str]
) -> None:
    client = start(factory="tests.scripted:no_such_factory")
    last = statuses_until_the_end(client)[-1]
    assert last.message == "AttributeError: module 'tests.scripted' has no attribute 'no_such_factory'"
    assert "Traceback" in capfd.readouterr().err


def test_kill_9_is_noticed_at_once(start: Start) -> None:
    client = start(step_seconds=0.01)
    client.submit(make_request("a", 5, max_tokens=400))
    poll_until(client, lambda deltas: bool(deltas))
    os.kill(client.pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(EngineDeadError, match=r"The engine process was killed by SIGKILL \(out of memory\?\)"):
        poll_until(client, ended("a"))
    assert time.monotonic() - began < 1.0
    assert client.status.is_dead
    with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
        client.call("debug_state")


def test_a_call_does_not_outlive_the_engine(start: Start) -> None:
    client = start(start_seconds=60.0)
    os.kill(client.pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
        client.call("debug_state")


def test_an_exit_code_is_reported(start: Start) -> None:
    client = start(exit_at_step=2)
    client.submit(make_request("a", 5, max_tokens=9))
    with pytest.raises(EngineDeadError, match=r"The engine process ended with exit code 7\."):
        poll_until(client, ended("a"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_for_the_whole_group_do_not_end_it(start: Start, number: signal.Signals) -> None:
    client = start(outputs={"a": [5, 6]})
    os.kill(client.pid, number)  # as early as can be
    poll_until(client, lambda _: client.status.is_ready)
    os.kill(client.pid, number)
    client.submit(make_request("a", max_tokens=2))
    assert tokens(poll_until(client, ended("a")), "a") == [5, 6]


def test_closing_while_it_loads_takes_no_time(start: Start) -> None:
    client = start(start_seconds=60.0)
    poll_until(client, lambda _: client.status.phase == "loading weights")
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 1.0


def test_an_engine_that_does_not_answer_is_killed_on_close(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.engine.process.SECONDS_TO_EXIT", 0.1)
    client = start()
    poll_until(client, lambda _: client.status.is_ready)
    os.kill(client.pid, signal.SIGSTOP)
    client.close()
    assert not psutil.pid_exists(client.pid)


def test_an_idle_engine_sleeps(start: Start) -> None:
    client = start()
    client.submit(make_request("a", 5, max_tokens=2))
    poll_until(client, ended("a"))
    client.call("check_integrity")  # it has said all about "a" and waits
    process = psutil.Process(client.pid)

    def seconds_of_work() -> float:
        before = process.cpu_times()
        client.poll(0.3)
        after = process.cpu_times()
        return after.user + after.system - before.user - before.system

    assert min(seconds_of_work() for _ in range(3)) <= 0.02  # what a started process does once is not idleness


PARENT = """
import sys, time
from pathlib import Path
from typing import Any
from octavo.engine.process import ProcessClient
from tests.scripted import FACTORY, Script, script_file, make_request
client = ProcessClient(script_file(Path(sys.argv[1]), Script(step_seconds=0.01)), factory=FACTORY)
while not client.status.is_ready:
    client.poll(1.0)
client.submit(make_request("a", 5, max_tokens=400))
while not client.poll(1.0).deltas:
    pass
print(client.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_engine_ends_with_its_parent(tmp_path: Path, number: signal.Signals) -> None:
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    root = Path(__file__).parents[2]
    environment = {**os.environ, "TMPDIR": str(sockets), "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        engine = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(number)
    gone, alive = psutil.wait_procs([engine], timeout=2.0)
    assert [process.pid for process in gone] == [engine.pid]
    assert not alive
    assert not list(sockets.iterdir())


def test_a_long_temporary_directory_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    client = ProcessClient(script_file(tmp_path, Script()), factory=FACTORY)
    try:
        poll_until(client, lambda _: client.status.is_ready)
    finally:
        client.close()
    assert not list(deep.iterdir())


def test_the_configuration_arrives_whole() -> None:
    from octavo.engine.messages import Launch, decode_launch, encode

    config = EngineConfig(model="m", served_model_name=("a", "b"), api_key=("k",), memory_utilization=0.5, seed=7)
    assert decode_launch(encode(Launch(config, FACTORY, "/d", 1.0))).config == config


def test_where_no_process_can_start_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(StartupError, match=r"^the engine's process cannot be started: \[Errno 24\] Too many open files$"):
        ProcessClient(EngineConfig())
    assert list(tmp_path.iterdir()) == []
