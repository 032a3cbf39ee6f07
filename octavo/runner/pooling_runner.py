"""Runs the scheduler's steps on a pooling model: rows in, flat batch through, one result for each prompt out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from octavo.engine.plan import RowResult, ScheduledRow, StepPlan
from octavo.engine.request import Request
from octavo.kernels.ops import Array, KVCache, Ops
from octavo.models.registry import Model
from octavo.pooling.params import Pooled, PoolingWork
from octavo.pooling.settings import Pooling
from octavo.runner.rows import Rows, StepRows

_Float64s = NDArray[np.float64]
_SHORTEST = 1e-12  # length that vectors are divided by


class PoolingRunner:
    """`octavo.engine.plan.Runner` on a pooling model. What comes of a prompt depends on nothing but the prompt: hidden
    states are pooled token by token in their order, however the prompt was cut, and every vector is finished alone."""

    def __init__(
        self, model: Model, ops: Ops, cache: KVCache, pooling: Pooling, *, max_num_seqs: int, max_model_len: int
    ) -> None:
        self._model: Model | None = model
        self._forward = ops.record(model.forward)
        self._ops = ops
        self._cache = cache
        self._pooling = pooling
        self._rows = Rows(max_num_seqs, max_model_len, cache.block_size)
        self._prompts: dict[int, _Prompt] = {}  # by row

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV cache."""
        return self._cache.num_blocks

    def execute(self, plan: StepPlan) -> list[RowResult]:
        """One result per scheduled row, in order. RuntimeError for a plan that does not fit the rows."""
        if self._model is None:
            raise RuntimeError("the model runner is closed")
        self._apply(plan)
        if not plan.scheduled:
            return []
        step = StepRows.of(plan.scheduled)
        self._rows.check(step)
        wanted = np.array([self._num_wanted(each) for each in plan.scheduled], np.int64)
        batch = self._rows.batch(step, wanted)
        if self._pooling.is_encoder:
            batch.token_types = self._token_types(step, batch.positions)
        hidden = self._forward(batch, self._cache)
        last, others = np.split(hidden, [int(step.samples.sum())])
        pieces = np.split(others, np.cumsum(wanted)[:-1])
        lasts = iter(last)
        results = []
        for each, piece in zip(plan.scheduled, pieces, strict=True):
            prompt = self._prompts[each.row]
            prompt.add(piece)
            result = RowResult()
            if each.sample:
                result.pooled, result.error = self._finish(self._model, prompt, next(lasts))
            results.append(result)
        return results

    def release_cache(self) -> None:
        """See `Runner`."""
        self._cache.release()

    def close(self) -> None:
        """Give back weights and cache. Idempotent."""
        if self._model is not None:
            self._model = None
            del self._forward
            self._cache.close()
            self._ops.close()

    def _apply(self, plan: StepPlan) -> None:
        for row in plan.freed_rows:
            self._rows.free(row)
            self._prompts.pop(row, None)
        for new in plan.new_rows:
            self._rows.add(new, None)
            self._prompts[new.row] = _Prompt(new.request, self._pooling.pooling_type)
        self._cache.copy_blocks(plan.block_copies)
        for each in plan.scheduled:
            if each.new_block_ids:
                self._rows.append_blocks(each.row, each.new_block_ids, replaces_last=each.replaces_last)

    def _num_wanted(self, scheduled: ScheduledRow) -> int:
        """How many of the row's tokens in this step, from its first, have hidden states that are pooled, beside the last
        one, which is there anyway."""
        work = self._prompts[scheduled.row].work
        if work.per_token or self._pooling.pooling_type == "MEAN":
            return scheduled.num_tokens
        return int(self._pooling.pooling_type == "CLS" and scheduled.start == 0)

    def _token_types(self, step: StepRows, positions: NDArray[np.int32]) -> NDArray[np.int32]:
        second = [self._prompts[row].work.second_text for row in step.rows.tolist()]
        starts = np.array([np.iinfo(np.int32).max if start is None else start for start in second], np.int64)
        return (positions >= np.repeat(starts, step.counts)).astype(np.int32)

    def _finish(self, model: Model, prompt: _Prompt, last: Array) -> tuple[Pooled | None, str | None]:
        """What becomes of a prompt that has been computed, or why nothing does."""
        states = prompt.states(last)  # [1, h], or [t, h] of a task that has a result for each token
        if self._pooling.is_classifier:
            values = self._calibrated(model.logits(states))
            values = _FUNCTIONS[self._pooling.activation](values) if prompt.work.use_activation else values
        else:
            values = states[:, : prompt.work.dimensions]
            values = np.stack([_unit(row) for row in values]) if prompt.work.use_activation else values
        if not np.isfinite(values).all():
            return None, "the model's hidden states are not finite"
        result = np.ascontiguousarray(values if prompt.work.per_token else values[0], "<f4")
        return Pooled(result.tobytes(), list(result.shape)), None

    def _calibrated(self, logits: Array) -> Array:
        mean, sigma = self._pooling.logit_mean, self._pooling.logit_sigma
        return logits if (mean, sigma) == (0.0, 1.0) else ((logits - mean) / sigma).astype(np.float32)


@dataclass
class _Prompt:
    """What has been pooled of one prompt so far."""

    request: Request
    pooling_type: str
    first: Array | None = None
    total: _Float64s | None = None  # [h], the sum of the hidden states
    pieces: list[Array] = field(default_factory=list)  # of a task with a result for each token

    @property
    def work(self) -> PoolingWork:
        """What is asked."""
        assert self.request.pooling is not None
        return self.request.pooling

    def add(self, hidden: Array) -> None:
        """The next hidden states [n, h] that are wanted."""
        if not len(hidden):
            return
        if self.work.per_token:
            self.pieces.append(hidden)
        elif self.pooling_type == "CLS":
            self.first = hidden[0]
        else:
            before = np.zeros((1, hidden.shape[1])) if self.total is None else self.total[None]
            self.total = np.add.accumulate(np.concatenate([before, hidden]))[-1]  # one after the other

    def states(self, last: Array) -> Array:
        """[1, h], or [t, h] of a task with a result for each token; `last` [h] is the last token's state."""
        if self.work.per_token:
            return np.concatenate(self.pieces)
        if self.first is not None:
            return np.ascontiguousarray(self.first[None])
        if self.total is not None:
            return (self.total / len(self.request.prompt_token_ids)).astype(np.float32)[None]
        return np.ascontiguousarray(last[None])


def _unit(vector: Array) -> Array:
    """Scaled to length 1."""
    exact = vector.astype(np.float64)
    scaled: Array = (exact / max(float(np.sqrt(np.sum(exact * exact))), _SHORTEST)).astype(np.float32)
    return scaled


def _sigmoid(logits: Array) -> Array:
    with np.errstate(over="ignore"):  # of a very negative logit, whose sigmoid is 0
        result: Array = (1 / (1 + np.exp(-logits.astype(np.float64)))).astype(np.float32)
    return result


def _softmax(logits: Array) -> Array:
    exact = logits.astype(np.float64)
    weights = np.exp(exact - exact.max(axis=-1, keepdims=True))
    result: Array = (weights / weights.sum(axis=-1, keepdims=True)).astype(np.float32)
    return result


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "identity": lambda logits: logits,
    "sigmoid": _sigmoid,
    "softmax": _softmax,
}
