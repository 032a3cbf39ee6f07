"""Philox4x32-10 against the published vectors, and what its keys promise."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.sampling.rng import philox4x32, uniforms
from tests.sampling import reference

# Random123's known answers for philox4x32, 10 rounds: counter, key, result.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> np.ndarray:
    return np.array([[int(word, 16)] for word in text.split()], dtype=np.uint64)


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_published_vectors(counter: str, key: str, result: str) -> None:
    assert philox4x32(words(counter), words(key)).tolist() == words(result).tolist()


def test_many_at_once_equal_one_at_a_time_and_the_reference() -> None:
    random = np.random.default_rng(1)
    seeds = [0, -1, 7, -(2**63), 2**63 - 1, *random.integers(-(2**63), 2**63 - 1, 50).tolist()]
    indexes = random.integers(0, 2**31, len(seeds)).tolist()
    positions = random.integers(0, 2**31, len(seeds)).tolist()
    together = uniforms(seeds, indexes, positions).tolist()
    assert together == [uniforms([s], [i], [p])[0] for s, i, p in zip(seeds, indexes, positions, strict=True)]
    assert together == [reference.uniform(s, i, p) for s, i, p in zip(seeds, indexes, positions, strict=True)]


def test_numbers_differ_by_seed_index_and_position_and_are_uniform() -> None:
    seeds, indexes, positions = (axis.ravel() for axis in np.meshgrid(range(20), range(10), range(100)))
    numbers = uniforms(seeds, indexes, positions)
    assert len(set(numbers.tolist())) == 20_000
    assert numbers.min() >= 0.0
    assert numbers.max() < 1.0
    counts, _ = np.histogram(numbers, bins=100, range=(0.0, 1.0))
    chi_square = float((((counts - 200.0) ** 2) / 200.0).sum())
    assert 50.0 < chi_square < 165.0  # 99 degrees of freedom: outside with a probability below 1e-4
