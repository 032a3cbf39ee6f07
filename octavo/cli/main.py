"""`octavo`: finds the command and loads only what it needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

from octavo import __version__
from octavo.errors import OctavoError, did_you_mean

COMMANDS = {
    "serve": "serve a model over HTTP, with the OpenAI API",
    "chat": "talk to a model, in this process or on a running server",
    "complete": "complete a text, in this process or on a running server",
    "bench": "measure throughput, latency, a running server, or the start",
    "plan": "show what a model takes in memory, and how many requests fit",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line (by default the process's) and return the exit code: 0, 1 for an error, 130 for Ctrl-C.

    Deliberate errors are printed as one line on standard error; anything else is a fault of ours and shows its traceback.
    """
    name, *rest = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    if name in ("-h", "--help", "help"):
        print(_help())
        return 0
    if name in ("-v", "-V", "--version"):
        print(__version__)
        return 0
    if name not in COMMANDS:
        return fail(f"unknown command {name}{_nearest(name)}")
    return run(name, rest)


def run(command: str, arguments: Sequence[str], program: str | None = None) -> int:
    """Run one of COMMANDS with its own arguments. `program` is what its help calls it."""
    try:
        code: int = import_module(f"octavo.cli.{command}").run(arguments, program or f"octavo {command}")
        return code
    except OctavoError as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # whoever read our output has had enough (octavo complete | head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def fail(message: str) -> int:
    """Print the message as one line on standard error and return 1."""
    print("octavo: error:", " ".join(message.split()), file=sys.stderr)
    return 1


def _help() -> str:
    rows = [f"  {name:<10}{text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            f"Octavo {__version__}: a server and library that runs large language models for many users at once.",
            "",
            "usage: octavo COMMAND [MODEL] [options]",
            "",
            *rows,
            "",
            "MODEL is a directory, a .gguf file or a hub id; without one, SmolLM2-135M-Instruct is used.",
            "`octavo COMMAND --help` lists the options; `octavo --version` prints the version.",
        ]
    )


def _nearest(name: str) -> str:
    return did_you_mean(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
