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
    max_model_len: int  # how long sequences may become
    values: dict[str, Any]  # the variant's own keys: factor, low_freq_factor, ...

    @property
    def plain_frequencies(self) -> NDArray[np.float64]:
        """theta^(-2i / r), [r / 2]: the unscaled angles per position."""
        return self.frequencies(self.theta)

    @property
    def original_max_position_embeddings(self) -> int:
        """The context that the model was first trained with."""
        return int(self.number("original_max_position_embeddings", self.max_position_embeddings))

    def number(self, name: str, default: float) -> float:
        """One of the variant's keys. LoadError for what is no positive number."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise LoadError(f"{name} of the rope parameters must be a positive number, but is {value!r}")
        return float(value)

    def frequencies(self, theta: float) -> NDArray[np.float64]:
        """theta^(-2i / r), [r / 2]."""
        exponents = np.arange(0, self.size, 2, dtype=np.float64) / self.size
        frequencies: NDArray[np.float64] = theta**-exponents
        return frequencies


RopeFunction = Callable[[RopeParameters], tuple[NDArray[np.float64], float]]  # -> angles per position [r / 2], factor
ROPE_TYPES: dict[str, RopeFunction] = {}
"""`rope_type` of config.json -> what it makes of the frequencies."""


def rope_type(name: str) -> Callable[[RopeFunction], RopeFunction]:
    """Register the decorated function as the variant `name`."""

    def register(function: RopeFunction) -> RopeFunction:
        ROPE_TYPES[name] = function
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


@rope_type("dynamic")
def _dynamic(parameters: RopeParameters) -> tuple[NDArray[np.float64], float]:
    """NTK-aware scaling: a larger theta, as sequences are to be longer than the trained context. The length that counts is
    what sequences may have, not what each one has: keys in the cache serve sequences of any length."""
    factor, size = parameters.values["factor"], parameters.size
    stretch = max(parameters.max_model_len / parameters.max_position_embeddings, 1.0)
    if size <= 2:
        return parameters.plain_frequencies, 1.0
    return parameters.frequencies(parameters.theta * (factor * stretch - (factor - 1)) ** (size / (size - 2))), 1.0


@rope_type("yarn")
def _yarn(parameters: RopeParameters) -> tuple[NDArray[np.float64], float]:
    """YaRN (Peng et al., 2023): dimensions that turn often in the trained context are kept, those that turn hardly at all
    are interpolated, those between blended; scores are scaled by the square of the factor that is returned."""
    values, size, factor = parameters.values, parameters.size, parameters.values["factor"]
    original = parameters.original_max_position_embeddings

    def dimension(turns: float) -> float:
        """The one (of all `size`) that turns so often."""
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(parameters.theta))

    low, high = dimension(parameters.number("beta_fast", 32.0)), dimension(parameters.number("beta_slow", 1.0))
    if values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    interpolated = np.clip((np.arange(size // 2) - low) / (high - low or 0.001), 0, 1)
    frequencies = parameters.plain_frequencies
    return frequencies * (1 - interpolated) + frequencies / factor * interpolated, parameters.number(
        "attention_factor", _yarn_factor(parameters, factor)
    )


def _yarn_factor(parameters: RopeParameters, factor: float) -> float:
    """What the table is multiplied by. DeepSeek gives two numbers, of which the quotient counts."""

    def scale(multiplier: float) -> float:
        return 0.1 * multiplier * math.log(factor) + 1.0 if factor > 1 else 1.0

    if parameters.values.get("mscale") and parameters.values.get("mscale_all_dim"):
        return scale(parameters.number("mscale", 1.0)) / scale(parameters.number("mscale_all_dim", 1.0))
    return scale(1.0)


@rope_type("longrope")
def _longrope(parameters: RopeParameters) -> tuple[NDArray[np.float64], float]:
    """LongRoPE (Ding et al., 2024): a divisor for each frequency, one list for sequences within the original context and
    one for longer ones. The second is taken where sequences may be longer, since keys in the cache serve any sequence."""
    values, original = parameters.values, parameters.original_max_position_embeddings
    name = "long_factor" if parameters.max_model_len > original else "short_factor"
    divisors = np.array(values[name], np.float64)
    if divisors.shape != (parameters.size // 2,):
        raise LoadError(f"{name} should have {parameters.size // 2} numbers, one for each pair, but has {divisors.size}")
    stretch = parameters.number("factor", parameters.max_position_embeddings / original)
    factor = math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0
    return parameters.plain_frequencies / divisors, parameters.number("attention_factor", factor)


@rope_type("factors")
def _factors(parameters: RopeParameters) -> tuple[NDArray[np.float64], float]:
    """GGUF files store what their scaling makes of each frequency, as divisors."""
    factors = np.array(parameters.values["factors"], np.float64)
    if factors.shape != (parameters.size // 2,):
        raise LoadError(f"the rope factors should be {parameters.size // 2}, one for each pair, but are {factors.size}")
    return parameters.plain_frequencies / factors, 1.0


def _evaluate(parameters: RopeParameters) -> tuple[NDArray[np.float64], float]:
    """What the variant gives. LoadError where that is no numbers."""
    try:
        with np.errstate(all="ignore"):
            frequencies, factor = ROPE_TYPES[parameters.rope_type](parameters)
        is_usable = bool(np.isfinite(frequencies).all()) and math.isfinite(factor)
    except (ArithmeticError, ValueError):  # a logarithm of 1 that is divided by, a power that no float holds
        is_usable = False
    if not is_usable:
        raise LoadError(f"the rope parameters contradict each other: {parameters.rope_type} makes no numbers of them")
    return frequencies, factor


class Rotary:
    """By what queries and keys are rotated: a table that all layers share, and that grows as positions need it."""

    def __init__(self, config: ModelConfig, values: dict[str, Any] | None = None) -> None:
        """`values`: in place of `config.rope`. LoadError for an unknown rope type."""
        values = config.rope if values is None else values
        name = "mrope" if "mrope_section" in values else values.get("rope_type", "default")
        if name not in ROPE_TYPES:
            raise LoadError(f"rope type {name!r} is not supported; supported: {', '.join(sorted(ROPE_TYPES))}")
        partial = values.get("partial_rotary_factor", 1.0)
        is_number = isinstance(partial, int | float) and math.isfinite(partial)
        # the factor may be a quotient: 44 * (30 / 44) is to be 30
        size = int(config.head_dim * partial + 1e-6) if is_number else 0
        if not 0 < size <= config.head_dim or size % 2:
            raise LoadError(
                f"partial_rotary_factor {partial} of head_dim {config.head_dim} gives no even number of dimensions"
            )
        longest = config.max_position_embeddings
        parameters = RopeParameters(name, size, values["rope_theta"], longest, config.max_model_len or longest, values)
        self._frequencies, self._factor = _evaluate(parameters)
        self._table: Array = np.zeros((0, size), np.float32)

    def table(self, positions: int) -> Array:
        """[at least `positions`, r]: cosines in the first r / 2 columns, sines in the rest; float64 rounded once."""
        if len(self._table) < positions:
            length = -(-max(positions, 2 * len(self._table)) // _TABLE_STEP) * _TABLE_STEP
            angles = np.arange(length)[:, None] * self._frequencies  # [positions, r / 2]
            self._table = np.concatenate([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
            self._table *= np.float32(self._factor)
        return self._table
