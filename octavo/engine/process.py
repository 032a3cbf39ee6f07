"""The engine in its own process, for serving: steps and HTTP never wait for each other's interpreter."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import zmq

from octavo.child_process import environment
from octavo.config import EngineConfig
from octavo.engine.messages import (
    Abort,
    Call,
    Command,
    Launch,
    Submit,
    address,
    decode_output,
    decode_reply,
    decode_status,
    encode,
)
from octavo.engine.request import EngineOutput, EngineStatus, Request
from octavo.errors import EngineDeadError, EngineError, StartupError

SECONDS_TO_EXIT = 2.0  # after the client hung up, before the process is killed


class ProcessClient:
    """An `EngineClient` of an engine in a child process, which starts at once and loads while `poll` reports how far it is.

    Needs no main guard: the child is a fresh interpreter. A socket pair, the line, connects the two for as long as both
    live: either sees the other's end as the end of file. The zmq sockets are in a private directory.
    """

    def __init__(self, config: EngineConfig, *, factory: str = "octavo.engine.build:build_engine") -> None:
        """`factory` is "module:function", with the signature of `build_engine`; tests put a scripted engine there.
        StartupError where the system lets no process start."""
        self._status = EngineStatus("starting")
        self._directory = _private_directory()
        self._context = zmq.Context()
        self._sending, self._polling, self._calling, self._ending = (threading.Lock() for _ in range(4))
        self._last_call = 0
        self._is_closed = False
        try:
            self._commands = self._context.socket(zmq.PUSH)
            self._outputs = self._context.socket(zmq.PULL)
            self._replies = self._context.socket(zmq.PULL)
            for each in (self._commands, self._outputs, self._replies):
                each.set_hwm(0)
                each.linger = 0
            self._commands.reconnect_ivl = 5  # milliseconds; the child binds as soon as it can
            self._commands.connect(address(self._directory, "commands"))  # connected, not bound: what is sent early is kept
            self._outputs.bind(address(self._directory, "outputs"))
            self._replies.bind(address(self._directory, "replies"))
            self._line, child_line = socket.socketpair()
            with child_line, contextlib.ExitStack() as undo:
                undo.callback(self._line.close)
                self._process = _spawn(child_line, Launch(config, factory, str(self._directory), time.time()))
                undo.pop_all()
        except (OSError, zmq.ZMQError) as error:  # no files or processes left to open, or no room for the sockets
            self._context.destroy(linger=0)
            shutil.rmtree(self._directory, ignore_errors=True)
            raise StartupError(f"the engine's process cannot be started: {error}") from None

    @property
    def status(self) -> EngineStatus:
        """See `EngineClient`."""
        return self._status

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    def submit(self, request: Request) -> None:
        """See `EngineClient`."""
        self._send(Submit(request))

    def abort(self, request_id: str, index: int | None = None, reason: str = "abort") -> None:
        """See `EngineClient`."""
        with contextlib.suppress(EngineDeadError):
            self._send(Abort(request_id, index, reason))

    def poll(self, timeout: float) -> EngineOutput:
        """See `EngineClient`. Sleeps until the engine says something, or ends."""
        with self._polling:
            data = self._receive(self._outputs, timeout)
        if data is None:
            return EngineOutput()
        output = decode_output(data)
        if output.status is not None and not self._status.is_dead:
            self._status = output.status
        return output

    def call(self, method: str, *arguments: Any) -> Any:
        """See `EngineClient`. While the engine is loading it waits."""
        with self._calling:
            self._last_call += 1
            self._send(Call(self._last_call, method, list(arguments)))
            while True:
                data = self._receive(self._replies, None)
                reply = decode_reply(data) if data is not None else None
                if reply is not None and reply.number == self._last_call:
                    break  # not the late reply to a call that was interrupted
        if reply.error is not None:
            raise EngineError(reply.error)
        return reply.result

    def close(self) -> None:
        """See `EngineClient`. Leaves no process and no file."""
        with self._ending:
            if self._is_closed:
                return
            self._is_closed = True
        self._line.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(SECONDS_TO_EXIT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if not self._status.is_dead:
            self._status = EngineStatus("dead", message="The engine was closed.")
        with self._polling, self._calling, self._sending:
            self._context.destroy(linger=0)
            self._line.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _send(self, command: Command) -> None:
        data = encode(command)
        with self._sending:
            self._raise_if_dead()
            self._commands.send(data)

    def _receive(self, source: zmq.Socket[bytes], timeout: float | None) -> bytes | None:
        """The next message, or None after `timeout` seconds. EngineDeadError once the line has ended."""
        self._raise_if_dead()
        poller = zmq.Poller()
        poller.register(source, zmq.POLLIN)
        poller.register(self._line, zmq.POLLIN)
        events = dict(poller.poll(None if timeout is None else round(timeout * 1000)))
        if source in events:
            return source.recv()
        if events:
            self._bury()
            self._raise_if_dead()
        return None

    def _raise_if_dead(self) -> None:
        if self._status.is_dead:
            raise EngineDeadError(self._status.message)

    def _bury(self) -> None:
        """The line has ended: find out why, once."""
        with self._ending:
            if self._status.is_dead:
                return
            if self._is_closed:
                self._status = EngineStatus("dead", message="The engine was closed.")
                return
            last_words = b""
            while part := self._line.recv(65536):
                last_words += part
            said = decode_status(last_words).message if last_words else ""
            self._status = EngineStatus("dead", message=said or _how_it_ended(self._process))


def _private_directory() -> Path:
    """For the sockets. Their paths must be short, which not every TMPDIR is."""
    longest = zmq.IPC_PATH_MAX_LEN - len("/octavo-12345678/commands")
    folder = tempfile.gettempdir()
    return Path(tempfile.mkdtemp(prefix="octavo-", dir=folder if len(os.fsencode(folder)) <= longest else "/tmp"))


def _spawn(line: socket.socket, launch: Launch) -> subprocess.Popen[bytes]:
    """Start the engine's process. It ignores the signals that are meant for the server; until it does, they are blocked."""
    command = [sys.executable, "-m", "octavo.engine.process_main", str(line.fileno())]
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        process = subprocess.Popen(command, env=environment(), stdin=subprocess.PIPE, pass_fds=[line.fileno()])
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    assert process.stdin is not None
    try:
        with process.stdin:
            process.stdin.write(encode(launch))
    except BrokenPipeError:
        pass  # it is dead already, which the first poll reports
    return process


def _how_it_ended(process: subprocess.Popen[bytes]) -> str:
    try:
        code = process.wait(0.5)
    except subprocess.TimeoutExpired:
        return "The engine process hung up."
    if code >= 0:
        return f"The engine process ended with exit code {code}."
    hint = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"The engine process was killed by {signal.Signals(-code).name}{hint}."
