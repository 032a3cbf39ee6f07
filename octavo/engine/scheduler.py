"""Which tokens the next step computes: continuous batching under one token budget (Yu et al., Orca, 2022), with blocks
allocated on demand and shared (Kwon et al., PagedAttention, 2023), and prompts cut into chunks (Agrawal et al., Sarathi,
2023)."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable

from octavo.cache.block_pool import BlockPool, IntegrityError
from octavo.cache.reach import NO_BLOCK
from octavo.engine.pace import Pace
from octavo.engine.plan import NewRow, ScheduledRow, StepPlan
from octavo.engine.sequence import Sequence
from octavo.engine.sequence_queue import SequenceQueue
from octavo.engine.swap import SwapManager


class Scheduler:
    """Running and waiting sequences, and the plan of each step.

    Two facts carry the rest. All sequences have turns: by order of arrival, or under the policy "priority" by priority and
    then by order of arrival; a step serves them in this order, and only those behind give way to one. And a sequence is
    only ever short of blocks because of the others, since one that does not fit in the whole pool is refused on arrival:
    the first always goes on.

    Sequences of one request that can be admitted together take their rows together, and the first of them computes the
    prompt for all. In the step in which it ends, its last token's logits serve every one's first draw, and each has all of
    its blocks; the last of these, if it is not full, is copied by whoever writes to it while others hold it too.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        enable_chunked_prefill: bool = True,
        enable_prefix_caching: bool = True,
        scheduling_policy: str = "fcfs",
        long_prefill_token_threshold: int = 0,
        pace: Pace | None = None,
        swap: SwapManager | None = None,
    ) -> None:
        """`swap` needs the prefix cache."""
        self.pool = pool
        self.running = SequenceQueue()
        self.waiting = SequenceQueue()
        self.num_preemptions = 0
        self.num_swap_preemptions = 0  # of these, with what was computed kept
        self.num_copied_blocks = 0
        self.num_queried_tokens = 0  # of prompts that were looked up in the prefix cache, each once
        self.num_cached_tokens = 0  # of these, found
        self.num_fetched_tokens = 0  # and of the rest, found in host memory or in files
        self._swap = swap
        self._max_num_batched_tokens = max_num_batched_tokens
        self._enable_chunked_prefill = enable_chunked_prefill
        self._enable_prefix_caching = enable_prefix_caching
        self._longest_chunk = long_prefill_token_threshold or max_num_batched_tokens
        self._longest_lone_chunk = pool.reach.longest_chunk(pool.num_blocks) if enable_chunked_prefill else None
        self._pace = pace
        self._has_priorities = scheduling_policy == "priority"
        self._numbers = itertools.count()
        self._free_rows = list(reversed(range(max_num_seqs)))
        self._freed_rows: list[int] = []  # since the last plan
        self._sequences: list[Sequence | None] = [None] * max_num_seqs  # by row

    def add(self, sequence: Sequence) -> None:
        """A new sequence, which fits in the pool, waits for its turn."""
        sequence.turn = (sequence.request.priority if self._has_priorities else 0, next(self._numbers))
        self.waiting.add(sequence)

    def sequence_at(self, row: int) -> Sequence:
        """Who has the row."""
        return self.sequences_at([row])[0]

    def sequences_at(self, rows: list[int]) -> list[Sequence]:
        """Who has the rows."""
        sequences = [sequence for row in rows if (sequence := self._sequences[row]) is not None]
        if len(sequences) != len(rows):
            raise LookupError(f"one of the rows {rows} is free")
        return sequences

    def plan(self) -> StepPlan:
        """The next step: running and waiting sequences in the order of their turns, until the budget is spent. Nobody is
        admitted behind one that has to wait on, or in a step short of blocks. Not empty while any sequence is here."""
        plan = StepPlan()
        budget = self._max_num_batched_tokens
        preemptions, admits = self.num_preemptions, True
        running = deque(self.running)  # those whose turn is still to come in this step
        num_tokens: int | None
        if self._pace is not None:
            self._pace.begin(self.running)
        while budget:
            if admits and self.waiting and (not running or self.waiting.first.turn < running[0].turn):
                sequence = self.waiting.first
                num_tokens = self._admit(plan, sequence, budget)
                admits = bool(num_tokens)
            elif running and running[0].row is not None:
                in_turns = admits and bool(self.waiting) and self.waiting.first.turn < running[-1].turn
                if count := self._go_on(plan, running, 1 if in_turns else budget):
                    budget -= count
                    continue
                sequence = running.popleft()
                num_tokens = self._continue(sequence, budget)
                admits = admits and num_tokens is not None and self.num_preemptions == preemptions
            else:
                break  # the first was preempted a moment ago, and so were all behind it
            if num_tokens:
                budget -= self._schedule(plan, sequence, num_tokens)
        if self._swap is not None:
            self._swap.complete(plan)
        if plan:  # else it is not executed
            plan.freed_rows, self._freed_rows = self._freed_rows, []
        return plan

    def remove(self, sequence: Sequence) -> None:
        """The sequence ended, wherever it is: its blocks are free at once, its row with the next plan."""
        if sequence.row is None:
            self.waiting.remove(sequence)
            self._forget_swapped(sequence)
        else:
            self._vacate(sequence)

    def resend_freed_rows(self, rows: list[int]) -> None:
        """A step failed before it may have seen that these rows are free: the next plan says it again."""
        self._freed_rows = [*rows, *self._freed_rows]

    def preempt(self, sequence: Sequence, *, keeps: bool = True) -> None:
        """Like finishing, but it waits again, to start from what of it can be found then: what is still cached, and, if it
        is kept, what was overwritten meanwhile."""
        was_begun = sequence.num_computed > 0
        is_kept = keeps and self._swap is not None and self._swap.preempt(sequence)
        self._vacate(sequence)
        self.waiting.add(sequence)
        sequence.num_preemptions += was_begun
        self.num_preemptions += was_begun
        self.num_swap_preemptions += is_kept

    def preempt_all(self) -> None:
        """All running sequences wait again, with nothing computed."""
        for sequence in reversed(list(self.running)):
            self.preempt(sequence, keeps=False)

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """IntegrityError unless each of `sequences` (all there are) is either running, with a row and the blocks of what
        it has computed, or waiting, with neither; each row is either free or one sequence's; and followers wait beside their
        leader."""
        running = {sequence for sequence in sequences if sequence.row is not None}
        if running != set(self.running) or any(s in running for s in self.waiting):
            raise IntegrityError("a sequence that has a row is not running, or the other way round")
        if running != {s for s in self._sequences if s is not None} or any(self._sequences[row] for row in self._free_rows):
            raise IntegrityError("rows and running sequences do not match")
        for sequence in sequences:
            if len(sequence.table.block_ids) != self.pool.blocks_for(sequence.num_computed):
                raise IntegrityError(f"{sequence.describe()} holds more or fewer blocks than it has written")
            if sequence.table.num_gone > self.pool.reach.first_block(sequence.num_computed):
                raise IntegrityError(f"{sequence.describe()} has given back blocks that it still looks at")
            if sequence not in running and (sequence not in self.waiting or sequence.num_computed):
                raise IntegrityError(f"{sequence.describe()} has no row and does not wait")
            if any(each.leader is not sequence or each not in running for each in sequence.followers):
                raise IntegrityError(f"{sequence.describe()} has followers that do not follow")
            if sequence.leader is not None and (sequence not in sequence.leader.followers or sequence.num_computed):
                raise IntegrityError(f"{sequence.describe()} follows one that does not lead it")

    def _go_on(self, plan: StepPlan, running: deque[Sequence], limit: int) -> int:
        """Schedule those in front, up to `limit`, of which one token is not computed, as long as there are blocks for it: in
        most steps that is all that there is to do, and for most sequences no more than to take a place in a block that is
        theirs already. How many there were; they are gone from `running`."""
        pool, size, scheduled, count = self.pool, self.pool.block_size, plan.scheduled, 0
        for sequence in itertools.islice(running, limit):
            table = sequence.table
            start = table.num_tokens
            if sequence.num_prompt_tokens + len(sequence.output_token_ids) - start != 1:
                break
            if sequence.row is None or sequence.followers or table.was_forked:
                break
            if (start + 1) % size > 1:  # neither the first place of a block nor the last
                table.num_tokens = start + 1
                scheduled.append(ScheduledRow(sequence.row, start, 1, [], True))
            else:
                table.drop_unseen()
                if not pool.num_free or not sequence.is_in_runner:
                    break
                self._schedule(plan, sequence, 1)
            count += 1
        for _ in range(count):
            running.popleft()
        return count

    def _continue(self, sequence: Sequence, budget: int) -> int | None:
        """How many tokens of a running sequence go into this step, with blocks for them; None if there are none: it keeps
        what it has computed until one before it needs the blocks."""
        if sequence.leader is not None or sequence.num_uncomputed == 0:
            return 0  # another one computes its prompt, or has just done so
        sequence.table.drop_unseen()
        num_tokens = self._chunk(sequence.num_computed, sequence.num_uncomputed, budget)
        end = sequence.num_computed + num_tokens
        return num_tokens if self._make_room(sequence, lambda: sequence.table.missing(end) <= self.pool.num_free) else None

    def _chunk(self, start: int, num_tokens: int, budget: int) -> int:
        """How many of a sequence's next tokens go into this step."""
        if self._longest_lone_chunk is not None and self.pool.blocks_for(start + num_tokens) > self.pool.num_blocks:
            num_tokens = min(num_tokens, self._longest_lone_chunk)
        num_tokens = min(num_tokens, budget, self._longest_chunk)
        return num_tokens if self._pace is None or num_tokens == 1 else self._pace.chunk(start, num_tokens)

    def _make_row(self, sequence: Sequence) -> bool:
        """Preempt the last one if no row is free, but none whose turn is before the sequence's. Whether there is a row."""
        if not self._free_rows and self.running.last.turn > sequence.turn:
            self.preempt(self.running.last)
        return bool(self._free_rows)

    def _make_room(self, sequence: Sequence, has_room: Callable[[], bool]) -> bool:
        """Preempt the last one until there are blocks, but none whose turn is before the sequence's. Whether there is."""
        while not has_room():
            if self._swap is not None and self._swap.release_held():
                continue
            if not self.running or self.running.last.turn <= sequence.turn:
                return False
            self.preempt(self.running.last)
        return True

    def _cached_blocks(self, sequence: Sequence) -> list[int]:
        """Blocks with the first tokens of a waiting sequence, NO_BLOCK where they are not needed. Its last token is always
        computed: something must be drawn from."""
        size, most = self.pool.block_size, self._most_cached(sequence)
        return self.pool.index.find_prefix(sequence.block_digest(number, size) for number in range(most))

    def _most_cached(self, sequence: Sequence) -> int:
        if not self._enable_prefix_caching or not sequence.may_skip_computed:
            return 0
        return (sequence.num_tokens - 1) // self.pool.block_size

    def _admit(self, plan: StepPlan, sequence: Sequence, budget: int) -> int:
        """The first waiting sequence gets a row and its cached blocks, and siblings that need the same prompt get rows and
        follow it. How many tokens go into this step, behind the cached ones; 0 if it has to wait on."""
        cached = self._cached_blocks(sequence)
        num_cached = len(cached) * self.pool.block_size
        num_uncomputed = sequence.num_tokens - num_cached
        if num_uncomputed > budget and not self._enable_chunked_prefill:
            return 0
        num_tokens = self._chunk(num_cached, num_uncomputed, budget)
        if not num_tokens:
            return 0
        if not self._make_row(sequence) or not self._make_room(sequence, lambda: self._has_blocks_for(sequence)):
            return 0
        swap, most = self._swap, self._most_cached(sequence)
        if swap is not None and swap.fetch(plan, sequence, self._cached_blocks(sequence), most):
            return 0
        cached = self._cached_blocks(sequence)  # again: who gave way may have held some of them, and the swap brought more
        num_uncomputed = sequence.num_tokens - len(cached) * self.pool.block_size
        if num_uncomputed > budget and not self._enable_chunked_prefill:
            return 0
        self._occupy(sequence)
        sequence.table.share(cached)
        if sequence.prompt_use.num_cached_tokens is None:
            self._count_prompt(sequence)
        self._forget_swapped(sequence)
        while self.waiting and (follower := self.waiting.first).can_share_prompt_with(sequence):
            if not self._make_row(follower):
                break
            self._occupy(follower)
            follower.follow(sequence)
        return min(num_tokens, num_uncomputed)

    def _has_blocks_for(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence may be admitted, behind its cached blocks.

        All its known tokens must fit at once (or as many as it looks at), and leave a block for every other running
        sequence, which is what those will want within the next half block of steps: otherwise what is computed now would
        soon be thrown away again. (In simulated mixes this saved 12 to 69 % of the preemptions, and cost up to 6 points of
        the cache's utilisation.)
        """
        pool, cached = self.pool, self._cached_blocks(sequence)
        held = sum(pool.ref_count(block_id) > 0 for block_id in cached if block_id != NO_BLOCK)
        most = min(pool.num_blocks, pool.reach.most_blocks(sequence.num_tokens, self._longest_chunk))
        return most - held + len(self.running) // 2 <= pool.num_free

    def _occupy(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        self.running.add(sequence)
        sequence.cache_generation = self.pool.index.generation
        sequence.row = self._free_rows.pop()
        self._sequences[sequence.row] = sequence

    def _count_prompt(self, sequence: Sequence) -> None:
        """Once per request: blocks that it finds later are its own."""
        sequence.prompt_use.num_cached_tokens = sequence.num_computed
        if self._enable_prefix_caching and sequence.may_skip_computed:
            fetched = self._swap.num_fetched_tokens(sequence) if self._swap is not None else 0
            self.num_queried_tokens += sequence.num_tokens
            self.num_cached_tokens += sequence.num_computed - fetched
            self.num_fetched_tokens += fetched

    def _schedule(self, plan: StepPlan, sequence: Sequence, num_tokens: int) -> int:
        """Put the sequence's next tokens into the plan; the blocks are there. Returns `num_tokens`."""
        assert sequence.row is not None
        table, start = sequence.table, sequence.num_computed
        end = start + num_tokens
        if not sequence.is_in_runner:
            self._introduce(plan, sequence)
            table.grow(end)
            new_block_ids, copied = list(table.block_ids), None
        else:
            copied = table.copy_on_write() if table.was_forked else None
            new_block_ids = table.grow(end)
        if copied is not None:
            self.num_copied_blocks += 1
            plan.block_copies.append(copied)
            new_block_ids = [copied[1], *new_block_ids]
        if end // self.pool.block_size > start // self.pool.block_size:
            self._publish(sequence, start, end)
        sample = end == sequence.num_tokens
        plan.scheduled.append(ScheduledRow(sequence.row, start, num_tokens, new_block_ids, sample, copied is not None))
        if sample and sequence.followers:
            self._fork(plan, sequence)
        return num_tokens

    def _introduce(self, plan: StepPlan, sequence: Sequence) -> None:
        assert sequence.row is not None
        sequence.is_in_runner = True
        plan.new_rows.append(NewRow(sequence.row, sequence.request, sequence.index, list(sequence.output_token_ids)))

    def _fork(self, plan: StepPlan, sequence: Sequence) -> None:
        """The followers get all blocks of the prompt, and draw from the logits of its last token."""
        for forked in sequence.fork():
            assert forked.row is not None
            self._introduce(plan, forked)
            block_ids = list(forked.table.block_ids)
            plan.scheduled.append(ScheduledRow(forked.row, forked.num_computed, 0, block_ids, sample=True))

    def _publish(self, sequence: Sequence, start: int, end: int) -> None:
        """Blocks that this step fills can be found at once, by sequences that come later in the same plan too: a step
        writes all keys and values of a layer before it reads any."""
        if not self._enable_prefix_caching or sequence.cache_generation != self.pool.index.generation:
            return
        size = self.pool.block_size
        for number in range(start // size, end // size):
            block_id, digest = sequence.table.block_ids[number], sequence.block_digest(number, size)
            self.pool.publish(block_id, digest)
            if self._swap is not None:
                self._swap.on_filled(block_id, digest)

    def _forget_swapped(self, sequence: Sequence) -> None:
        if self._swap is not None:
            self._swap.forget(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        assert sequence.row is not None
        sequence.leave()
        self.running.remove(sequence)
        self._sequences[sequence.row] = None
        self._free_rows.append(sequence.row)
        self._freed_rows.append(sequence.row)
        sequence.row = None
        sequence.is_in_runner = False
        sequence.table.release()
