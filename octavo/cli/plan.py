"""`octavo plan [MODEL]`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from octavo.cli.arguments import Parser, add_options, given_options
from octavo.errors import ConfigError
from octavo.options.configure import parse_value
from octavo.options.description import Option

_MEMORY = Option("memory", int, False, False, None, {"words": {}})


def run(arguments: Sequence[str], program: str) -> int:
    """Print what a model would take, without reading its weights; the exit code."""
    description = "Show what weights and KV cache take in memory, and how many requests fit. No weights are read."
    parser = Parser(prog=program, usage="%(prog)s [MODEL] [--memory SIZE] [options]", description=description)
    parser.add_argument("--memory", metavar="SIZE", help="plan for so much usable memory (24GiB) in place of this machine's")
    add_options(parser, ("model", "engine"))
    found = parser.parse(arguments)
    usable = _bytes(found.pop("memory")) if "memory" in found else None
    config = given_options(found)
    from octavo.engine.planning import plan_model  # not before the options are known to be good
    from octavo.server.startup import table
    from octavo.weights.hub import resolve_model

    print(table(plan_model(config, resolve_model(config), usable).table()))
    return 0


def _bytes(text: str) -> int:
    """24GiB, 24G (both 24 * 2^30), 24GB or a plain number of bytes. ConfigError for anything else."""
    number = re.sub(r"(?<=[kmgt])B$|iB$", "", re.sub(r"[KMGT](?=B$)", lambda match: match[0].lower(), text))
    try:
        size: int = parse_value(_MEMORY, number, "--memory")
    except ConfigError:
        size = 0
    if size < 1:
        raise ConfigError(f"--memory takes a size such as 24GiB, got {text}", parameter="memory")
    return size
