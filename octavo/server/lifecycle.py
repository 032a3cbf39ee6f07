"""From the bound port to the exit code: waiting for the model, serving, and ending in good order.

- A signal (SIGTERM, SIGINT): new requests get 503, running ones have `shutdown_timeout` seconds to end, those left then end
  with an error, and the exit code is 0. A second signal ends everything at once; the exit code is then 128 + its number.
- The engine dies: running requests fail at once and /health is 503; after `DEAD_ENGINE_GRACE` seconds, in which clients and
  probes can learn of it, the process ends with exit code 1, for whatever supervises it to start it again.
- The start fails: the reason is one line on stderr, the exit code 1.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from octavo.config import EngineConfig
from octavo.engine.async_client import AsyncClient
from octavo.engine.client import EngineClient
from octavo.engine.intake import Intake
from octavo.engine.request import EngineStatus
from octavo.engine.watchdog import Watchdog
from octavo.errors import EngineDeadError, StartupError
from octavo.server.app import create_app
from octavo.server.errors import ShuttingDownError
from octavo.server.formats import model_formats
from octavo.server.http import http_config
from octavo.server.metrics import Metrics
from octavo.server.stall import StallWatch
from octavo.server.startup import ModelOpening, Phases, ProgressReport, table, url
from octavo.server.state import Model, ServerState
from octavo.weights.hub import DEFAULT_MODEL

DEAD_ENGINE_GRACE = 2.0
CLOSING_SECONDS = 2.0  # for the last bytes to go out

logger = logging.getLogger(__name__)


def run(config: EngineConfig, listener: socket.socket, client: EngineClient, opening: ModelOpening, phases: Phases) -> int:
    """Serve on `listener` until something ends it; the exit code. StartupError if the model cannot be loaded."""
    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(_Lifecycle(config, client, opening, phases).run(listener))
    finally:
        loop.close()


class _HttpServer(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the lifecycle's, not uvicorn's."""
        yield


class _Lifecycle:
    def __init__(self, config: EngineConfig, client: EngineClient, opening: ModelOpening, phases: Phases) -> None:
        self._config = config
        self._engine_client = client
        self._opening = opening
        self._phases = phases
        metrics = Metrics(block_size=config.block_size)
        self._state = ServerState(config, metrics=metrics, on_first_answer=self._report_first_answer)
        self._progress = ProgressReport(not config.disable_progress)
        self._signals = 0
        self._exit_code = 0
        self._ending = asyncio.Event()  # something ended the serving: look at _exit_code
        self._hurry = asyncio.Event()  # a second signal

    async def run(self, listener: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        http = _HttpServer(http_config(create_app(self._state), int(CLOSING_SECONDS), self._config))
        serving = asyncio.create_task(http.serve([listener]))
        client = self._state.client = AsyncClient(self._engine_client)
        client.on_status(self._on_status)
        client.on_stats(self._state.metrics.on_engine_stats)
        starting = asyncio.create_task(self._start(client, listener))
        ending = asyncio.create_task(self._ending.wait())
        watch = StallWatch(self._state, Watchdog(self._config.engine_stall_timeout))
        watching = asyncio.create_task(watch.run())
        try:
            tasks: list[asyncio.Task[Any]] = [starting, ending]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
            await ending
            await self._drain()
        finally:
            for task in (starting, ending, watching):
                task.cancel()
            http.should_exit = True
            http.force_exit = self._hurry.is_set()
            await serving
            await client.close()
            if self._state.model is not None:
                self._state.model.intake.grammars.close()
        return self._exit_code

    async def _start(self, client: AsyncClient, listener: socket.socket) -> None:
        self._progress.show(client.status)
        path, intake, status = await self._both_halves(client)
        intake.max_model_len = status.max_model_len or intake.max_model_len
        names = self._config.served_model_name or (self._config.model or DEFAULT_MODEL,)
        self._state.metrics.open(names[0], intake.max_model_len)
        formats = model_formats(self._config, intake)
        trusts = self._config.trust_request_chat_template
        self._state.model = Model(names, str(path), intake, int(time.time()), trusts, formats)
        self._phases.mark("ready")
        gc.freeze()  # vocabulary, template and libraries stay: the collector need not look at them again
        engine = {f"engine: {name}": f"{seconds:.2f} s" for name, seconds in status.seconds.items()}
        rows = {"model": str(path), "served as": ", ".join(names), **status.table, **engine, **self._phases.rows()}
        logger.info("Serving on %s\n%s", url(listener, self._config), table(rows))
        if client.status.is_dead:  # since it was ready
            self._on_status(client.status)

    async def _both_halves(self, client: AsyncClient) -> tuple[Path, Intake, EngineStatus]:
        """The client side and the engine, when both are ready. The first one that fails ends the start."""
        opened = asyncio.wrap_future(self._opening.result)
        ready = asyncio.create_task(client.wait_until_ready())
        halves: list[asyncio.Future[Any]] = [opened, ready]
        try:
            await asyncio.wait(halves, return_when=asyncio.FIRST_EXCEPTION)
            for half in halves:
                if half.done():
                    half.result()
            return *opened.result(), ready.result()
        except EngineDeadError as error:
            raise StartupError(error.message) from None
        finally:
            for half in halves:
                half.cancel()

    def _on_status(self, status: EngineStatus) -> None:
        self._progress.show(status)
        if status.phase not in ("starting", "downloading"):
            self._opening.downloaded()
        if status.is_dead and self._state.model is not None and not self._state.stopping:
            logger.error("The engine is dead: %s The server ends in %.0f s.", status.message, DEAD_ENGINE_GRACE)
            self._exit_code = 1
            asyncio.get_running_loop().call_later(DEAD_ENGINE_GRACE, self._ending.set)

    def _on_signal(self, number: int) -> None:
        self._state.stopping = True
        self._ending.set()
        self._signals += 1
        if self._signals > 1:
            self._exit_code = 128 + number
            self._hurry.set()

    def _report_first_answer(self) -> None:
        logger.info("First answer %.2f s after process start", self._phases.mark("first answer"))

    async def _drain(self) -> None:
        """Let running requests end, then end them."""
        self._state.stopping = True
        running = self._state.running
        if running:
            logger.info("Stopping; %d requests have %.0f s to end", len(running), self._config.shutdown_timeout)
            hurry = asyncio.create_task(self._hurry.wait())
            idle = asyncio.create_task(_all_done(running))
            both: list[asyncio.Task[Any]] = [hurry, idle]
            await asyncio.wait(both, timeout=self._config.shutdown_timeout, return_when=asyncio.FIRST_COMPLETED)
            for waiting in both:
                waiting.cancel()
        for task, exchange in list(running.items()):
            exchange.ending = ShuttingDownError("The server is shutting down and the time for running requests is over.")
            task.cancel()
        if running:
            await asyncio.wait(list(running), timeout=0 if self._hurry.is_set() else CLOSING_SECONDS)


async def _all_done(running: Mapping[asyncio.Task[None], object]) -> None:
    """Wait until nothing runs any more."""
    while running:
        await asyncio.wait(list(running))
