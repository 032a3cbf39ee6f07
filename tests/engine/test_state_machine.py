"""Anything may happen in any order; every sequence gets exactly its script, and the bookkeeping is exact after each step."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from octavo.cache import prefix_index
from octavo.cache.block_files import HEADER_BYTES, BlockFiles, LockedDirectory
from octavo.cache.block_pool import BlockPool
from octavo.cache.host_pool import HostPool
from octavo.cache.reach import NO_BLOCK
from octavo.engine.plan import StepPlan
from octavo.engine.preemption import PreemptionPolicy
from octavo.engine.request import RequestDelta
from octavo.engine.swap import SwapManager
from tests.cache.executors import Disk
from tests.scripted import Script, ScriptedRunner, default_token, make_request, scripted_engine

EOS = 2
SequenceName = tuple[str, int]  # request id, index
PARENTS: dict[bytes, bytes] = {}  # of every digest of a block that was made
TOKENS: dict[bytes, list[int]] = {}


@pytest.fixture(autouse=True, scope="module")
def watch_digests() -> Iterator[None]:
    """Fill PARENTS and TOKENS."""

    def block_digest(parent: bytes, token_ids: list[int]) -> bytes:
        digest = prefix_index.block_digest(parent, token_ids)
        PARENTS[digest], TOKENS[digest] = parent, token_ids
        return digest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("octavo.engine.sequence.block_digest", block_digest)
        yield


@dataclass
class Expected:
    """What a sequence must give, and what it gave."""

    token_ids: list[int]
    finish_reason: str
    given: list[int] = field(default_factory=list)
    ended_with: str | None = None
    prompt_logprobs: int | None = None  # how many entries are due with the first delta


class EngineMachine(RuleBasedStateMachine):
    """An engine over a scripted runner, which itself checks every plan and every read of its cache. Prompts begin alike, or
    go on from an earlier request, so that most of them find something there. What is preempted is computed again, or
    swapped to host memory, and on to files that are read and written at any time."""

    requests = Bundle("requests")

    @initialize(
        num_blocks=st.integers(3, 14),
        block_size=st.integers(1, 4),
        max_num_seqs=st.integers(1, 5),
        budget=st.integers(1, 24),
        max_model_len=st.integers(4, 40),
        is_chunked=st.booleans(),
        has_prefix_cache=st.sampled_from([True, True, True, False]),
        has_priorities=st.booleans(),
        longest_chunk=st.sampled_from([0, 0, 3]),
        max_itl_ms=st.sampled_from([None, 500.0]),
        num_slots=st.sampled_from([0, 1, 3, 6, 12]),
        num_files=st.sampled_from([None, 0, 3, 20, 20, 20]),
        blocks_per_step=st.integers(1, 3),
        window=st.sampled_from([None, None, None, 1, 2, 3, 5, 8, 13]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        budget: int,
        max_model_len: int,
        is_chunked: bool,
        has_prefix_cache: bool,
        has_priorities: bool,
        longest_chunk: int,
        max_itl_ms: float | None,
        num_slots: int,
        num_files: int | None,
        blocks_per_step: int,
        window: int | None,
    ) -> None:
        self.script = Script(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget if is_chunked else max(budget, max_model_len),
            max_model_len=max_model_len,
            num_slots=num_slots,
            window=window,
        )
        self.is_chunked = is_chunked
        self.runner = ScriptedRunner(script=self.script, on_step=self.look_at_plan)
        self.has_prefix_cache, self.has_priorities = has_prefix_cache, has_priorities
        self.has_swap = has_prefix_cache and num_slots > 0
        self.directory = tempfile.TemporaryDirectory() if self.has_swap and num_files is not None else None
        self.num_files, self.blocks_per_step = num_files or 0, blocks_per_step
        self.reader, self.writer = Disk(), Disk()
        self.files: BlockFiles | None = None
        self.is_vandalised = False
        self.engine = scripted_engine(
            self.runner,
            enable_chunked_prefill=is_chunked,
            enable_prefix_caching=has_prefix_cache,
            scheduling_policy="priority" if has_priorities else "fcfs",
            long_prefill_token_threshold=longest_chunk if is_chunked else 0,
            max_itl_ms=max_itl_ms if is_chunked else None,
            clock=random.Random(1).random,
            swap=self.swap if self.has_swap else None,
        )
        self.discarded: set[bytes] = set()  # digests of blocks that sequences with errors had
        self.watch_discarded(self.engine._pool)
        self.tables: dict[SequenceName, tuple[int, list[int]]] = {}  # blocks that are full, after how many preemptions
        self.prompts: dict[str, list[int]] = {}
        self.expected: dict[SequenceName, Expected] = {}
        self.alive: dict[SequenceName, tuple[int, int]] = {}  # their turns: priority, and order of arrival
        self.refused = 0
        self.fails_next = self.has_failed = False
        self.failures_in_a_row = 0

    def watch_discarded(self, pool: BlockPool) -> None:
        forget = pool.forget

        def watched(block_ids: list[int]) -> None:
            self.discarded |= {pool.index._digests[block] for block in block_ids if block in pool.index}
            forget(block_ids)
            assert not any(block in pool.index for block in block_ids)

        pool.forget = watched  # type: ignore[method-assign,assignment]

    def swap(self, pool: BlockPool) -> SwapManager:
        if self.directory is not None:
            block_bytes = HEADER_BYTES + self.runner.slot(0).nbytes
            self.files = BlockFiles(
                LockedDirectory(Path(self.directory.name)),
                self.num_files * block_bytes,
                b"i" * 32,
                self.runner.slot,
                reader=self.reader,
                writer=self.writer,
            )
        policy = PreemptionPolicy("swap", self.script.block_size, 0.0)
        host = HostPool(self.script.num_slots)
        return SwapManager(pool, host, policy, blocks_per_step=self.blocks_per_step, files=self.files)

    @rule(
        target=requests,
        length=st.one_of(st.sampled_from([1, 2, 4, 6, 8, 12]), st.integers(1, 30)),
        family=st.sampled_from([0, 0, 0, 1]),
        continued=st.one_of(st.none(), requests),
        salt=st.sampled_from([None, None, None, "salt"]),
        max_tokens=st.one_of(st.integers(1, 6), st.none(), st.integers(1, 30)),
        n=st.integers(1, 4),
        eos_at=st.one_of(st.none(), st.integers(0, 20)),
        error_at=st.one_of(st.none(), st.none(), st.integers(0, 10)),
        wants_prompt_logprobs=st.booleans(),
        priority=st.integers(-1, 1),
    )
    def submit(
        self,
        length: int,
        family: int,
        continued: str | None,
        salt: str | None,
        max_tokens: int | None,
        n: int,
        eos_at: int | None,
        error_at: int | None,
        wants_prompt_logprobs: bool,
        priority: int,
    ) -> str:
        request_id = f"r{len({name for name, _ in self.expected}) + self.refused}"
        options: dict[str, object] = {"prompt_logprobs": 0} if wants_prompt_logprobs else {}
        ids = [*self.conversation(continued), *(3 + family + 2 * i for i in range(length))][: self.script.max_model_len + 2]
        prompt = len(ids)
        options["priority"] = priority
        request = make_request(request_id, ids, max_tokens, eos=(EOS,), salt=salt, n=n, temperature=1.0, **options)
        self.prompts[request_id] = ids
        self.engine.add(request)
        limit = self.script.max_model_len - prompt if max_tokens is None else max_tokens
        longest = min(prompt + limit, self.script.max_model_len)
        too_long = prompt >= self.script.max_model_len + wants_prompt_logprobs  # a full context can still be scored
        if too_long or self.fewest_blocks(max(prompt, longest - 1)) > self.script.num_blocks:
            self.refused += 1
            return request_id
        for index in range(n):
            ids = [default_token(request, index, position) for position in range(max(1, longest - prompt))]
            reason = "length"
            if eos_at is not None and eos_at < len(ids):
                ids, reason = [*ids[:eos_at], EOS], "stop"
            self.runner.outputs[f"{request_id}/{index}"] = ids
            if error_at is not None and error_at < len(ids):
                self.script.row_errors[request_id] = error_at
                ids, reason = ids[:error_at], "error"
            due = prompt if index == 0 and wants_prompt_logprobs else None
            self.expected[request_id, index] = Expected(ids, reason, prompt_logprobs=due)
            self.alive[request_id, index] = (priority if self.has_priorities else 0, len(self.expected))
        return request_id

    def fewest_blocks(self, length: int) -> int:
        """With which a sequence of so many tokens can run, token by token if it must."""
        return self.most_blocks(length, 1 if self.is_chunked else length)

    def most_blocks(self, length: int, chunk: int | None = None) -> int:
        """Those of the window, and those of a step's tokens, wherever they lie in their blocks."""
        size, window, chunk = self.script.block_size, self.script.window, chunk or self.script.max_num_batched_tokens
        blocks = -(-length // size)
        return blocks if window is None else min(blocks, max(1, -(-(window - 1) // size)) + 1 + -(-(chunk - 1) // size))

    @rule(
        target=requests,
        count=st.integers(2, 4),
        length=st.integers(1, 12),
        max_tokens=st.integers(4, 20),
        continued=st.one_of(st.none(), requests),
        same=st.booleans(),
    )
    def crowd(self, count: int, length: int, max_tokens: int, continued: str | None, same: bool) -> MultipleResults[str]:
        """Several that fit alone, and seldom together."""
        ordinary = {"salt": None, "n": 1, "eos_at": None, "error_at": None, "wants_prompt_logprobs": False, "priority": 0}
        kind = {**ordinary, "length": length, "max_tokens": max_tokens, "continued": continued}
        return multiple(*(self.submit(family=0 if same else i, **kind) for i in range(count)))

    def conversation(self, request_id: str | None) -> list[int]:
        """An earlier request's prompt and what its first sequence gave."""
        given = self.expected[request_id, 0].given if (request_id, 0) in self.expected else []
        return [*self.prompts[request_id], *given] if request_id is not None else []

    @precondition(lambda self: self.runner.num_steps % 3 == 2)  # it undoes too much to happen often
    @rule(restart=st.booleans())
    def reset_prefix_cache(self, restart: bool) -> None:
        assert self.engine.reset_prefix_cache(restart)
        counts = self.engine.check_integrity()
        assert counts["cached"] == 0
        assert not (restart and counts["held"])
        assert not self.has_swap or not len(self.engine._swap.host)
        assert not self.files or not len(self.files)

    @rule(count=st.integers(1, 12), disk_jobs=st.integers(0, 4))
    def step(self, count: int, disk_jobs: int) -> None:
        for _ in range(count):
            self.one_step()
            self.disks_work(disk_jobs, disk_jobs)

    @rule(request_id=requests, index=st.one_of(st.none(), st.integers(0, 2)), reason=st.sampled_from(["abort", "stop"]))
    def abort(self, request_id: str, index: int | None, reason: str) -> None:
        self.engine.abort(request_id, index, reason)
        for name in [name for name in self.alive if name[0] == request_id and index in (None, name[1])]:
            self.end(name, f"aborted: {reason}")

    @rule(count=st.integers(1, 3))
    def preempt(self, count: int) -> None:
        scheduler = self.engine._scheduler
        for _ in range(min(count, len(scheduler.running))):
            scheduler.preempt(scheduler.running.last)

    def disks_work(self, reads: int, writes: int) -> None:
        self.reader.work(reads)
        self.writer.work(writes)

    @precondition(lambda self: self.directory is not None)
    @rule(which=st.integers(0, 30), how=st.sampled_from(["delete", "cut", "change"]))
    def vandalise_a_file(self, which: int, how: str) -> None:
        paths = sorted(path for path in Path(self.directory.name).glob("*/*.kv") if path.stat().st_size)
        if not paths:
            return
        self.is_vandalised = True
        path = paths[which % len(paths)]
        content = bytearray(path.read_bytes())
        content[-1 - which % len(content)] ^= 1
        path.unlink()
        if how != "delete":
            path.write_bytes(content if how == "change" else content[: which % len(content)])

    @rule()
    def fail_the_next_step(self) -> None:
        self.fails_next = self.failures_in_a_row < 2

    def one_step(self) -> None:
        num_steps, computes = self.runner.num_steps, bool(self.alive)
        output = self.engine.step()
        assert self.runner.num_steps - num_steps in ([1] if computes else [0, 1])
        for delta in output.deltas:
            self.look_at_delta(delta)
        self.check()

    def look_at_plan(self, plan: StepPlan) -> None:
        """Called by the runner: the first is always in it, and nobody overtakes."""
        rows = self.runner.rows
        state = self.engine.debug_state()
        running, waiting = ([(each["request_id"], each["index"]) for each in state[key]] for key in ("running", "waiting"))
        turns = sorted(self.alive, key=self.alive.__getitem__)
        assert bool(turns) == bool(plan.scheduled), "a step computes something whenever there is something"
        first = rows[plan.scheduled[0].row] if turns else None
        assert first is None or turns[0] == (first.request_name, first.new.index), "the first goes on"
        assert running == [name for name in turns if name in running], "they are served in their turns"
        new = [(new.request.request_id, new.index) for new in plan.new_rows]
        assert not waiting or not new or max(map(turns.index, new)) < turns.index(waiting[0]), "nobody overtakes"
        assert self.has_priorities or running == turns[: len(running)], "those that run are the oldest"
        assert sum(row.num_tokens for row in plan.scheduled) <= self.script.max_num_batched_tokens
        if self.fails_next:
            self.fails_next, self.has_failed = False, True
            self.failures_in_a_row += 1
            for row in (rows[scheduled.row] for scheduled in plan.scheduled):
                expected = self.expected[row.request_name, row.new.index]
                expected.finish_reason, expected.token_ids = "error", list(expected.given)
            raise ArithmeticError("as the test wants it")
        self.failures_in_a_row = 0

    def look_at_delta(self, delta: RequestDelta) -> None:
        name = (delta.request_id, delta.index)
        if name not in self.expected:
            assert delta.finish_reason == "error"  # refused on arrival
            return
        expected = self.expected[name]
        assert expected.ended_with is None, "nothing follows an end"
        is_first = bool(delta.token_ids) and not expected.given
        entries = delta.prompt_logprobs
        assert (len(entries) if entries is not None else None) == (expected.prompt_logprobs if is_first else None)
        if entries is not None:
            assert [entry and entry.logprobs[0] for entry in entries] == [None, *(-float(p) for p in range(1, len(entries)))]
        assert 0 <= delta.num_cached_tokens < len(self.prompts[delta.request_id])
        assert delta.num_cached_tokens % self.script.block_size == 0
        assert not delta.num_cached_tokens or (self.has_prefix_cache and is_first)
        expected.given += delta.token_ids
        assert expected.given == expected.token_ids[: len(expected.given)]
        if delta.finish_reason is not None:
            assert delta.finish_reason == expected.finish_reason
            assert expected.given == expected.token_ids
            self.end(name, delta.finish_reason)

    def end(self, name: SequenceName, how: str) -> None:
        self.expected[name].ended_with = how
        del self.alive[name]

    def check(self) -> None:
        blocks = self.engine.check_integrity()
        assert blocks["free"] + blocks["cached"] + blocks["held"] == blocks["total"] == self.script.num_blocks
        stats = self.engine.stats()
        ended = stats.num_finished + stats.num_aborted + stats.num_failed
        assert stats.num_received == ended + stats.num_running + stats.num_waiting
        assert stats.num_running + stats.num_waiting == len(self.alive)
        assert 0 <= stats.prefix_cache_hits <= stats.prefix_cache_queries
        assert self.has_prefix_cache or not blocks["cached"]
        assert stats.num_swap_preemptions <= stats.num_preemptions
        assert stats.external_cache_hits <= stats.external_cache_queries
        self.check_prefixes()
        self.check_tables()
        if self.has_swap:
            self.check_host()
        if self.files is not None:
            self.check_files(self.files)
        if not self.alive:
            assert blocks["held"] == 0

    def check_tables(self) -> None:
        """Only the block at a table's end, as long as it is not full, is ever replaced; those at its beginning may go."""
        before, self.tables = self.tables, {}
        for sequence in self.engine._scheduler.running:
            name, full = (sequence.request.request_id, sequence.index), sequence.num_computed // self.script.block_size
            self.tables[name] = (sequence.num_preemptions, sequence.table.block_ids[:full])
            preemptions, blocks = before.get(name, (-1, []))
            if preemptions == sequence.num_preemptions:
                now = self.tables[name][1]
                assert all(new in (NO_BLOCK, old) for new, old in zip(now, blocks, strict=False))
            gone = sequence.table.block_ids.count(NO_BLOCK)
            assert gone == sequence.table.num_gone
            assert self.script.window is not None or not gone
            assert len(sequence.table.held_ids) <= self.most_blocks(sequence.num_computed), "what is not seen is free"

    def check_host(self) -> None:
        """Every slot holds what its digest says, and what is kept for those that wait is there, unless a step failed."""
        swap = self.engine._swap
        host = swap.host
        if self.files is None and not self.has_failed:
            for digest in (digest for digests in swap._kept.values() for digest in digests):
                is_there = host.find(digest) is not None or self.engine._pool.index.find(digest) is not None
                assert is_there or digest in self.discarded
        for digest, block in host._blocks.items():
            if block.is_ready:
                assert self.runner._host[block.slot, :, 0].tolist() == TOKENS[digest]
                assert (self.runner._host[block.slot, 1:, 1] == self.runner._host[block.slot, :-1, 1] + 1).all()

    def check_files(self, files: BlockFiles) -> None:
        """When the disks rest, the directory holds what the accounts say, and never more than is allowed."""
        assert files.num_bytes == sum(file.size for file in files._files.values()) <= files._limit
        if not self.reader.jobs and not self.writer.jobs and not self.is_vandalised:
            found = {f"{path.parent.name}/{path.name}" for path in files._directory.glob("*/*")}
            assert found == set(files._files)

    def check_prefixes(self) -> None:
        """What is known can be found, and stays so: the block before a known one is known too, and is held or will be
        given up later, unless it was discarded. (Where a window is all that is seen, blocks are found without those
        before.)"""
        if self.script.window is not None:
            return
        pool = self.engine._pool
        place = {block: i for i, block in enumerate(pool._walk_free_list())}
        digests = pool.index._digests
        blocks: dict[bytes, list[int]] = {}
        for block, digest in digests.items():
            blocks.setdefault(digest, []).append(block)
        for block, digest in digests.items():
            parent = PARENTS[digest]
            if parent not in PARENTS or parent in self.discarded:
                continue  # it is the root of a first block, or those behind a discarded one are left to be overwritten
            places = [place.get(each, len(place)) for each in blocks[parent]]
            assert max(places) > place.get(block, len(place) - 1)
        for each in blocks.values():
            assert sum(block in place for block in each) <= 1, "of what nobody holds one copy is enough"

    @invariant()
    def books_are_right_between_steps(self) -> None:
        self.check()

    def teardown(self) -> None:
        """Everybody comes to an end, in no more steps than tokens could take."""
        if not hasattr(self, "engine"):
            return
        for _ in range(1_500):
            if not self.engine.has_work:
                break
            self.one_step()
        assert not self.alive
        assert all(expected.ended_with for expected in self.expected.values())
        assert self.engine.check_integrity()["held"] == 0
        self.engine.close()
        if self.directory is not None:
            self.directory.cleanup()


TestEngine = EngineMachine.TestCase
IS_NIGHTLY = settings.default.max_examples >= 1000
TestEngine.settings = settings(max_examples=10_000 if IS_NIGHTLY else 250, stateful_step_count=40)
