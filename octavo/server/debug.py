"""`/debug/state`: what the server and the engine have in hand, for people who want to know why something waits."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from octavo.errors import OctavoError
from octavo.server.exchange import Exchange
from octavo.server.state import ServerState

ANSWER_SECONDS = 2.0  # an engine in the middle of a long step answers after it


class ServerCounts(msgspec.Struct):
    """HTTP requests being worked on, their sequences that have not ended, and tokens of prompts that have given nothing."""

    http_requests: int
    sequences: int
    prompt_tokens: int


class DebugState(msgspec.Struct):
    """`status` as in /health, or ready. `engine` is what `Engine.debug_state` says, or null, and `reason` why."""

    status: str
    reason: str
    server: ServerCounts
    engine: dict[str, Any] | None


async def debug_state(server: ServerState, exchange: Exchange) -> None:
    """Requests, blocks and queues. No prompts and no answers are in it."""
    counts = ServerCounts(len(server.running), **server.admission.counts())
    engine, reason = await _engine_state(server)
    body = DebugState(server.phase, server.stall or reason, counts, engine)
    await exchange.respond(msgspec.json.encode(body))


async def _engine_state(server: ServerState) -> tuple[dict[str, Any] | None, str]:
    """All who ask while the engine is busy wait for one and the same answer."""
    if server.client is None or not server.status.is_ready:
        return None, server.status.message or f"The engine is not ready ({server.status.phase})."
    if server.engine_state is None or server.engine_state.done():
        server.engine_state = asyncio.ensure_future(server.client.call("debug_state"))
        server.engine_state.add_done_callback(asyncio.Future.exception)  # looked at, also if nobody waits any more
    await asyncio.wait([server.engine_state], timeout=ANSWER_SECONDS)
    if not server.engine_state.done():
        return None, f"The engine has been in one step for more than {ANSWER_SECONDS:g} s."
    try:
        return server.engine_state.result(), ""
    except OctavoError as error:
        return None, error.message
