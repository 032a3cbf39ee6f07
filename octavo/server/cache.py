"""`/reset_prefix_cache`: for whoever measures, or does not want what was said to stay in memory."""

from __future__ import annotations

from octavo.server.exchange import Exchange
from octavo.server.state import ServerState


async def reset_prefix_cache(server: ServerState, exchange: Exchange) -> None:
    """Requests from now on find nothing that was computed before. With `reset_running_requests=true` in the query running
    ones start again."""
    client, _ = server.ready()
    restart = exchange.query.get("reset_running_requests", "").lower() in ("1", "true", "yes", "on")
    await client.call("reset_prefix_cache", restart)
    await exchange.respond(b"")
