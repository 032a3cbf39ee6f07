"""What `LLM` logs while it starts."""

from __future__ import annotations

import logging

from octavo.config import EngineConfig
from octavo.engine.request import EngineStatus

logger = logging.getLogger(__name__)


class StartLog:
    """Logs the phases of the start, and its table when it is done; that the slow kernels run where the fast ones could not
    is a warning. `table` is that table, once there is one."""

    def __init__(self, config: EngineConfig) -> None:
        self._expects_native = config.backend != "numpy"
        self._phase = ""
        self.table: dict[str, str] = {}

    def __call__(self, status: EngineStatus) -> None:
        if status.phase != self._phase:
            self._phase = status.phase
            logger.info("%s", status.phase)
        self.table.update(status.table)
        for name, value in status.table.items():
            is_slow = name == "backend" and value.startswith("numpy") and self._expects_native
            logger.log(logging.WARNING if is_slow else logging.INFO, "%s: %s", name, value)
