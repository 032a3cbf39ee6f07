"""Runs the scheduler's steps on a model: rows in, flat batch through, sampled tokens out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from octavo.engine.plan import NewRow, RowResult, StepPlan
from octavo.engine.request import TokenLogprobs
from octavo.grammar.matchers import Matcher, Matchers
from octavo.kernels.ops import Array, Forward, KVCache, Ops
from octavo.models.registry import Model
from octavo.runner.host_memory import HostMemory
from octavo.runner.rows import Rows, StepRows, is_plain
from octavo.sampling.sampler import NOT_FINITE
from octavo.sampling.state import SamplingState

LOGITS_BYTES = 64 << 20  # of logits at once: the logprobs of a long prompt never need gigabytes


class ModelRunner:
    """`octavo.engine.plan.Runner` on a real model."""

    def __init__(
        self,
        model: Model,
        ops: Ops,
        cache: KVCache,
        *,
        max_num_seqs: int,
        max_model_len: int,
        matchers: Matchers | None = None,
        logprobs_mode: str = "raw_logprobs",
        host: HostMemory | None = None,
    ) -> None:
        """`host`: memory for blocks of this cache, closed with it."""
        self._model: Model | None = model
        record = _as_it_is if model.config.is_foreign else ops.record
        self._forward = record(model.forward)
        self._to_logits = record(lambda batch, cache: model.logits(model.forward(batch, cache)))
        self._ops = ops
        self._cache = cache
        self._matchers = matchers
        self._logprobs_mode = logprobs_mode
        self._host = host
        self._vocab_size = model.config.vocab_size
        self._most_logits = max(1, LOGITS_BYTES // (4 * self._vocab_size))  # rows
        self._rows = Rows(max_num_seqs, max_model_len, cache.block_size)

    @property
    def num_blocks(self) -> int:
        """Blocks in the KV cache."""
        return self._cache.num_blocks

    def execute(self, plan: StepPlan) -> list[RowResult]:
        """One result per scheduled row, in order. RuntimeError for a plan that does not fit the rows."""
        if self._model is None:
            raise RuntimeError("the model runner is closed")
        if self._host is None:
            return self._step(self._model, plan)
        with _moves(self._host, plan):
            return self._step(self._model, plan)

    def _step(self, model: Model, plan: StepPlan) -> list[RowResult]:
        self._apply(plan)
        if not plan.scheduled:
            return []
        if is_plain(plan.scheduled):
            rows, batch = self._rows.plain_batch(plan.scheduled)
            if len(rows) <= self._most_logits:
                return self._sample([(0, self._to_logits(batch, self._cache))], rows)
            return self._sample(self._logits(model, self._forward(batch, self._cache)), rows)
        step = StepRows.of(plan.scheduled)
        self._rows.check(step)
        scored_counts = self._rows.scored_counts(step)
        hidden = self._forward(self._rows.batch(step, scored_counts), self._cache)
        results = [RowResult() for _ in plan.scheduled]
        sampling = np.flatnonzero(step.samples)
        drawn = self._sample(self._logits(model, hidden[: len(sampling)]), step.rows[sampling])
        for place, result in zip(sampling.tolist(), drawn, strict=True):
            results[place] = result
        self._score(model, hidden[len(sampling) :], step, scored_counts, results)
        return results

    def release_cache(self) -> None:
        """See `Runner`."""
        self._cache.release()
        if self._host is not None:
            self._host.release()

    def close(self) -> None:
        """Give back weights and cache. Idempotent."""
        if self._model is not None:
            self._model = None
            del self._forward, self._to_logits
            if self._host is not None:
                self._host.close()
            self._cache.close()
            self._ops.close()

    def _apply(self, plan: StepPlan) -> None:
        """Follow the plan's differences: rows that ended, rows that begin, copied and appended blocks."""
        for row in plan.freed_rows:
            self._rows.free(row)
        for new in plan.new_rows:
            vocab_size = min(new.request.vocab_size or self._vocab_size, self._vocab_size)
            matcher = self._matcher(new)
            self._rows.add(new, SamplingState(new.request, new.index, new.output_token_ids, vocab_size, matcher))
        self._cache.copy_blocks(plan.block_copies)
        for each in plan.scheduled:
            if each.new_block_ids:
                self._rows.append_blocks(each.row, each.new_block_ids, replaces_last=each.replaces_last)

    def _sample(self, parts: Iterable[tuple[int, Array]], rows: NDArray[np.int64]) -> list[RowResult]:
        """Draw a token from the logits of each row and append it there; one that fails concerns its row alone. The
        masks were computed beside the model, and those of the next step are computed beside its."""
        if self._matchers is not None and len(rows):
            self._matchers.wait()
        states = self._rows.states(rows.tolist())
        drawn: list[RowResult] = []
        for start, logits in parts:
            drawn += self._ops.sample(logits, states[start : start + len(logits)], self._logprobs_mode)
        token_ids = [each.token_id for each in drawn]
        for state, token_id in zip(states, token_ids, strict=True):
            if token_id is not None:
                state.append(token_id)
        if self._matchers is not None:
            self._follow(self._matchers, states, token_ids)
        self._rows.append_tokens(rows, token_ids)
        return drawn

    def _matcher(self, new: NewRow) -> Matcher | None:
        if new.request.grammar is None or self._matchers is None:
            return None
        return self._matchers.matcher(new.request.grammar, new.output_token_ids)

    @staticmethod
    def _follow(matchers: Matchers, states: Sequence[SamplingState], token_ids: Sequence[int | None]) -> None:
        """Tell the grammars which tokens were drawn."""
        steps = [
            (state.matcher, [token_id])
            for state, token_id in zip(states, token_ids, strict=True)
            if state.matcher is not None and token_id is not None
        ]
        if steps:
            matchers.follow(steps)

    def _score(
        self, model: Model, hidden: Array, step: StepRows, counts: NDArray[np.int64], results: Sequence[RowResult]
    ) -> None:
        """Logprobs of the prompt tokens after the scored ones, whose hidden states [sum of counts, h] lie back to back."""
        first = 0
        for i in np.flatnonzero(counts).tolist():
            result, row, count = results[i], int(step.rows[i]), int(counts[i])
            top = self._rows.state(row).params.prompt_logprobs or 0
            targets = self._rows.tokens(row, int(step.starts[i]) + 1, count)
            scores: list[TokenLogprobs] = []
            for start, logits in self._logits(model, hidden[first : first + count]):
                if not np.isfinite(logits.max(axis=1)).all():
                    result.error = NOT_FINITE
                scores += self._ops.token_logprobs(logits, targets[start : start + len(logits)].tolist(), top)
            result.prompt_logprobs = scores
            first += count

    def _logits(self, model: Model, hidden: Array) -> Iterator[tuple[int, Array]]:
        """Logits [r, vocabulary] of hidden states [.., h], at most LOGITS_BYTES at a time, each with its first row."""
        for start in range(0, len(hidden), self._most_logits):
            yield start, model.logits(hidden[start : start + self._most_logits])


def _as_it_is(forward: Forward) -> Forward:
    return forward


@contextmanager
def _moves(host: HostMemory, plan: StepPlan) -> Iterator[None]:
    """First the moves that come before the step; the others while it runs, to be over at its end."""
    host.move(plan.before)
    moving = host.move_meanwhile(plan.meanwhile) if plan.meanwhile else None
    try:
        yield
    finally:
        if moving is not None:
            moving.result()
