"""`octavo serve [MODEL]`."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.cli.arguments import parse_arguments


def run(arguments: Sequence[str], program: str) -> int:
    """Serve until the process is told to end; the exit code."""
    config = parse_arguments(arguments, program)
    from octavo.server.app import serve  # not before the options are known to be good

    return serve(config)
