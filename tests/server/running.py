"""A real server on loopback around a scripted model: uvicorn and the asyncio client in a thread, the engine in process."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import httpx
import uvicorn

from octavo.config import EngineConfig
from octavo.engine.async_client import AsyncClient
from octavo.engine.in_process import InProcessClient
from octavo.engine.intake import Intake
from octavo.engine.plan import StepPlan
from octavo.engine.request import EngineStats
from octavo.server.app import create_app
from octavo.server.formats import model_formats
from octavo.server.http import http_config
from octavo.server.metrics import Metrics, SequenceEnd
from octavo.server.startup import bind
from octavo.server.state import Model, ServerState
from tests.scripted import Script, ScriptedRunner, scripted_engine

Result = TypeVar("Result")
_ENGINE_ID = re.compile(r"(?:chatcmpl-|cmpl-|msg_|resp_)(.*)-\d+(/\d+)?")


class ByRequestId(dict[str, list[int]]):
    """Prepared outputs by the id that the client chose (X-Request-Id), "id/index" for one of n."""

    def get(self, name: str, default: Any = None) -> Any:
        match = _ENGINE_ID.fullmatch(name)
        return super().get(f"{match[1]}{match[2] or ''}" if match else name, default)


class Gate:
    """Stops the engine before each step while it is closed."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self._steps_until_closed: int | None = None

    def after(self, steps: int) -> None:
        """Close it when so many steps more have passed."""
        self._steps_until_closed = steps

    def __call__(self, plan: StepPlan) -> None:
        if self._steps_until_closed is not None:
            self._steps_until_closed -= 1
            if self._steps_until_closed < 0:
                self._steps_until_closed = None
                self.open.clear()
        assert self.open.wait(30), "the gate was never opened again"


class NewsMetrics(Metrics):
    """Metrics that tell when anything was counted."""

    news: asyncio.Event

    def on_received(self, num_sequences: int) -> None:
        super().on_received(num_sequences)
        self.news.set()

    def on_end(self, end: SequenceEnd, now: float) -> None:
        super().on_end(end, now)
        self.news.set()

    def on_http(self, method: str, path: str, status: int, seconds: float) -> None:
        super().on_http(method, path, status, seconds)
        self.news.set()

    def on_engine_stats(self, stats: EngineStats) -> None:
        super().on_engine_stats(stats)
        self.news.set()


class RunningServer:
    """`outputs` may be filled while it runs; `http` is a client of it; `run` does something inside its event loop."""

    def __init__(self, intake: Intake, script: Script, config: EngineConfig) -> None:
        self.gate = Gate()
        self.runner = ScriptedRunner(script=script, on_step=self.gate)
        self.outputs = self.runner.outputs = ByRequestId(self.runner.outputs)
        self.client = InProcessClient(scripted_engine(self.runner, scheduling_policy=config.scheduling_policy))
        self.metrics = NewsMetrics()
        self.state = ServerState(config, metrics=self.metrics)
        formats = model_formats(config, intake)
        self.state.model = Model(("m", "alias"), "MODEL_DIR", intake, int(time.time()), formats=formats)
        self.metrics.open("m", intake.max_model_len)
        self.listener = bind("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.http = httpx.Client(base_url=self.address, timeout=30)
        self._uvicorn = uvicorn.Server(http_config(create_app(self.state), 2, config))
        self._threads = ThreadPoolExecutor(8)
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    def _serve(self) -> None:
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        client = self.state.client = AsyncClient(self.client)
        self.metrics.news = asyncio.Event()
        client.on_stats(self.metrics.on_engine_stats)
        self._started.set()
        await self._uvicorn.serve([self.listener])
        await client.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """The result of a coroutine that runs in the server's loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def call(self, work: Callable[[], Result]) -> Result:
        """The result of a function that is called in the server's loop."""

        async def run() -> Result:
            return work()

        return self.run(run())

    def until(self, condition: Callable[[], bool], timeout: float = 10.0) -> None:
        """Wait for a condition on the server's state, looked at whenever something is counted (a step, an end, an answer) or
        the work on a request is over."""

        async def wait() -> None:
            while not condition():
                self.metrics.news.clear()
                news = asyncio.create_task(self.metrics.news.wait())
                await asyncio.wait([news, *self.state.running], return_when=asyncio.FIRST_COMPLETED)
                news.cancel()

        self.run(asyncio.wait_for(wait(), timeout))

    def buffered(self) -> int:
        """Bytes that wait in the fullest of the connections' buffers."""
        connections = self._uvicorn.server_state.connections
        return self.call(lambda: max(one.transport.get_write_buffer_size() for one in connections))  # type: ignore[union-attr]

    def idle(self) -> bool:
        """Whether nothing runs, waits or holds a block."""
        engine = self.metrics.engine
        nothing = engine.num_running == engine.num_waiting == 0 == self.metrics.num_unfinished
        return nothing and engine.num_free_blocks == engine.num_blocks and not self.state.running

    def integrity(self) -> dict[str, int]:
        """The block pool's figures, checked, between two steps."""
        result: dict[str, int] = self.client.call("check_integrity")
        return result

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        """POST JSON."""
        return self.http.post(path, json=body, headers={k.replace("_", "-"): v for k, v in headers.items()})

    def submit(self, path: str, body: Any, **headers: str) -> Future[httpx.Response]:
        """`post` in a thread."""
        return self._threads.submit(self.post, path, body, **headers)

    def events(self, path: str, body: Any, **headers: str) -> list[Any]:
        """The events of a stream, each decoded; exactly one [DONE] stands at the end, and the connection ends there."""
        response = self.post(path, {**body, "stream": True}, **headers)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        return decode_events(response.text)

    def close(self) -> None:
        """End it, and fail if anything was left behind."""
        self.gate.open.set()
        self._uvicorn.should_exit = True
        self._thread.join(20)
        assert not self._thread.is_alive()
        self._threads.shutdown()
        self.http.close()


def decode_events(text: str) -> list[Any]:
    """Every event's data; the last must be the only [DONE]."""
    parts = text.split("\n\n")
    assert parts.pop() == ""
    assert all(part.startswith("data: ") and "\n" not in part for part in parts)
    data = [part.removeprefix("data: ") for part in parts]
    assert data.count("[DONE]") == 1
    assert data.pop() == "[DONE]"
    return [json.loads(each) for each in data]


@contextmanager
def running(intake: Intake, script: Script | None = None, config: EngineConfig | None = None) -> Iterator[RunningServer]:
    """A server for one test or many."""
    server = RunningServer(intake, script or Script(), config or EngineConfig())
    try:
        yield server
    finally:
        server.close()
