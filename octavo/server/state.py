"""What the handlers share: the engine's client, what is known of the model, the metrics, and whether requests are taken."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from octavo.config import EngineConfig
from octavo.engine.request import EngineStatus
from octavo.errors import EngineDeadError, NotFoundError
from octavo.parsing.formats import OutputFormats
from octavo.server.admission import Admission, Visit
from octavo.server.deadline import set_deadline
from octavo.server.errors import LoadingError, ShuttingDownError
from octavo.server.exchange import Exchange
from octavo.server.grammars import GrammarQueue
from octavo.server.metrics import Metrics
from octavo.server.responses.store import ResponseStore

if TYPE_CHECKING:
    from octavo.engine.async_client import AsyncClient
    from octavo.engine.intake import Intake

_THREAD_SIZE = 8192  # a text this long takes a millisecond to tokenize, so a thread does it
Result = TypeVar("Result")


@dataclass
class Model:
    """A model that is ready: `names` are what clients may call it, the first what answers call it."""

    names: tuple[str, ...]
    root: str
    intake: Intake
    created: int  # seconds since the epoch
    trusts_request_templates: bool = False
    formats: OutputFormats = field(default_factory=OutputFormats)

    def check_name(self, name: str | None) -> None:
        """Raises NotFoundError for another model's name; none at all means this one."""
        if name is not None and name not in self.names:
            aliases = ", ".join(self.names)
            raise NotFoundError(f"The model `{name[:256]}` does not exist. Valid aliases: {aliases}.", parameter="model")

    @property
    def tasks(self) -> tuple[str, ...]:
        """What it is there for: "generate", or what a pooling model has."""
        pooling = self.intake.pooling
        if pooling is None:
            return ("generate",)
        return ("pooling", *pooling.tasks, *(("score",) if pooling.scores else ()))

    def check_task(self, task: str, path: str) -> None:
        """Raises NotFoundError, saying what the model is there for, where a path asks for something else."""
        if task not in self.tasks:
            served = "generate" if self.intake.pooling is None else " and ".join(self.tasks[1:])
            hint = "; --runner pooling would make it embed" if self.intake.pooling is None else ""
            raise NotFoundError(f"The model `{self.names[0]}` serves {served}, and {path} needs a model for {task}{hint}.")


@dataclass
class ServerState:
    """One server. `client` and `model` come while it starts; `stopping` is set by SIGTERM."""

    config: EngineConfig
    client: AsyncClient | None = None
    model: Model | None = None
    stopping: bool = False
    stall: str | None = None  # why nothing moves, while nothing does
    metrics: Metrics = field(default_factory=Metrics)
    running: dict[asyncio.Task[None], Exchange] = field(default_factory=dict)
    responses: ResponseStore = field(default_factory=ResponseStore)
    grammars: GrammarQueue = field(default_factory=GrammarQueue)

    on_first_answer: Callable[[], None] | None = None  # called once, when the first request has been answered
    engine_state: asyncio.Future[dict[str, Any]] | None = None  # that somebody has asked for last
    _serial: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.admission = Admission(self.config)
        self.metrics.rejections = self.admission.rejections

    def let_in(self, exchange: Exchange, num_sequences: int, timeout: float | None) -> Visit:
        """A request of so many sequences is good so far: let it in, for as long as its client will wait. QueueFullError,
        and ValidationError for a time that is none."""
        set_deadline(exchange, timeout)
        visit = self.admission.visit(num_sequences)
        exchange.on_end.callback(visit.leave)
        return visit

    def engine_id(self, response_id: str) -> str:
        """The id under which the engine knows a request: no two are equal, whatever ids clients choose."""
        return f"{response_id}-{next(self._serial)}"

    def answered(self) -> None:
        """A request has been answered."""
        if self.on_first_answer is not None:
            self.on_first_answer()
            self.on_first_answer = None

    @property
    def status(self) -> EngineStatus:
        """The engine's phase; "starting" before there is one."""
        return EngineStatus("starting") if self.client is None else self.client.status

    @property
    def phase(self) -> str:
        """stopping, dead, loading, stalled or ready."""
        if self.stopping:
            return "stopping"
        if self.status.is_dead:
            return "dead"
        if self.model is None or not self.status.is_ready:
            return "loading"
        return "stalled" if self.stall is not None else "ready"

    def ready(self) -> tuple[AsyncClient, Model]:
        """Client and model, when requests can be served. Raises UnavailableError with the reason when they cannot."""
        status = self.status
        if self.stopping:
            raise ShuttingDownError()
        if status.is_dead:
            raise EngineDeadError(status.message or "The engine has died.")
        if self.client is None or self.model is None or not status.is_ready:
            text = f"The model is loading ({status.phase}, {status.percent:.0f} %). Please try again in a moment."
            raise LoadingError(text)
        return self.client, self.model


async def offload(size: int, work: Callable[[], Result]) -> Result:
    """Do work on so many bytes, characters or token ids: here when they are few, in a thread when it would keep the other
    streams waiting."""
    return work() if size < _THREAD_SIZE else await asyncio.to_thread(work)
