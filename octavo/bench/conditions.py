"""What a benchmark in this process ran on, without which its figures say little."""

from __future__ import annotations

from collections.abc import Mapping

_ROWS = ("backend", "dtype", "KV cache dtype")  # of the start-up table


def conditions(table: Mapping[str, str]) -> dict[str, str]:
    """The rows of a start-up table that figures depend on: kernels and threads, weights, cache."""
    return {name: table[name] for name in _ROWS}


def in_one_line(found: Mapping[str, str]) -> str:
    """For people."""
    return "; ".join(f"{name}: {value}" for name, value in found.items())
