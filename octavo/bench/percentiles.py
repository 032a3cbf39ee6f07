"""Percentiles of what was measured."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.errors import ConfigError


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest; 0 of none."""
    if not values:
        return 0.0
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def read_percents(given: str) -> list[float]:
    """Of `--metric-percentiles`: numbers separated by commas. ConfigError for anything but numbers from 0 to 100."""
    try:
        percents = [float(each) for each in given.split(",")]
    except ValueError:
        percents = []
    if not percents or not all(0 <= each <= 100 for each in percents):
        message = f"--metric-percentiles takes numbers from 0 to 100 separated by commas, got {given}"
        raise ConfigError(message, parameter="metric_percentiles")
    return percents
