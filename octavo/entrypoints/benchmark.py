"""`python -m octavo.entrypoints.benchmark [BENCHMARK] --model MODEL`: `octavo bench`, and throughput where none is named."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from octavo.cli import main as cli


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark and return the exit code."""
    given = [*(sys.argv[1:] if arguments is None else arguments)]
    if not given or given[0].startswith("--"):
        given.insert(0, "throughput")
    return cli.run("bench", given, "python -m octavo.entrypoints.benchmark")


if __name__ == "__main__":
    sys.exit(main())
