"""The process from the bound port to its exit code, with a scripted engine in a process of its own."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import psutil
import pytest

from octavo.config import EngineConfig
from octavo.engine import intake
from octavo.engine.request import EngineStatus
from octavo.errors import StartupError
from octavo.server.app import serve
from octavo.server.startup import ModelOpening, Phases, ProgressReport, bind, process_age, table
from tests.scripted import Script, script_file
from tests.server.process import ServerProcess, server_process
from tests.server.running import decode_events

TEXT = "/v1/completions"


def launched(
    folder: Path, model: Path, script: Script, shutdown_timeout: float = 10.0
) -> AbstractContextManager[ServerProcess]:
    path = str(script_file(folder, script).model)
    return server_process("-m", "tests.server.launch", path, str(model), str(shutdown_timeout))


def gate(folder: Path) -> str:
    """A FIFO that holds the engine's start until it is written to."""
    path = folder / "gate"
    os.mkfifo(path)
    return str(path)


def body(max_tokens: int, **more: Any) -> dict[str, Any]:
    return {"prompt": "Hello", "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True, **more}


def events(lines: list[str]) -> list[Any]:
    return decode_events("".join(f"{line}\n" for line in lines))


def test_c163_until_the_model_is_ready_everything_says_so(tmp_path: Path, smollm2: Path) -> None:
    loading = gate(tmp_path)
    with launched(tmp_path, smollm2, Script(start_gate=loading)) as server:
        server.wait_for_log("process start")
        health = server.http.get("/health")
        assert health.status_code == 503
        status = health.json()
        assert (status["status"], status["phase"], status["percent"]) == ("loading", "loading weights", 50.0)
        assert status["seconds"].keys() >= {"process start"}
        assert health.headers["retry-after"] == "1"
        for answer in (server.http.post(TEXT, json=body(2)), server.http.get("/v1/models")):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            error = answer.json()["error"]
            assert (error["type"], error["code"]) == ("ServiceUnavailableError", 503)
            assert "loading weights, 50 %" in error["message"]
        assert [server.http.get(path).status_code for path in ("/livez", "/readyz", "/version")] == [200, 503, 200]
        assert server.http.get("/metrics").status_code == 200
        Path(loading).write_bytes(b"")
        server.wait_for_log("  ready ")
        assert server.http.get("/health").status_code == 200
        assert server.http.post(TEXT, json=body(2)).status_code == 200
        server.wait_for_log("First answer")
        log = "".join(server.log)
        for phase in ("port bound", "tokenizer ready", "ready"):
            assert f"  {phase}" in log
        assert "\r" not in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_c167_a_signal_lets_streams_end(tmp_path: Path, smollm2: Path, number: int) -> None:
    with launched(tmp_path, smollm2, Script(step_seconds=0.02)) as server:
        server.wait_for_log("  ready ")
        streams = [server.stream(TEXT, body(40)) for _ in range(3)]
        engine = server.engine
        server.process.send_signal(number)
        server.wait_for_log("Stopping")
        refused = server.http.post(TEXT, json=body(2))
        assert refused.status_code == 503
        assert "shutting down" in refused.json()["error"]["message"]
        assert server.http.get("/health").json()["status"] == "stopping"
        for stream in streams:
            received = events(stream.result())
            assert sum(len(each["choices"][0]["token_ids"]) for each in received) == 40
            assert received[-1]["choices"][0]["finish_reason"] == "length"
        assert server.end() == (0, [])
        assert not engine.is_running()


@pytest.mark.parametrize("stream", [True, False])
def test_c167_when_the_grace_time_is_over_the_rest_ends_with_an_error(tmp_path: Path, smollm2: Path, stream: bool) -> None:
    with launched(tmp_path, smollm2, Script(step_seconds=0.02), shutdown_timeout=0.3) as server:
        server.wait_for_log("  ready ")
        running = server.stream(TEXT, body(480))
        whole = server.threads.submit(server.http.post, TEXT, json=body(480, stream=stream))
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Stopping")
        received = events(running.result())
        assert received[-1]["error"]["code"] == 503
        assert 0 < len(received) < 480
        answer = whole.result()
        error = events(answer.text.splitlines())[-1] if answer.status_code == 200 else answer.json()
        assert error["error"]["type"] == "ServiceUnavailableError"
        assert server.end() == (0, [])


def test_c167_a_second_signal_ends_at_once(tmp_path: Path, smollm2: Path) -> None:
    with launched(tmp_path, smollm2, Script(step_seconds=0.05), shutdown_timeout=60) as server:
        server.wait_for_log("  ready ")
        running = server.stream(TEXT, body(480))
        engine = server.engine
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Stopping")
        started = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == (128 + signal.SIGTERM, [])
        assert time.monotonic() - started < 5
        assert not engine.is_running()
        assert events(running.result())[-1]["error"]["code"] == 503


def test_a_body_that_is_still_on_its_way_ends_with_the_server(tmp_path: Path, smollm2: Path) -> None:
    head = f"POST {TEXT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += "content-length: 9\r\nexpect: 100-continue\r\n\r\n"
    with launched(tmp_path, smollm2, Script()) as server:
        server.wait_for_log("  ready ")
        host, port = server.address.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(head.encode())
            assert connection.recv(100).startswith(b"HTTP/1.1 100 ")  # the server waits for the body
            server.process.send_signal(signal.SIGTERM)
            assert server.end() == (0, [])
            assert connection.recv(1000).startswith(b"HTTP/1.1 503 ")


def test_the_end_waits_for_what_reads_the_tokenizer(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, may_end = threading.Event(), threading.Event()

    def read(config: EngineConfig, path: Path) -> None:
        reading.set()
        assert may_end.wait(10)
        raise StartupError("it cannot be read")

    monkeypatch.setattr(intake, "open_intake", read)
    opening = ModelOpening(EngineConfig(model=str(smollm2)), Phases())
    assert reading.wait(10)
    closing = threading.Thread(target=opening.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    may_end.set()
    closing.join(10)
    assert not closing.is_alive()
    assert isinstance(opening.result.exception(10), StartupError)


def test_a_signal_while_loading_ends_the_start(tmp_path: Path, smollm2: Path) -> None:
    with launched(tmp_path, smollm2, Script(start_seconds=30)) as server:
        server.wait_for_log("process start")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == (0, [])


def test_c163_a_dead_engine_is_told_at_once_and_ends_the_server(tmp_path: Path, smollm2: Path) -> None:
    with launched(tmp_path, smollm2, Script(step_seconds=0.02)) as server:
        server.wait_for_log("  ready ")
        running = server.stream(TEXT, body(480))
        killed = time.monotonic()
        server.engine.kill()
        received = events(running.result())
        assert time.monotonic() - killed < 5
        assert received[-1]["error"]["code"] == 503
        assert "SIGKILL" in received[-1]["error"]["message"]
        health = server.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "dead")
        assert "SIGKILL" in health.json()["message"]
        assert server.http.post(TEXT, json=body(2)).status_code == 503
        assert time.monotonic() - killed < 5
        assert server.end()[0] == 1


def test_an_engine_that_gives_up_says_why(tmp_path: Path, smollm2: Path) -> None:
    with launched(tmp_path, smollm2, Script(failing_steps=[3, 4, 5])) as server:
        server.wait_for_log("  ready ")
        for _ in range(3):
            server.http.post(TEXT, json=body(8))
        health = server.http.get("/health")
        assert (health.status_code, health.json()["status"]) == (503, "dead")
        assert "ArithmeticError" in health.json()["message"]
        assert server.end()[0] == 1


def test_a_start_that_fails_is_one_line(tmp_path: Path, smollm2: Path) -> None:
    with launched(tmp_path, smollm2, Script(start_error="there is no such model")) as server:
        assert server.end() == (1, ["octavo: error: there is no such model\n"])


def test_c154_a_model_that_the_server_cannot_open_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with launched(tmp_path, tmp_path, Script(start_seconds=30)) as server:
        code, errors = server.end()
        assert (code, len(errors)) == (1, 1)
        assert errors[0].startswith("octavo: error: ")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("none", "is neither an existing path nor a hub id such as HuggingFaceTB/SmolLM2-135M-Instruct"),
        (".", "has no config.json but a.gguf, c.gguf; give the path of the .gguf file itself"),
        ("empty", "is not a model directory: it has no config.json (it is empty)"),
        ("b.bin", "is neither a model directory nor a .gguf file"),
        ("dangling", "cannot be read (No such file or directory); give a model directory or a .gguf file that"),
        ("x" * 300, "cannot be read (File name too long); give a model directory or a .gguf file that"),
    ],
)
def test_what_is_no_model_is_told_before_anything_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    for file in ("a.gguf", "b.bin", "c.gguf"):
        (tmp_path / file).touch()
    for folder in ("empty", "dangling"):
        (tmp_path / folder).mkdir()
    (tmp_path / "dangling" / "config.json").symlink_to("none")
    monkeypatch.setattr("octavo.server.app.bind", lambda host, port: pytest.fail("it listens"))
    assert serve(EngineConfig(model=str(tmp_path / name), port=0)) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("octavo: error: ")
    assert words in line


def test_a_port_in_use_is_refused_with_what_to_change() -> None:
    with bind("127.0.0.1", 0) as first, pytest.raises(StartupError, match="--port") as caught:
        bind("127.0.0.1", first.getsockname()[1])
    assert "\n" not in caught.value.message
    with pytest.raises(StartupError, match="--host"):
        bind("256.0.0.1", 0)


def test_too_few_open_files_are_one_line() -> None:
    command = ["sh", "-c", 'ulimit -n 40; exec "$@"', "sh", sys.executable, "-m", "octavo", "serve", "--port", "0"]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert process.stderr.splitlines() == [
        "octavo: error: only 40 files may be open at once; raise the limit (ulimit -n) to 64 or more: each connection is one"
    ]


def test_as_many_files_as_the_system_allows() -> None:
    code = "import resource as r; from octavo.server.startup import allow_open_files as allow\n"
    code += "allow(); print(r.getrlimit(r.RLIMIT_NOFILE)[0])"
    command = ["sh", "-c", 'ulimit -Sn 30; ulimit -Hn 300; exec "$@"', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "300\n"


def test_requests_that_come_while_the_model_loads_fill_no_log(tmp_path: Path, smollm2: Path) -> None:
    loading = gate(tmp_path)
    with launched(tmp_path, smollm2, Script(start_gate=loading)) as server:
        server.wait_for_log("process start")
        answers = [server.http.post(TEXT, json=body(2)) for _ in range(15)]
        assert [answer.status_code for answer in answers] == [503] * 15
        Path(loading).write_bytes(b"")
        server.wait_for_log("  ready ")
        assert server.http.post(TEXT, json=body(2)).status_code == 200
        server.wait_for_log(f"POST {TEXT} 200")
        lines = [line.split("] ")[1] for line in server.log if f"POST {TEXT} 503" in line]
        assert lines == [f"POST {TEXT} 503 (loading); refused so: {count}\n" for count in (1, 10)]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_fills_on_a_terminal_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", Terminal())
    progress = ProgressReport(show_bar=True)
    progress.show(EngineStatus("loading weights", 50.0))
    half = sys.stderr.getvalue()  # type: ignore[attr-defined]
    assert half.endswith(f"loading weights [{'#' * 15}{'.' * 15}]  50 %")
    progress.show(EngineStatus("ready", 100.0, seconds={"loading weights": 1.0}))
    assert sys.stderr.getvalue().endswith("\r\x1b[K")  # type: ignore[attr-defined]


def test_a_log_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    for stderr, show_bar in ((io.StringIO(), True), (Terminal(), False)):
        monkeypatch.setattr("sys.stderr", stderr)
        ProgressReport(show_bar).show(EngineStatus("loading weights", 50.0))
        assert stderr.getvalue() == ""


def test_the_clock_of_the_phases_starts_with_the_process() -> None:
    phases = Phases()
    since = time.time() - psutil.Process().create_time()
    assert phases.mark("now") == pytest.approx(since, abs=1.1)  # psutil knows the boot time in whole seconds
    assert process_age() >= phases.reached["now"]
    assert table({"a": "1", "long": "2"}) == "  a     1\n  long  2"
