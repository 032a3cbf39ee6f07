"""`python -m octavo.entrypoints.openai.api_server --model MODEL`: vLLM's path of `octavo serve`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from octavo.cli.main import run


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve as `octavo serve` does and return the exit code."""
    given = sys.argv[1:] if arguments is None else arguments
    return run("serve", given, "python -m octavo.entrypoints.openai.api_server")


if __name__ == "__main__":
    sys.exit(main())
