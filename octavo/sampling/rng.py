"""Random numbers that depend on nothing but their key: Philox4x32-10.

J. Salmon, M. Moraes, R. Dror, D. Shaw: "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. A counter-based generator
is a keyed bijection of counters; there is no state that a batch, a preemption or a restart could disturb.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

_MULTIPLIERS = np.array([[0xD2511F53], [0xCD9E8D57]], dtype=np.uint64)
_KEY_STEPS = np.array([[0x9E3779B9], [0xBB67AE85]], dtype=np.uint64)  # the golden ratio, sqrt(3) - 1
_LOW_32 = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox4x32(counter: NDArray[np.uint64], key: NDArray[np.uint64], rounds: int = 10) -> NDArray[np.uint64]:
    """Encrypt n counters [4, n] with n keys [2, n]; all words are of 32 bits, held in uint64. Returns words [4, n]."""
    even, odd = counter[0::2], counter[1::2]
    for _ in range(rounds):
        products = even * _MULTIPLIERS
        even, odd = (products >> _32)[::-1] ^ odd ^ key, (products & _LOW_32)[::-1]
        key = (key + _KEY_STEPS) & _LOW_32
    return np.stack([even[0], odd[0], even[1], odd[1]])


def uniforms(seeds: ArrayLike, indexes: ArrayLike, positions: ArrayLike) -> NDArray[np.float64]:
    """n numbers in [0, 1) of 53 bits, each keyed by its seed (int64), its index of n and its position in the output."""
    seed_words = np.asarray(seeds, dtype=np.int64).view(np.uint64)
    zeros = np.zeros_like(seed_words)
    counter = np.stack([np.asarray(positions, dtype=np.uint64), np.asarray(indexes, dtype=np.uint64), zeros, zeros])
    words = philox4x32(counter, np.stack([seed_words & _LOW_32, seed_words >> _32]))
    bits = (words[1] << _32 | words[0]) >> np.uint64(11)
    numbers: NDArray[np.float64] = bits.astype(np.float64) * 2.0**-53
    return numbers
