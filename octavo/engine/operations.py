"""The operations that `EngineClient.call` may name, beside requests: run between two steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.engine.engine import Engine
from octavo.errors import EngineError

OPERATIONS = frozenset({"check_integrity", "debug_state", "reset_prefix_cache"})


def perform(engine: Engine, method: str, arguments: Sequence[Any]) -> Any:
    """The result of the named method of the engine, made of plain data. EngineError if it fails or does not exist: that
    is the caller's matter, the engine goes on."""
    if method not in OPERATIONS:
        raise EngineError(f"the engine has no operation {method!r}; it has {', '.join(sorted(OPERATIONS))}")
    try:
        return getattr(engine, method)(*arguments)
    except Exception as error:
        raise EngineError(f"{method} failed: {type(error).__name__}: {error}") from error
