"""What a step costs: measured, so that it holds for whatever model, machine and load there is."""

from __future__ import annotations

_STEP_WEIGHT = 0.1  # of the newest step without prompts, against all before it
_MEMORY = 0.98  # what a step with prompts counts after the next one
_TOKENS, _KEYS = 256.0, 262_144.0  # units in which the sums below are of the order of 1
_RIDGE = 1e-6  # keeps the equations solvable while only one of the two kinds of cost was seen


def num_keys(start: int, num_tokens: int) -> int:
    """Keys that tokens [start, start + num_tokens) of a sequence attend to, each to all up to itself."""
    return num_tokens * start + num_tokens * (num_tokens + 1) // 2


class StepCost:
    """seconds = base + per_token * prompt tokens + per_key * keys that they attend to.

    `base`, what the rows that draw a token take, is a moving average over the steps without prompts, and stands still
    during those with prompts. What these take beyond it is fitted by least squares, in which older steps count less.
    """

    def __init__(self) -> None:
        self.base = 0.0  # seconds
        self.per_token = 0.0
        self.per_key = 0.0
        self._squares = [0.0, 0.0, 0.0]  # sums over the steps of tokens², tokens * keys, keys², in the units above
        self._products = [0.0, 0.0]  # and of these with the seconds

    def observe(self, num_tokens: int, keys: int, seconds: float) -> None:
        """A step with so many prompt tokens, which attended to so many keys, has taken `seconds`."""
        if num_tokens == 0:
            self.base += (seconds - self.base) * (_STEP_WEIGHT if self.base else 1.0)
            return
        x, y, extra = num_tokens / _TOKENS, keys / _KEYS, max(0.0, seconds - self.base)
        for sums, new in ((self._squares, (x * x, x * y, y * y)), (self._products, (x * extra, y * extra))):
            sums[:] = [_MEMORY * old + one for old, one in zip(sums, new, strict=True)]
        self._fit()

    def extra(self, num_tokens: int, keys: int) -> float:
        """Seconds that prompt tokens are expected to add to a step."""
        return self.per_token * num_tokens + self.per_key * keys

    def _fit(self) -> None:
        """Both costs, neither below 0."""
        xx, xy, yy = self._squares
        xs, ys = self._products
        xx, yy = xx + _RIDGE, yy + _RIDGE
        determinant = xx * yy - xy * xy
        a, b = (yy * xs - xy * ys) / determinant, (xx * ys - xy * xs) / determinant
        if b < 0:
            a, b = xs / xx, 0.0
        elif a < 0:
            a, b = 0.0, ys / yy
        self.per_token, self.per_key = a / _TOKENS, b / _KEYS
