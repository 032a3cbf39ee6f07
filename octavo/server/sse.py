"""Server-sent events: how a stream begins, goes wrong and ends (with its dialect's end, whatever happens)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any

import msgspec

from octavo.errors import OctavoError
from octavo.server.errors import InternalError
from octavo.server.exchange import Exchange
from octavo.server.outlet import Outlet, Write

HEADERS = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))

Events = Callable[[Write], Awaitable[None]]  # writes an answer's events, one at least, and returns at its end

logger = logging.getLogger(__name__)
_encoder = msgspec.json.Encoder()


def event(value: Any) -> bytes:
    """One event whose data is the value's JSON (one line: JSON escapes line ends)."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def named_event(name: str, value: Any) -> bytes:
    """The same with a name, by which clients of other APIs than chat completions tell events apart."""
    return b"event: " + name.encode() + b"\n" + event(value)


class TextEvents:
    """Events that differ in one text only, most of those of a stream: what stands round it is encoded once."""

    def __init__(self, value: Callable[[str], Any]) -> None:
        """`value(text)` is an event's data."""
        mark = secrets.token_hex(16)
        self._before, self._behind = event(value(mark)).split(_encoder.encode(mark))

    def __call__(self, text: str) -> bytes:
        """The event with this text."""
        return b"%b%b%b" % (self._before, _encoder.encode(text), self._behind)


async def stream(exchange: Exchange, events: Events) -> None:
    """Write the events as they come, then the end.

    The status line waits for the first event, so that what fails before it is still an HTTP error. Later failures are an
    error event. Cancelled because the client left, it ends silently; cancelled with `exchange.ending` set, with that error.
    """
    dialect = exchange.dialect
    last = b""
    with closing(Outlet(exchange, HEADERS)) as outlet:
        try:
            await events(outlet.write)
            exchange.on_end.close()  # the work is done: what is left is the client's reading, which no deadline ends
            await outlet.drained()
        except OctavoError as error:
            if not outlet.has_begun:
                raise
            last = dialect.error_event(error)
        except asyncio.CancelledError:
            if exchange.ending is None or not outlet.has_begun:
                raise
            last = dialect.error_event(exchange.ending)
        except Exception:
            if not outlet.has_begun:
                raise
            logger.exception("a stream ended by a fault")  # the headers are out: this is the last place that can tell it
            last = dialect.error_event(InternalError())
        await outlet.finish(last + dialect.end)  # not before what made the events has let go: the client may not be reading
