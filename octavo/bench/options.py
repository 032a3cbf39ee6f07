"""What the benchmarks' own options have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from octavo.options.configure import parse_value
from octavo.options.description import describe

Options = TypeVar("Options")


def read_options(kind: type[Options], found: Mapping[str, Any]) -> Options:
    """The options of a benchmark from what was given on its command line. ConfigError names the flag that is wrong."""
    values = {}
    for name, option in describe(kind).items():
        if name in found:
            values[name] = option.normalise(parse_value(option, found[name], option.flag))
            option.check(values[name])
    return kind(**values)
