"""`timeout` and `X-Request-Timeout`: how long a client is willing to wait for the whole answer."""

from __future__ import annotations

import asyncio
import math
import time

from octavo.errors import RequestError, ValidationError
from octavo.server.exchange import Exchange

HEADER = b"x-request-timeout"
_LONGEST = 1e7  # seconds; timers take no more


class DeadlineError(RequestError):
    """The answer did not come to its end in time."""

    status = 504
    kind = "TimeoutError"

    def __init__(self, seconds: float) -> None:
        super().__init__(f"The request's time is over: its answer did not end within {seconds:g} s.", parameter="timeout")


def set_deadline(exchange: Exchange, timeout: float | None) -> None:
    """End the exchange with DeadlineError when `timeout` seconds, or those of the header if they are fewer, have passed
    since it began: what it has in the engine leaves the queue or its row and gives its blocks back, as when a client goes.

    Called by the request's own task. ValidationError for a time that is none.
    """
    given = [_positive(timeout, "timeout")] if timeout is not None else []
    header = exchange.header(HEADER)
    if header is not None:
        given.append(_positive(header, "X-Request-Timeout"))
    if not given:
        return
    task = asyncio.current_task()
    assert task is not None

    def end() -> None:
        exchange.ending = DeadlineError(min(given))
        task.cancel()

    left = min(given) - (time.monotonic() - exchange.began)
    timer = asyncio.get_running_loop().call_later(min(max(left, 0.0), _LONGEST), end)
    exchange.on_end.callback(timer.cancel)


def _positive(value: float | str, name: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValidationError(f"`{name}` must be a positive number of seconds.", parameter=name, value=f"{value}"[:40])
    return seconds
