"""`octavo serve [MODEL]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from octavo.cli.arguments import parse_arguments
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.options.configure import Given, configure, plain_name


def run(arguments: Sequence[str], program: str) -> int:
    """Serve until the process is told to end; the exit code."""
    return _serve(parse_arguments(arguments, program))


def run_with(options: Mapping[str, Any]) -> int:
    """As `run`, with the flags as keywords. Raises ConfigError for an unknown or wrong one."""
    if "max_tool_retries" in options:
        text = "max_tool_retries is not the server's: whoever runs the tools decides how often; retry in the client"
        raise ConfigError(text, parameter="max_tool_retries")
    return _serve(configure([Given(plain_name(name), value, name) for name, value in options.items()]))


def _serve(config: EngineConfig) -> int:
    from octavo.server.app import serve  # not before the options are known to be good

    return serve(config)
