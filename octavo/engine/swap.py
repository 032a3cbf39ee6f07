"""Brings what the cache has no room for to host memory, on to files, and back to whoever waits for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import takewhile

from octavo.cache.block_files import BlockFiles
from octavo.cache.block_pool import BlockPool
from octavo.cache.host_pool import HostBlock, HostPool
from octavo.engine.plan import StepPlan
from octavo.engine.preemption import PreemptionPolicy
from octavo.engine.sequence import Sequence


class SwapManager:
    """Three places for a block, which is known by its digest in all of them: the cache, host memory, a file.

    What is preempted stays in the cache as any other content does, and moves to host memory only when it is about to be
    overwritten there; content that nobody waits for moves too as long as it takes no slot from what is wanted. With files,
    every full block is copied on as soon as it is computed, if a slot is free for it then, so that it survives the process.

    What the first waiting sequence needs is moved back before it is admitted, a few blocks with each step, while the step
    computes; they are held for it then. Where a step has nothing else to compute, it moves them first and goes on. What
    cannot be found is computed again.
    """

    def __init__(
        self,
        pool: BlockPool,
        host: HostPool,
        policy: PreemptionPolicy,
        *,
        blocks_per_step: int,
        files: BlockFiles | None = None,
    ) -> None:
        """`blocks_per_step` are moved back while a step computes, at most."""
        self.host = host
        self.policy = policy
        self.files = files
        self.num_swapped_out = 0  # blocks
        self.num_swapped_in = 0
        self._pool = pool
        self._blocks_per_step = blocks_per_step
        self._kept: dict[Sequence, list[bytes]] = {}  # what waiting sequences will come back for
        self._target: Sequence | None = None  # for which blocks are moved back
        self._held: list[int] = []  # the target's first blocks in the cache
        self._num_fetched = 0  # of these, moved back
        self._fresh: list[tuple[int, bytes]] = []  # blocks that the planned step fills
        self._unsaved: list[tuple[int, bytes]] = []  # blocks that steps before it filled, and that no file has yet
        # What the planned step moves:
        self._evicted: list[tuple[int, HostBlock]] = []
        self._filling: list[HostBlock] = []
        self._reading: list[HostBlock] = []
        self._arriving: list[tuple[int, bytes]] = []
        pool.on_eviction = self._on_eviction

    @property
    def has_work(self) -> bool:
        """Whether there is something to move even if no sequence is left."""
        return bool(self._unsaved)

    @property
    def held_blocks(self) -> list[int]:
        """The blocks that no sequence's table has, but one will."""
        return self._held

    def preempt(self, sequence: Sequence) -> bool:
        """A sequence with a table is about to give it up. Whether its blocks will be kept for it."""
        size = self._pool.block_size
        if sequence.cache_generation != self._pool.index.generation or not sequence.may_skip_computed:
            return False
        end = sequence.num_computed // size
        digests = [sequence.block_digest(number, size) for number in range(self._pool.reach.first_block(end * size), end)]
        if not digests or not self.policy.prefers_moving(len(digests), end):
            return False
        if sum(not self._is_away(digest) for digest in digests) > self.host.num_promisable:
            return False
        self._kept[sequence] = digests
        self.host.want(digests, self._has_file)
        return True

    def forget(self, sequence: Sequence) -> None:
        """A waiting sequence was admitted, with its blocks in its table, or has ended."""
        self.host.release(self._kept.pop(sequence, ()))
        if sequence is self._target:
            self.release_held()

    def release_held(self) -> bool:
        """Blocks are short: those that are held are only cached from now on. False if there are none, or if the planned step
        fills them."""
        if not self._held or self._arriving:
            return False
        self._pool.release(self._held)
        self._target, self._held, self._num_fetched = None, [], 0
        return True

    def num_fetched_tokens(self, sequence: Sequence) -> int:
        """Tokens of the sequence that were moved back for its admission."""
        return self._num_fetched * self._pool.block_size if sequence is self._target else 0

    def fetch(self, plan: StepPlan, sequence: Sequence, cached: list[int], most: int) -> bool:
        """Move back what the first waiting sequence needs to begin further on than behind its blocks in the cache, among its
        first `most` blocks, if there is room for that. True if it should wait for them until the next step: this one has
        other things to compute."""
        prefix = self._wanted_blocks(sequence, most)
        wanted = [digest for digest in prefix if digest is not None]
        missing = [digest for digest in wanted if self._pool.index.find(digest) is None]
        if len(prefix) <= len(cached) or not self._has_room(wanted):
            return False
        can_wait = bool(plan.scheduled)
        found, is_loading = self._find(missing[: self._blocks_per_step] if can_wait else missing, can_wait)
        if not found:
            return is_loading
        blocks = self._hold(sequence, wanted, found)
        moves = plan.meanwhile if can_wait else plan.before
        moves.ins += [(block.slot, block_id) for block, block_id in zip(found, blocks, strict=True)]
        self._reading += found
        self._num_fetched += len(found)
        arriving = [(block_id, block.digest) for block_id, block in zip(blocks, found, strict=True)]
        if can_wait:
            self._arriving += arriving
        else:
            self._publish(arriving)
        return can_wait

    def on_filled(self, block_id: int, digest: bytes) -> None:
        """The planned step fills a block."""
        if self.files is not None:
            self._fresh.append((block_id, digest))

    def complete(self, plan: StepPlan) -> None:
        """All is planned: add what moves to host memory."""
        self._collect()
        plan.before.outs += [(block_id, block.slot) for block_id, block in self._evicted]
        self._filling += [block for _, block in self._evicted]
        for block_id, digest in self._unsaved:
            if not self._pool.index.has(block_id, digest) or self._is_away(digest):
                continue
            block = self.host.take(digest)
            if block is not None:
                plan.meanwhile.outs.append((block_id, block.slot))
                self._filling.append(block)
        self._evicted, self._unsaved = [], []

    def step_done(self) -> None:
        """The planned step was executed."""
        self.num_swapped_out += len(self._filling)
        self.num_swapped_in += len(self._reading)
        self._publish(self._arriving)
        for block in self._filling:
            block.is_ready = True
            if self.files is not None and self.files.save(block):
                self.host.use(block)
        self._forget_given_up()
        self._end_moves()
        self._unsaved, self._fresh = self._fresh, []

    def step_failed(self) -> None:
        """Nobody knows what the planned step has moved."""
        for block in self._filling:
            self.host.drop(block)
        self._fresh, self._unsaved = [], []
        self._end_moves()
        self.release_held()

    def discard(self, digests: Iterable[bytes]) -> None:
        """Between two steps: content that is not right is not found any more, in host memory and in files either."""
        for digest in digests:
            block = self.host.find(digest)
            if block is not None:
                self.host.drop(block)
            if self.files is not None:
                self.files.forget(digest)
        self._forget_given_up()

    def reset(self) -> None:
        """Between two steps: nothing that was computed before is found any more, in host memory and in files either."""
        self._kept.clear()
        self.host.clear()
        self.release_held()
        self._fresh, self._unsaved = [], []
        if self.files is not None:
            self.files.clear()
            self._forget_given_up()

    def close(self) -> None:
        """Finish the files."""
        if self.files is not None:
            self.files.close()

    def check_integrity(self) -> None:
        """IntegrityError unless the accounts of host memory are right, between two steps."""
        users = Counter(self.files.in_progress if self.files is not None else ())
        self.host.check_integrity(users, Counter(digest for digests in self._kept.values() for digest in digests))

    def _find(self, digests: list[bytes], can_wait: bool) -> tuple[list[HostBlock], bool]:
        """The blocks of the longest prefix of `digests` that this step can move, each with one more user; and whether those
        behind them are on their way to host memory."""
        found, is_on_its_way = [], False
        for digest in digests:
            block = self.host.find(digest) or self._load(digest)
            if block is None:
                break
            if not block.is_ready and not self._is_loading(block):
                is_on_its_way = True  # this step moves it out
                break
            self.host.use(block)
            found.append(block)
        loading = [block for block in found if not block.is_ready]
        if not can_wait:
            for block in loading:
                self._files.wait(block)
            self._collect()
        ready = list(takewhile(lambda block: block.is_ready, found))
        for block in found[len(ready) :]:
            self.host.done(block)
        return ready, can_wait and (is_on_its_way or bool(loading))

    def _load(self, digest: bytes) -> HostBlock | None:
        """Begin to read the block's file, if there is one, and a slot for it."""
        block = self.host.take(digest) if self.files is not None and digest in self.files else None
        if block is not None:
            self._files.load(block)
        return block

    def _is_loading(self, block: HostBlock) -> bool:
        return self.files is not None and self.files.is_loading(block)

    @property
    def _files(self) -> BlockFiles:
        assert self.files is not None
        return self.files

    def _wanted_blocks(self, sequence: Sequence, most: int) -> list[bytes | None]:
        """Digests of as many of its first blocks as are known in any of the three places; None for those that it does not
        need."""
        index, reach, size = self._pool.index, self._pool.reach, self._pool.block_size
        digests: list[bytes | None] = []

        def known() -> Iterator[bool]:
            for number in range(most):
                digest = sequence.block_digest(number, size)
                digests.append(digest)
                yield index.find(digest) is not None or self._is_away(digest)

        count = reach.longest_prefix(known())
        first = reach.first_block(count * size)
        return [None] * first + digests[first:count]

    def _has_room(self, wanted: list[bytes]) -> bool:
        """Whether the pool can hold all of these at once."""
        here = [self._pool.index.find(digest) for digest in wanted]
        held = sum(block is not None and self._pool.ref_count(block) > 0 for block in here)
        return len(wanted) - held <= self._pool.num_free

    def _hold(self, sequence: Sequence, wanted: list[bytes], found: list[HostBlock]) -> list[int]:
        """Those blocks of the sequence that are in the cache stay there, and others are taken for what was found; which are
        they? Those of another target need not stay any more."""
        here = {digest: block for digest in wanted if (block := self._pool.index.find(digest)) is not None}
        self._pool.share(here.values())
        self._pool.release(self._held)
        if sequence is not self._target:
            self._target, self._num_fetched = sequence, 0
        blocks = self._pool.allocate(len(found))
        here |= {block.digest: block_id for block, block_id in zip(found, blocks, strict=True)}
        self._held = [here[digest] for digest in wanted if digest in here]
        return blocks

    def _publish(self, arrived: list[tuple[int, bytes]]) -> None:
        for block_id, digest in arrived:
            self._pool.publish(block_id, digest)

    def _on_eviction(self, block_id: int, digest: bytes) -> None:
        """The planned step overwrites a block of the cache."""
        if self._pool.index.find(digest) is not None or self._is_away(digest):
            return
        if self.host.is_wanted(digest) or self.policy.prefers_moving(1):
            block = self.host.take(digest)
            if block is not None:
                self._evicted.append((block_id, block))

    def _is_away(self, digest: bytes) -> bool:
        """Whether host memory or a file has the block."""
        return self.host.find(digest) is not None or self._has_file(digest)

    def _has_file(self, digest: bytes) -> bool:
        return self.files is not None and digest in self.files

    def _end_moves(self) -> None:
        for block in (*self._filling, *self._reading):
            self.host.done(block)
        self._filling, self._reading, self._arriving = [], [], []

    def _collect(self) -> None:
        """See what came of reading and writing files."""
        if self.files is None:
            return
        for block, succeeded in self.files.completed():
            if not block.is_dropped:
                if not succeeded and not block.is_ready:
                    self.host.drop(block)
                elif succeeded:
                    block.is_ready = True
                    self.host.mark_saved(block.digest, block.digest in self.files)
            self.host.done(block)
        self._forget_given_up()

    def _forget_given_up(self) -> None:
        if self.files is not None:
            for digest in self.files.gone:
                self.host.mark_saved(digest, False)
            self.files.gone.clear()
