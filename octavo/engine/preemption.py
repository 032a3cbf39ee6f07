"""What becomes of what a preempted sequence has computed: kept to be moved back, or computed again."""

from __future__ import annotations

_DECAY = 0.9  # of what earlier steps say, with each further one
_LARGE_STEP = 64  # tokens from which on a step computes them as quickly as a recomputation would


class PreemptionPolicy:
    """`--preemption-mode`: recompute, swap, or auto, which compares two costs.

    Moving b full blocks costs 2 b m seconds, out and in, where m is what one took when the engine started. Computing a
    sequence of b full blocks again (of which a sliding window keeps fewer) costs b * block_size * c, where c, the seconds
    per token, is measured in the steps: the mean of the last ten or so with 64 tokens or more; until there was one, of all.
    Both leave out what they have in common (the last block, if it is not full, is computed again either way) and that a
    step may do other things while blocks are moved.
    """

    def __init__(self, mode: str, block_size: int, seconds_per_block: float) -> None:
        self._mode = mode
        self._block_size = block_size
        self._seconds_per_block = seconds_per_block
        self._seconds, self._tokens = 0.0, 0.0
        self._has_seen_large = False

    def observe(self, num_tokens: int, seconds: float) -> None:
        """A step with so many tokens took so long."""
        is_large = num_tokens >= _LARGE_STEP
        if self._has_seen_large and not is_large:
            return
        if is_large and not self._has_seen_large:
            self._has_seen_large, self._seconds, self._tokens = True, 0.0, 0.0
        self._seconds = _DECAY * self._seconds + seconds
        self._tokens = _DECAY * self._tokens + num_tokens

    def prefers_moving(self, num_blocks: int, num_computed: int | None = None) -> bool:
        """Whether so many full blocks are better moved than computed again, for which as many, or `num_computed`, are."""
        if self._mode != "auto":
            return self._mode == "swap"
        moving = 2 * num_blocks * self._seconds_per_block
        computing = (num_computed or num_blocks) * self._block_size * self._seconds / max(1.0, self._tokens)
        return moving < computing
