"""The engine's process: builds the engine, then takes commands and runs steps until the client hangs up.

Started by `ProcessClient` as `python -m octavo.engine.process_main FD`, FD being this process's end of the line.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import shutil
import signal
import socket
import sys
import threading
import time
from typing import cast

import msgspec
import zmq

from octavo.engine.engine import Engine
from octavo.engine.messages import Abort, Call, Reply, Submit, address, decode_command, decode_launch, encode
from octavo.engine.operations import perform
from octavo.engine.request import EngineOutput, EngineStatus
from octavo.engine.watchdog import StallReporter, Watchdog
from octavo.errors import EngineError, OctavoError

logger = logging.getLogger(__name__)


class Channels:
    """The engine's ends of the three zmq sockets."""

    def __init__(self, directory: str) -> None:
        self._context = zmq.Context()
        self._commands = self._context.socket(zmq.PULL)
        self._outputs = self._context.socket(zmq.PUSH)
        self._replies = self._context.socket(zmq.PUSH)
        for each in (self._commands, self._outputs, self._replies):
            each.set_hwm(0)  # a slow client never blocks a step
        self._commands.bind(address(directory, "commands"))
        self._outputs.connect(address(directory, "outputs"))
        self._replies.connect(address(directory, "replies"))
        self._sending = threading.Lock()  # loading may report from several threads

    def send(self, output: EngineOutput) -> None:
        """To the client's `poll`."""
        with self._sending:
            self._outputs.send(encode(output))

    def obey(self, engine: Engine, *, wait: bool) -> bool:
        """Carry out the commands that are here; with `wait`, sleep until there is one. Whether any changed the stats."""
        is_changed = False
        while wait or cast(int, self._commands.get(zmq.EVENTS)) & zmq.POLLIN:
            command = decode_command(self._commands.recv())
            wait, is_changed = False, is_changed or not isinstance(command, Call)
            if isinstance(command, Submit):
                engine.add(command.request)
            elif isinstance(command, Abort):
                engine.abort(command.request_id, command.index, command.reason)
            else:
                self._replies.send(encode(_reply(engine, command)))
        return is_changed


def _reply(engine: Engine, call: Call) -> Reply:
    try:
        return Reply(call.number, perform(engine, call.method, call.arguments), None)
    except EngineError as error:
        return Reply(call.number, None, error.message)


def serve(engine: Engine, channels: Channels) -> None:
    """Commands, step, output, for ever; asleep while there is nothing to do. EngineDeadError ends it."""
    while True:
        is_changed = channels.obey(engine, wait=not engine.has_work)
        if engine.has_work or is_changed:
            channels.send(engine.step())


def main() -> int:
    """The exit code: 1 after a failed start or a dead engine. When the client hangs up or dies, the process ends at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C and `systemctl stop` reach the whole group: the server decides
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(asctime)s [engine] %(message)s")
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    launch = decode_launch(sys.stdin.buffer.read())
    threading.Thread(target=_end_with_the_client, args=(line, launch.directory), daemon=True).start()
    try:
        channels = Channels(launch.directory)
        module, function = launch.factory.split(":")
        factory = getattr(importlib.import_module(module), function)
        process_start = time.time() - launch.started

        def report(status: EngineStatus) -> None:
            status = msgspec.structs.replace(status, seconds={"process start": process_start, **status.seconds})
            channels.send(EngineOutput(status=status))

        engine = cast(Engine, factory(launch.config, report))
        gc.freeze()  # what was loaded stays: the collector need not look at it again
        StallReporter(engine, Watchdog(launch.config.engine_stall_timeout)).start()
        serve(engine, channels)
    except OctavoError as error:
        line.sendall(encode(EngineStatus("dead", message=error.message)))
    except Exception as error:
        logger.exception("The engine failed")
        line.sendall(encode(EngineStatus("dead", message=f"{type(error).__name__}: {error}")))
    return 1


def _end_with_the_client(line: socket.socket, directory: str) -> None:
    """Nothing is ever sent on the line to here: it only ends, by `close` or with the client's process."""
    line.recv(1)
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # the threads of zmq and of the kernels have nothing left to do
