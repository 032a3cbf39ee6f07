"""What probes and monitors ask: `/health` and its kin, `/load`, `/version`, `/metrics`. They answer in every phase."""

from __future__ import annotations

import msgspec

import octavo
from octavo.server.exchange import Exchange
from octavo.server.state import ServerState

# Asked all the time: not worth a log line each.
QUIET_PATHS = frozenset({"/health", "/livez", "/readyz", "/ping", "/load", "/metrics"})


class Health(msgspec.Struct):
    """Why nothing is served. `status` is loading, stopping, dead or stalled; `percent` is of the phase."""

    status: str
    phase: str
    percent: float
    message: str
    seconds: dict[str, float]


class Load(msgspec.Struct):
    """Requests being worked on, streams included."""

    server_load: int


class Version(msgspec.Struct):
    """The server's version."""

    version: str


async def health(server: ServerState, exchange: Exchange) -> None:
    """200 and nothing when requests are served; else 503 and the reason."""
    if server.phase == "ready":
        await exchange.respond(b"")
        return
    state, status = server.phase, server.status
    message = server.stall or "" if state == "stalled" else status.message
    body = msgspec.json.encode(Health(state, status.phase, round(status.percent, 1), message, status.seconds))
    headers = [(b"retry-after", b"1")] if state == "loading" else []
    await exchange.respond(body, status=503, headers=headers)


async def live(server: ServerState, exchange: Exchange) -> None:
    """200 unless the engine is dead or stuck: also while the model loads, and while the server stops."""
    if server.status.is_dead or server.stall is not None:
        await health(server, exchange)
    else:
        await exchange.respond(b"")


async def load(server: ServerState, exchange: Exchange) -> None:
    """How many requests are being worked on."""
    await exchange.respond(msgspec.json.encode(Load(len(server.running))))


async def version(server: ServerState, exchange: Exchange) -> None:
    """The server's version."""
    await exchange.respond(msgspec.json.encode(Version(octavo.__version__)))


async def metrics(server: ServerState, exchange: Exchange) -> None:
    """Prometheus' text format."""
    from octavo.server.exposition import CONTENT_TYPE, expose  # 60 ms that a start need not wait for

    await exchange.respond(expose(server.metrics, server.config.metrics_prefix), content_type=CONTENT_TYPE)
