"""Anything may happen in any order; every sequence gets exactly its script, and the bookkeeping is exact after each step."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from octavo.cache import prefix_index
from octavo.engine.plan import StepPlan
from octavo.engine.request import RequestDelta
from tests.scripted import Script, ScriptedRunner, default_token, make_request, scripted_engine

EOS = 2
SequenceName = tuple[str, int]  # request id, index
PARENTS: dict[bytes, bytes] = {}  # of every digest of a block that was made


@pytest.fixture(autouse=True, scope="module")
def watch_digests() -> Iterator[None]:
    """Fill PARENTS."""

    def block_digest(parent: bytes, token_ids: list[int]) -> bytes:
        digest = prefix_index.block_digest(parent, token_ids)
        PARENTS[digest] = parent
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
    go on from an earlier request, so that most of them find something there."""

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
    ) -> None:
        self.script = Script(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=budget if is_chunked else max(budget, max_model_len),
            max_model_len=max_model_len,
        )
        self.runner = ScriptedRunner(script=self.script, on_step=self.look_at_plan)
        self.has_prefix_cache, self.has_priorities = has_prefix_cache, has_priorities
        self.engine = scripted_engine(
            self.runner,
            enable_chunked_prefill=is_chunked,
            enable_prefix_caching=has_prefix_cache,
            scheduling_policy="priority" if has_priorities else "fcfs",
            long_prefill_token_threshold=longest_chunk if is_chunked else 0,
            max_itl_ms=max_itl_ms if is_chunked else None,
            clock=random.Random(1).random,
        )
        self.prompts: dict[str, list[int]] = {}
        self.expected: dict[SequenceName, Expected] = {}
        self.alive: dict[SequenceName, tuple[int, int]] = {}  # their turns: priority, and order of arrival
        self.refused = 0
        self.fails_next = False
        self.failures_in_a_row = 0

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
        if too_long or -(-max(prompt, longest - 1) // self.script.block_size) > self.script.num_blocks:
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

    def conversation(self, request_id: str | None) -> list[int]:
        """An earlier request's prompt and what its first sequence gave."""
        given = self.expected[request_id, 0].given if (request_id, 0) in self.expected else []
        return [*self.prompts[request_id], *given] if request_id is not None else []

    @rule(restart=st.booleans())
    def reset_prefix_cache(self, restart: bool) -> None:
        assert self.engine.reset_prefix_cache(restart)
        counts = self.engine.check_integrity()
        assert counts["cached"] == 0
        assert not (restart and counts["held"])

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            self.one_step()

    @rule(request_id=requests, index=st.one_of(st.none(), st.integers(0, 2)), reason=st.sampled_from(["abort", "stop"]))
    def abort(self, request_id: str, index: int | None, reason: str) -> None:
        self.engine.abort(request_id, index, reason)
        for name in [name for name in self.alive if name[0] == request_id and index in (None, name[1])]:
            self.end(name, f"aborted: {reason}")

    @rule()
    def fail_the_next_step(self) -> None:
        self.fails_next = self.failures_in_a_row < 2

    def one_step(self) -> None:
        steps_due = self.runner.num_steps + bool(self.alive)
        output = self.engine.step()
        assert self.runner.num_steps == steps_due, "a step computes something whenever there is something"
        for delta in output.deltas:
            self.look_at_delta(delta)
        self.check()

    def look_at_plan(self, plan: StepPlan) -> None:
        """Called by the runner: the first is always in it, and nobody overtakes."""
        rows = self.runner.rows
        state = self.engine.debug_state()
        running, waiting = ([(each["request_id"], each["index"]) for each in state[key]] for key in ("running", "waiting"))
        turns = sorted(self.alive, key=self.alive.__getitem__)
        first = rows[plan.scheduled[0].row]
        assert turns[0] == (first.request_name, first.new.index), "the first goes on"
        assert running == [name for name in turns if name in running], "they are served in their turns"
        new = [(new.request.request_id, new.index) for new in plan.new_rows]
        assert not waiting or not new or max(map(turns.index, new)) < turns.index(waiting[0]), "nobody overtakes"
        assert self.has_priorities or running == turns[: len(running)], "those that run are the oldest"
        assert sum(row.num_tokens for row in plan.scheduled) <= self.script.max_num_batched_tokens
        if self.fails_next:
            self.fails_next = False
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
        self.check_prefixes()
        if not self.alive:
            assert blocks["held"] == 0

    def check_prefixes(self) -> None:
        """What is known can be found, and stays so: the block before a known one is known too, and is held or will be
        given up later."""
        pool = self.engine._pool
        place = {block: i for i, block in enumerate(pool._walk_free_list())}
        digests = pool.index._digests
        blocks: dict[bytes, list[int]] = {}
        for block, digest in digests.items():
            blocks.setdefault(digest, []).append(block)
        for block, digest in digests.items():
            parent = PARENTS[digest]
            if parent not in PARENTS:
                continue  # the root of a first block
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


TestEngine = EngineMachine.TestCase
IS_NIGHTLY = settings.default.max_examples >= 1000
TestEngine.settings = settings(max_examples=10_000 if IS_NIGHTLY else 500, stateful_step_count=40)
