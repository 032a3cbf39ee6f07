"""Rotary position embedding (Su et al., 2021) and the registry of its scaled variants.

A variant is one function, registered under the `rope_type` that config.json names: it gives the angle per position of
each pair of dimensions, and a factor for the table's values (1 for most).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import LoadError
from octavo.kernels.ops import Array
from octavo.models.config import ModelConfig

_TABLE_STEP = 1024  # positions


@dataclass(frozen=True)
class RopeParameters:
    """What a variant may look at; `octavo.models.config` has checked the numbers."""

    rope_type: str
    size: int  # r, the rotated dimensions of a head
    theta: float
    max_position_embeddings: int
    values: dict[str, Any]  # the variant's own keys: factor, low_freq_factor, ...

    @property
    def plain_frequencies(self) -> NDArray[np.float64]:
        """theta^(-2i / r), [r / 2]: the unscaled angles per position."""
        exponents = np.arange(0, self.size, 2, dtype=np.float64) / self.size
        frequencies: NDArray[np.float64] = self.theta**-exponents
        return frequencies


RopeFunction = Callable[[RopeParameters], tuple[NDArray[np.float64], float]]  # -> angles per position [r / 2], factor
_ROPE_FUNCTIONS: dict[str, RopeFunction] = {}


def rope_type(name: str) -> Callable[[RopeFunction], RopeFunction]:
    """Register the decorated function as the variant `name`."""

    def register(function: RopeFunction) -> RopeFunction:
        _ROPE_FUNCTIONS[name] = function
        return function

    return register


@rope_type("default")
def _default(parameters: RopeParameters) -> tuple[NDArray[np.float64], float]:
    return parameters.plain_frequencies, 1.0


@rope_type("linear")
def _linear(parameters: RopeParameters) -> tuple[NDArray[np.float64], float]:
    """Position interpolation (Chen et al., 2023)."""
    return parameters.plain_frequencies / parameters.values["factor"], 1.0


@rope_type("llama3")
def _llama3(parameters: RopeParameters) -> tuple[NDArray[np.float64], float]:
    """Llama 3.1: waves longer than the trained context are stretched by `factor`, short ones kept, those between blended."""
    frequencies = parameters.plain_frequencies
    low, high = parameters.values["low_freq_factor"], parameters.values["high_freq_factor"]
    turns = parameters.values["original_max_position_embeddings"] * frequencies / (2 * math.pi)  # in the trained context
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return kept * frequencies + (1 - kept) * frequencies / parameters.values["factor"], 1.0


@rope_type("factors")
def _factors(parameters: RopeParameters) -> tuple[NDArray[np.float64], float]:
    """GGUF files store what their scaling makes of each frequency, as divisors."""
    factors = np.array(parameters.values["factors"], np.float64)
    if factors.shape != (parameters.size // 2,):
        raise LoadError(f"the rope factors should be {parameters.size // 2}, one for each pair, but are {factors.size}")
    return parameters.plain_frequencies / factors, 1.0


class Rotary:
    """By what queries and keys are rotated: a table that all layers share, and that grows as positions need it."""

    def __init__(self, config: ModelConfig) -> None:
        """LoadError for an unknown rope type."""
        values = config.rope
        name = values.get("rope_type", "default")
        if name not in _ROPE_FUNCTIONS:
            raise LoadError(f"rope type {name!r} is not supported; supported: {', '.join(sorted(_ROPE_FUNCTIONS))}")
        partial = values.get("partial_rotary_factor", 1.0)
        is_number = isinstance(partial, int | float) and math.isfinite(partial)
        # the factor may be a quotient: 44 * (30 / 44) is to be 30
        size = int(config.head_dim * partial + 1e-6) if is_number else 0
        if not 0 < size <= config.head_dim or size % 2:
            raise LoadError(
                f"partial_rotary_factor {partial} of head_dim {config.head_dim} gives no even number of dimensions"
            )
        parameters = RopeParameters(name, size, values["rope_theta"], config.max_position_embeddings, values)
        self._frequencies, self._factor = _ROPE_FUNCTIONS[name](parameters)
        self._table: Array = np.zeros((0, size), np.float32)

    def table(self, positions: int) -> Array:
        """[at least `positions`, r]: cosines in the first r / 2 columns, sines in the rest; float64 rounded once."""
        if len(self._table) < positions:
            length = -(-max(positions, 2 * len(self._table)) // _TABLE_STEP) * _TABLE_STEP
            angles = np.arange(length)[:, None] * self._frequencies  # [positions, r / 2]
            self._table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
            self._table *= np.float32(self._factor)
        return self._table
