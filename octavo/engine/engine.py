"""The engine: requests go in, each step's deltas come out. It owns the sequences, the block pool and the runner."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import msgspec

from octavo.cache.block_pool import BlockPool
from octavo.engine.admission import check_can_run
from octavo.engine.deltas import error_delta, pooled_delta, token_delta
from octavo.engine.pace import Pace
from octavo.engine.plan import RowResult, Runner, ScheduledRow, StepPlan
from octavo.engine.preparation import Preparation
from octavo.engine.request import EngineOutput, EngineStats, Request, RequestDelta
from octavo.engine.scheduler import Scheduler
from octavo.engine.sequence import PromptUse, Sequence
from octavo.engine.statistics import collect_stats
from octavo.engine.swap import SwapManager
from octavo.errors import ConfigError, EngineDeadError, ValidationError
from octavo.grammar.matchers import Matchers
from octavo.sampling.sampler import MASKED
from octavo.sampling.stopping import finish_reason

logger = logging.getLogger(__name__)

FAILED_STEPS_UNTIL_DEAD = 3


class Engine:
    """One model, one KV cache, one step at a time. Not thread-safe: a client serialises what many threads ask for."""

    def __init__(
        self,
        runner: Runner,
        *,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        enable_chunked_prefill: bool = True,
        enable_prefix_caching: bool = True,
        scheduling_policy: str = "fcfs",
        long_prefill_token_threshold: int = 0,
        max_itl_ms: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
        matchers: Matchers | None = None,
        swap: Callable[[BlockPool], SwapManager] | None = None,
        window: int | None = None,
    ) -> None:
        """The options are those of `EngineConfig`. `clock` times the steps, in seconds. `matchers` are the runner's: without
        them requests with a grammar are refused. `window`: how many keys, its own included, a query of the model sees in the
        layer that sees most."""
        if not enable_chunked_prefill and max_num_batched_tokens < max_model_len:
            raise ConfigError(
                f"--max-num-batched-tokens ({max_num_batched_tokens}) is smaller than --max-model-len ({max_model_len}), "
                "and without chunked prefill a prompt must fit in one step: raise the first, lower the second, or leave out "
                "--no-enable-chunked-prefill"
            )
        self.max_model_len = max_model_len
        self._runner = runner
        self._pool = BlockPool(runner.num_blocks, block_size, window)
        self._computes_in_chunks = enable_chunked_prefill
        self._clock = clock
        self._pace = Pace(max_itl_ms / 1000) if max_itl_ms is not None else None
        self._swap = swap(self._pool) if swap is not None else None
        self._scheduler = Scheduler(
            self._pool,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            enable_chunked_prefill=enable_chunked_prefill,
            enable_prefix_caching=enable_prefix_caching,
            scheduling_policy=scheduling_policy,
            long_prefill_token_threshold=long_prefill_token_threshold,
            pace=self._pace,
            swap=self._swap,
        )
        self._matchers = matchers
        self._preparation = Preparation(matchers)
        self._sequences: dict[str, dict[int, Sequence]] = {}  # of requests that have not ended, by id and index
        self._pending: list[RequestDelta] = []  # made outside of a step, to go out with the next
        self._counters = EngineStats()
        self._failed_steps = 0  # in a row

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to compute or to say."""
        is_swapping = self._swap is not None and self._swap.has_work
        return bool(self._sequences or self._pending or self._preparation or is_swapping)

    @property
    def num_steps(self) -> int:
        """Steps that were begun."""
        return self._counters.num_steps

    def add(self, request: Request) -> None:
        """Queue the n sequences of a request, or refuse it with deltas if it can never run. An id that is running already
        is ignored: an answer could not be told from those of its first use."""
        if request.request_id in self._sequences or request.request_id in self._preparation:
            logger.error("Request %s is running already; its second use is ignored", request.request_id)
            return
        self._counters.num_received += request.params.n
        try:
            check_can_run(
                request,
                num_blocks=self._pool.num_blocks,
                reach=self._pool.reach,
                max_model_len=self.max_model_len,
                in_chunks=self._computes_in_chunks,
            )
        except ValidationError as error:
            self._refuse(request, error.message, is_refusal=True)
            return
        if request.grammar is None:
            self._queue(request)
        elif self._matchers is None:
            self._refuse(request, "This engine follows no grammars.")
        else:
            self._preparation.hold(request, request.grammar)
            self._queue_prepared()

    def abort(self, request_id: str, index: int | None = None, reason: str = "abort") -> None:
        """End one sequence, or all of a request. Its blocks are free on return. Unknown ids are ignored: it may just have
        ended. `reason` is "abort", or "stop" when the text matched a stop string."""
        if request_id in self._preparation:
            num_ended = self._preparation.abort(request_id, index)
            self._counters.num_aborted += num_ended
        sequences = self._sequences.get(request_id, {})
        for sequence in [sequences[i] for i in reversed(sequences) if index in (None, i)]:
            self._end(sequence, reason)

    def step(self) -> EngineOutput:
        """Plan, compute, apply. EngineDeadError after several failed steps in a row."""
        self._queue_prepared()
        plan = self._scheduler.plan()
        if plan:
            began = self._clock()
            self._run(plan)
            self._observe(plan, self._clock() - began)
        elif self._preparation and not self._pending:
            self._preparation.wait()
        deltas, self._pending = self._pending, []
        stats = self.stats()
        stats.iteration_tokens = sum(scheduled.num_tokens for scheduled in plan.scheduled)
        return EngineOutput(deltas=deltas, stats=stats)

    def stats(self) -> EngineStats:
        """Counters and gauges as of now."""
        return collect_stats(self._counters, self._scheduler, self._preparation, self._swap)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Requests from now on find nothing that was computed before, in host memory and in files neither. Running ones keep
        their blocks, or, if asked for, start again. Where none holds a block, the operating system gets the memory back.
        Always True."""
        if reset_running_requests:
            self._scheduler.preempt_all()
        self._pool.forget_contents()
        if self._swap is not None:
            self._swap.reset()
        if not self._pool.num_held:
            self._runner.release_cache()
        return True

    def check_integrity(self) -> dict[str, int]:
        """The pool's counts. IntegrityError if the bookkeeping contradicts itself. Walks the whole pool."""
        sequences = [sequence for request in self._sequences.values() for sequence in request.values()]
        held = self._swap.held_blocks if self._swap is not None else []
        self._pool.check_integrity([held, *(sequence.table.held_ids for sequence in sequences)])
        self._scheduler.check_integrity(sequences)
        if self._swap is not None:
            self._swap.check_integrity()
        return self._pool.counts()

    def debug_state(self) -> dict[str, Any]:
        """Running and waiting sequences (the first 100 of each), the state of the pool, and the counters, for people."""
        running, waiting = list(self._scheduler.running), list(self._scheduler.waiting)
        return {
            "running": [sequence.describe() for sequence in running[:100]],
            "waiting": [sequence.describe() for sequence in waiting[:100]],
            "num_running": len(running),
            "num_waiting": len(waiting),
            "num_preparing": self._preparation.num_sequences,
            "blocks": self._pool.counts(),
            "stats": msgspec.structs.asdict(self.stats()),
        }

    def close(self) -> None:
        """Give back weights and cache, and finish the files."""
        if self._matchers is not None:
            self._matchers.close()
        if self._swap is not None:
            if self._swap.has_work and not self._sequences and not self._failed_steps:
                self.step()
            self._swap.close()
        self._runner.close()

    def _observe(self, plan: StepPlan, seconds: float) -> None:
        """The plan has been carried out in so many seconds."""
        if self._pace is not None and plan.scheduled:
            self._pace.observe(plan, seconds)
        if self._swap is not None and plan.scheduled:
            self._swap.policy.observe(sum(each.num_tokens for each in plan.scheduled), seconds)

    def _queue(self, request: Request, without: frozenset[int] = frozenset(), grammar: Any = None) -> None:
        """The request's sequences wait for their turn."""
        prompt_use = PromptUse(grammar=grammar)
        indexes = [index for index in range(request.params.n) if index not in without]
        sequences = {index: Sequence(request, index, self._pool, prompt_use, self.max_model_len) for index in indexes}
        self._sequences[request.request_id] = sequences
        for sequence in sequences.values():
            self._scheduler.add(sequence)

    def _queue_prepared(self) -> None:
        """Queue those whose grammars are built by now."""
        for request, ended, built in self._preparation.ready():
            error = built.exception()
            if error is None:
                self._queue(request, ended, built)
            else:
                logger.error("The grammar of request %s cannot be used", request.request_id, exc_info=error)
                self._refuse(request, f"The grammar cannot be used: {error}", ended)

    def _refuse(
        self, request: Request, message: str, without: frozenset[int] = frozenset(), *, is_refusal: bool = False
    ) -> None:
        indexes = [index for index in range(request.params.n) if index not in without]
        self._counters.num_failed += len(indexes)
        self._pending += [error_delta(request, index, message, is_refusal=is_refusal) for index in indexes]

    def _run(self, plan: StepPlan) -> None:
        self._counters.num_steps += bool(plan.scheduled)
        now = time.time()
        try:
            results = self._runner.execute(plan)
        except BaseException as error:  # whatever it is, the rest of the engine goes on; an interrupt does so elsewhere
            self._fail(plan, error)
            if not isinstance(error, Exception):
                raise
            return
        self._failed_steps = 0
        if self._swap is not None:
            self._swap.step_done()
        self._apply(plan, results, now)

    def _apply(self, plan: StepPlan, results: list[RowResult], now: float) -> None:
        """Take in what the step gave to each of its sequences."""
        sequences = self._scheduler.sequences_at([scheduled.row for scheduled in plan.scheduled])
        pending = self._pending
        for sequence, scheduled, result in zip(sequences, plan.scheduled, results, strict=True):
            token_id, output = result.token_id, sequence.output_token_ids
            if (
                token_id is None
                or not 0 < len(output) < sequence.last_place
                or token_id in sequence.ending_ids
                or result.logprobs is not None
                or result.error is not None
            ):
                self._apply_result(sequence, scheduled, result, now)
                continue
            # neither the first token nor the last, and nothing else to tell of: what most results are
            output.append(token_id)
            delta = RequestDelta(sequence.request.request_id, sequence.index, [token_id])
            if sequence.num_preemptions:
                delta.num_preemptions = sequence.num_preemptions
            pending.append(delta)

    def _apply_result(self, sequence: Sequence, scheduled: ScheduledRow, result: RowResult, now: float) -> None:
        request = sequence.request
        sequence.scheduled_time = sequence.scheduled_time or now
        if result.error is not None:
            is_refusal = result.error == MASKED
            if not is_refusal:
                self._discard(sequence)
            self._end(sequence, "error")
            self._pending.append(error_delta(request, sequence.index, result.error, is_refusal=is_refusal))
            return
        if result.prompt_logprobs is not None:
            sequence.collect_prompt_logprobs(scheduled.start, result.prompt_logprobs)
        if result.pooled is not None:
            self._pending.append(pooled_delta(sequence, result.pooled))
            self._end(sequence, "stop")
            return
        if result.token_id is None:
            return
        sequence.output_token_ids.append(result.token_id)
        reason, stop_reason = finish_reason(request, sequence.output_token_ids, self.max_model_len)
        self._pending.append(token_delta(sequence, result.token_id, result, reason, stop_reason))
        if reason is not None:
            self._end(sequence, reason)

    def _fail(self, plan: StepPlan, error: BaseException) -> None:
        """A whole step failed: its sequences end, and no block that is known may be found again, since nobody knows what of
        it was done. Sequences that were not in it go on."""
        logger.error("A step with %d sequences failed", len(plan.scheduled), exc_info=error)
        self._failed_steps += 1
        if self._failed_steps >= FAILED_STEPS_UNTIL_DEAD:
            raise EngineDeadError(
                f"{self._failed_steps} steps in a row failed, the last with {type(error).__name__}: {error}"
            )
        self._scheduler.resend_freed_rows(plan.freed_rows)
        self._pool.forget_contents()
        if self._swap is not None:
            self._swap.step_failed()
        for scheduled in plan.scheduled:
            sequence = self._scheduler.sequence_at(scheduled.row)
            self._end(sequence, "error")
            message = f"The step that computed this request failed ({type(error).__name__}); the server's log says more."
            self._pending.append(error_delta(sequence.request, sequence.index, message))

    def _discard(self, sequence: Sequence) -> None:
        """What the sequence's blocks hold may be why it failed, those included that it found: nobody finds them again."""
        self._pool.forget(sequence.table.held_ids)
        if self._swap is not None:
            size = self._pool.block_size
            self._swap.discard([sequence.block_digest(i, size) for i in range(sequence.num_computed // size)])

    def _end(self, sequence: Sequence, reason: str) -> None:
        self._scheduler.remove(sequence)
        siblings = self._sequences[sequence.request.request_id]
        del siblings[sequence.index]
        if not siblings:
            del self._sequences[sequence.request.request_id]
        if reason == "error":
            self._counters.num_failed += 1
        elif reason == "abort":
            self._counters.num_aborted += 1
        else:
            self._counters.num_finished += 1
