"""`python -m octavo.entrypoints.openai.api_server --model MODEL`: vLLM's path of `octavo serve`, and `run` for scripts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from octavo.cli import main as cli
from octavo.cli import serve


def run(**options: Any) -> int:
    """Serve until the process is told to end; the exit code. `options` are the flags as keywords: `max_model_len=2048`.

    Raises ConfigError for an unknown or wrong one, StartupError never: a start that fails is one line on stderr and 1.
    """
    return serve.run_with(options)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve as `octavo serve` does and return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    return cli.run("serve", given, "python -m octavo.entrypoints.openai.api_server")


if __name__ == "__main__":
    sys.exit(main())
