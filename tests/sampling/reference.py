"""The sampler once more, plain and slow: Python loops over one row, every step as its definition reads.

Logits are float32 as the model's, and edits round to float32 as stored logits do; all else is Python's float64."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from octavo.sampling.params import SamplingParams

NEGATIVE_INFINITY = -math.inf
NO_WEIGHT = 2.0**-126  # of a token that is less likely than the best one by a larger factor


@dataclass
class Outcome:
    """What one row gives. `kept` are the tokens with a chance; `margin` is how near a decision came to rounding."""

    token_id: int | None
    kept: list[int] = field(default_factory=list)
    margin: float = math.inf


def sample_row(
    logits: np.ndarray,
    params: SamplingParams,
    prompt: list[int],
    output: list[int],
    eos_token_ids: list[int],
    index: int,
) -> Outcome:
    """One row [v] through all steps."""
    values = edit(logits, params, prompt, output, eos_token_ids)
    best = max(values)
    if any(math.isnan(value) for value in values) or math.isinf(best):
        return Outcome(None)
    if params.temperature < 0.01:
        return Outcome(values.index(best))
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    weights = {token: math.exp((values[token] - best) / params.temperature) for token in order}
    kept = [token for token in order if weights[token] >= max(NO_WEIGHT, params.min_p)]
    margin = min(abs(weights[token] - params.min_p) for token in order) if params.min_p > 0 else math.inf
    if params.top_k > 0:
        kept = kept[: params.top_k]
    total = math.fsum(weights[token] for token in kept)
    if params.top_p < 1:
        kept, nearest = nucleus(kept, weights, params.top_p * total)
        margin = min(margin, nearest / total)
        total = math.fsum(weights[token] for token in kept)
    assert params.seed is not None
    target = uniform(params.seed, index, len(output)) * total
    mass = 0.0
    for token in sorted(kept):
        mass += weights[token]
        margin = min(margin, abs(mass - target) / total)
        if mass > target:
            return Outcome(token, sorted(kept), margin)
    raise AssertionError("the kept tokens have less mass than their sum")


def edit(
    logits: np.ndarray, params: SamplingParams, prompt: list[int], output: list[int], eos_token_ids: list[int]
) -> list[float]:
    """Bans, bias and penalties."""
    row = [np.float32(value) for value in logits]
    if len(output) < params.min_tokens:
        for token in [*eos_token_ids, *(params.stop_token_ids or [])]:
            row[token] = np.float32(NEGATIVE_INFINITY)
    for token, bias in (params.logit_bias or {}).items():
        row[token] = row[token] + np.float32(bias)
    return [float(penalize(float(value), token, params, prompt, output)) for token, value in enumerate(row)]


def penalize(value: float, token: int, params: SamplingParams, prompt: list[int], output: list[int]) -> np.float32:
    """Repetition on what prompt or output hold, frequency and presence on what the output holds."""
    if value == NEGATIVE_INFINITY:
        return np.float32(value)
    if token in prompt or token in output:
        value = value / params.repetition_penalty if value > 0 else value * params.repetition_penalty
    if token in output:
        value -= params.frequency_penalty * output.count(token)
        value -= params.presence_penalty
    largest = float(np.finfo(np.float32).max)
    return np.float32(min(largest, max(-largest, value)) if not math.isnan(value) else value)


def nucleus(order: list[int], weights: dict[int, float], wanted: float) -> tuple[list[int], float]:
    """The fewest first tokens whose weights reach `wanted`, at least one; and how near the nearest sum came to it."""
    mass, nearest = 0.0, math.inf
    for count, token in enumerate(order, start=1):
        mass += weights[token]
        nearest = min(nearest, abs(mass - wanted))
        if mass >= wanted:
            return order[:count], nearest
    return order, nearest


def logprobs(logits: np.ndarray) -> list[float]:
    """Log-softmax of the raw logits."""
    values = [float(value) for value in logits]
    best = max(values)
    log_total = best + math.log(math.fsum(math.exp(value - best) for value in values))
    return [max(value - log_total, -9999.0) for value in values]


def uniform(seed: int, index: int, position: int) -> float:
    """Philox4x32-10 with Python's integers."""
    low = 0xFFFFFFFF
    a, b, c, d = position, index, 0, 0
    key = [seed & low, (seed >> 32) & low]
    for _ in range(10):
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = (second >> 32) ^ b ^ key[0], second & low, (first >> 32) ^ d ^ key[1], first & low
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return ((b << 32 | a) >> 11) * 2.0**-53
