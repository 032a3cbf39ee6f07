"""What is preempted comes back from host memory and files; what cannot is computed again. The scripted runner fails if a
block does not hold what the row's tokens would have written."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo.cache.block_files import HEADER_BYTES, BlockFiles, LockedDirectory
from octavo.cache.block_pool import BlockPool
from octavo.cache.host_pool import HostPool
from octavo.engine.engine import Engine
from octavo.engine.plan import StepPlan
from octavo.engine.preemption import PreemptionPolicy
from octavo.engine.request import RequestDelta
from octavo.engine.swap import SwapManager
from tests.cache.executors import Disk
from tests.engine.test_engine import ids, run
from tests.scripted import Script, ScriptedRunner, default_token, make_request, scripted_engine

SIZE = 4  # tokens in a block
OPENED: list[Engine] = []


@pytest.fixture(autouse=True)
def close_engines() -> Iterator[None]:
    yield
    while OPENED:
        OPENED.pop().close()


class Swapping:
    """An engine that swaps, and the plans it makes. `policy` is swap; disks work at once unless told otherwise."""

    def __init__(
        self,
        num_slots: int = 40,
        *,
        policy: PreemptionPolicy | None = None,
        directory: Path | None = None,
        num_files: int = 100,
        blocks_per_step: int = 2,
        scheduling_policy: str = "fcfs",
        **limits: object,
    ) -> None:
        self.plans: list[StepPlan] = []
        script = Script(**{"block_size": SIZE, "num_blocks": 12, "max_model_len": 48, "num_slots": num_slots, **limits})
        self.runner = ScriptedRunner(script=script, on_step=self.plans.append)
        self.policy = policy or PreemptionPolicy("swap", SIZE, 0.0)
        self.disk = Disk()
        self.disk_works_by_itself = True
        self._directory, self._num_files, self._blocks_per_step = directory, num_files, blocks_per_step
        self.engine: Engine = scripted_engine(self.runner, swap=self._manager, scheduling_policy=scheduling_policy)
        OPENED.append(self.engine)

    def _manager(self, pool: BlockPool) -> SwapManager:
        files = None
        if self._directory is not None:
            limit = self._num_files * (HEADER_BYTES + self.runner.slot(0).nbytes)
            files = BlockFiles(
                LockedDirectory(self._directory), limit, b"i" * 32, self.runner.slot, reader=self.disk, writer=self.disk
            )
        host = HostPool(self.runner.script.num_slots)
        self.manager = SwapManager(pool, host, self.policy, blocks_per_step=self._blocks_per_step, files=files)
        return self.manager

    def step(self) -> list[RequestDelta]:
        deltas = self.engine.step().deltas
        if self.disk_works_by_itself:
            self.disk.work(100)
        self.engine.check_integrity()
        return deltas

    def run(self) -> list[RequestDelta]:
        """To the end."""
        deltas = []
        while self.engine.has_work:
            deltas += self.step()
        return deltas

    def ask(self, name: str, length: int, max_tokens: int, label: int = 3, **more: object) -> None:
        self.engine.add(make_request(name, prompt_of(length, label), max_tokens, **more))  # type: ignore[arg-type]


def prompt_of(length: int, label: int = 3) -> list[int]:
    return [label + i for i in range(length)]


def expected(name: str, length: int, max_tokens: int, label: int = 3) -> list[int]:
    request = make_request(name, prompt_of(length, label), max_tokens)
    return [default_token(request, 0, position) for position in range(max_tokens)]


def crowd(swapping: Swapping, count: int = 4) -> None:
    """Requests that start together and cannot end together; nobody finds another's prefix."""
    for i in range(count):
        swapping.ask(f"r{i}", 8, 24, label=100 * i)


def check_crowd(deltas: list[RequestDelta], count: int = 4) -> None:
    for i in range(count):
        assert ids(deltas, f"r{i}") == expected(f"r{i}", 8, 24, label=100 * i)


def computed_by(make: Callable[[], Swapping]) -> tuple[int, Swapping]:
    swapping = make()
    crowd(swapping)
    check_crowd(swapping.run())
    assert swapping.engine.check_integrity()["held"] == 0
    return swapping.runner.num_computed_tokens, swapping


def test_c113_four_that_cannot_stay_together_get_what_they_get_alone_and_compute_it_once() -> None:
    computed, swapping = computed_by(Swapping)
    stats = swapping.engine.stats()
    assert stats.num_swap_preemptions == stats.num_preemptions > 0
    assert stats.num_swapped_in_blocks > 0
    once = 4 * (8 + 23)
    assert once <= computed < once + SIZE * stats.num_preemptions, "but for the blocks that were not full"
    recomputed, other = computed_by(lambda: Swapping(policy=PreemptionPolicy("recompute", SIZE, 0.0)))
    assert recomputed > computed
    assert (other.engine.stats().num_swap_preemptions, other.engine.stats().num_swapped_out_blocks) == (0, 0)


@pytest.mark.parametrize("num_slots", [1, 2, 3, 5, 9])
def test_a_host_pool_that_is_full_makes_it_recompute(num_slots: int) -> None:
    computed, swapping = computed_by(lambda: Swapping(num_slots))
    stats = swapping.engine.stats()
    assert stats.num_used_host_blocks <= num_slots
    assert stats.num_preemptions > 0
    if num_slots < 3:
        assert stats.num_swap_preemptions < stats.num_preemptions, "a sequence needs more than there is"
        assert computed > 4 * (8 + 23) + SIZE * stats.num_preemptions


def test_files_take_what_host_memory_has_no_room_for(tmp_path: Path) -> None:
    few, _ = computed_by(lambda: Swapping(4))
    more, swapping = computed_by(lambda: Swapping(4, directory=tmp_path / "a"))
    assert more < few
    assert swapping.manager.files is not None
    assert len(swapping.manager.files) > 4
    full, _ = computed_by(lambda: Swapping(4, directory=tmp_path / "b", num_files=3))
    assert full > more, "and when they are full as well it is computed again"


def test_what_is_still_in_the_cache_is_not_moved() -> None:
    swapping = Swapping(num_blocks=12)
    swapping.ask("a", 16, 8)
    swapping.step()
    swapping.engine._scheduler.preempt(swapping.engine._scheduler.running.last)
    swapping.run()
    assert swapping.engine.stats().num_swap_preemptions == 1
    assert swapping.engine.stats().num_swapped_out_blocks == 0


def preempted(swapping: Swapping) -> None:
    """An older request runs and will for long; a younger one is preempted, and all of its blocks overwritten."""
    swapping.ask("old", 4, 30, label=300)
    swapping.ask("young", 24, 6)
    swapping.step()
    scheduler = swapping.engine._scheduler
    scheduler.preempt(scheduler.running.last)
    swapping.engine._pool.release(swapping.engine._pool.allocate(swapping.engine._pool.num_free))  # all is overwritten
    swapping.plans.clear()


def test_blocks_come_back_while_others_compute_and_before_they_are_needed() -> None:
    swapping = Swapping(num_blocks=20, blocks_per_step=4)
    preempted(swapping)
    deltas = swapping.run()
    assert ids(deltas, "young")[-5:] == expected("young", 24, 6)[-5:]
    moves = [(len(plan.before.outs), len(plan.meanwhile.ins), len(plan.scheduled)) for plan in swapping.plans[:4]]
    assert moves == [(6, 0, 1), (0, 4, 1), (0, 2, 1), (0, 0, 2)], "out, then back in pieces, while the old one goes on"
    assert not any(plan.before.ins for plan in swapping.plans)
    resumed = next(plan for plan in swapping.plans if plan.new_rows)
    assert [each.start for each in resumed.scheduled if each.row == resumed.new_rows[0].row] == [24]


def test_with_nothing_else_to_compute_they_come_back_at_once() -> None:
    swapping = Swapping(num_blocks=20, blocks_per_step=1)
    preempted(swapping)
    swapping.step()
    swapping.engine.abort("old")
    swapping.plans.clear()
    swapping.step()
    (plan,) = swapping.plans
    assert (len(plan.before.ins), plan.scheduled[0].start) == (6, 24)


def test_blocks_that_are_held_for_one_go_to_an_older_one_that_needs_them() -> None:
    swapping = Swapping(num_blocks=13, blocks_per_step=1, max_num_seqs=2)
    preempted(swapping)
    while not swapping.manager.held_blocks:
        swapping.step()
    free = swapping.engine._pool.num_free
    taken = swapping.engine._pool.allocate(free)
    while swapping.manager.held_blocks:
        swapping.engine.step()
    assert swapping.engine.stats().num_preemptions == 1
    swapping.engine._pool.release(taken)
    assert ids(swapping.run(), "young")[-5:] == expected("young", 24, 6)[-5:]


def test_blocks_that_are_on_their_way_are_nobody_elses() -> None:
    """Five that come behind need a block each in the step that moves back those of one before them."""
    swapping = Swapping(num_blocks=21, blocks_per_step=6, scheduling_policy="priority", max_num_batched_tokens=100)
    swapping.ask("first", 1, 3, label=900, priority=0)
    swapping.ask("second", 24, 6, priority=1)
    for i in range(5):
        swapping.ask(f"r{i}", 7, 6, label=100 * i + 300, priority=2)
    deltas = swapping.step()
    scheduler = swapping.engine._scheduler
    (second,) = [sequence for sequence in scheduler.running if sequence.request.request_id == "second"]
    scheduler.preempt(second)
    swapping.engine._pool.release(swapping.engine._pool.allocate(10))
    swapping.plans.clear()
    deltas += swapping.run()
    assert [len(plan.meanwhile.ins) for plan in swapping.plans[:3]] == [0, 6, 0]
    assert [len(plan.scheduled) for plan in swapping.plans[:2]] == [6, 5], "one of the five has to wait"
    assert ids(deltas, "second") == expected("second", 24, 6)
    for i in range(5):
        assert ids(deltas, f"r{i}") == expected(f"r{i}", 7, 6, label=100 * i + 300)


def test_what_is_kept_moves_whatever_moving_costs_meanwhile() -> None:
    swapping = Swapping(num_blocks=20, blocks_per_step=4)
    swapping.ask("old", 4, 30, label=300)
    swapping.ask("young", 24, 6)
    swapping.step()
    scheduler, pool = swapping.engine._scheduler, swapping.engine._pool
    scheduler.preempt(scheduler.running.last)
    swapping.policy._mode = "recompute"
    pool.release(pool.allocate(pool.num_free))
    swapping.run()
    assert swapping.engine.stats().num_swapped_in_blocks == 6


@pytest.mark.parametrize(("mode", "found"), [("swap", 28), ("recompute", 0)])
def test_host_memory_is_a_second_level_of_the_prefix_cache(mode: str, found: int) -> None:
    swapping = Swapping(policy=PreemptionPolicy(mode, SIZE, 0.0))
    swapping.ask("a", 30, 2)
    swapping.run()
    swapping.ask("b", 40, 8, label=300)
    swapping.run()
    swapping.ask("a", 30, 2)
    assert swapping.run()[0].num_cached_tokens == found
    assert swapping.engine.stats().external_cache_hits == found


@pytest.mark.parametrize("steps", range(1, 6))
def test_who_is_aborted_while_blocks_come_back_leaves_nothing_behind(steps: int) -> None:
    swapping = Swapping(num_blocks=20, blocks_per_step=1)
    preempted(swapping)
    for _ in range(steps):
        swapping.step()
    swapping.engine.abort("young")
    swapping.engine.check_integrity()
    assert swapping.manager.held_blocks == []
    assert ids(swapping.run(), "old")[-9:] == expected("old", 4, 30, label=300)[-9:]


def test_a_prefix_survives_the_process(tmp_path: Path) -> None:
    first = Swapping(directory=tmp_path, num_blocks=40)
    first.ask("a", 30, 11)
    first.run()
    first.engine.close()
    second = Swapping(directory=tmp_path, num_blocks=40)
    second.ask("b", 30, 11)
    deltas = second.run()
    assert ids(deltas, "b") == expected("b", 30, 11)
    assert deltas[0].num_cached_tokens == 28
    stats = second.engine.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (30, 0)
    assert (stats.external_cache_queries, stats.external_cache_hits) == (30, 28)
    answer = [*prompt_of(30), *ids(deltas, "b")]
    second.engine.close()
    third = Swapping(directory=tmp_path, num_blocks=40)
    third.engine.add(make_request("c", [*answer, 7], 2))
    assert run(third.engine)[0].num_cached_tokens == 40, "the answer as well"
    third.engine.close()


def test_the_last_blocks_are_written_without_a_further_request(tmp_path: Path) -> None:
    swapping = Swapping(directory=tmp_path)
    swapping.ask("a", 8, 1)
    deltas = swapping.step()
    assert deltas[0].finish_reason == "length"
    assert swapping.engine.has_work
    assert swapping.step() == []
    assert not swapping.engine.has_work
    assert len(list(tmp_path.glob("*/*.kv"))) == 2
    swapping.engine.close()


def test_files_that_are_slow_to_read_are_waited_for_while_others_run(tmp_path: Path) -> None:
    first = Swapping(directory=tmp_path, num_blocks=40)
    first.ask("a", 30, 2)
    first.run()
    first.engine.close()
    second = Swapping(directory=tmp_path, num_blocks=40)
    second.disk_works_by_itself = False
    second.ask("other", 4, 40, label=500)
    second.step()
    second.ask("b", 30, 2)
    for _ in range(5):
        assert [delta.request_id for delta in second.step()] == ["other"]
    second.disk_works_by_itself = True
    deltas = second.run()
    assert ids(deltas, "b") == expected("b", 30, 2)
    assert next(delta for delta in deltas if delta.request_id == "b").num_cached_tokens == 28


@pytest.mark.parametrize("how", ["delete", "damage"])
def test_files_that_are_gone_or_damaged_are_computed_again(tmp_path: Path, how: str) -> None:
    first = Swapping(directory=tmp_path, num_blocks=40)
    first.ask("a", 30, 2)
    first.run()
    first.engine.close()
    second = Swapping(directory=tmp_path, num_blocks=40)
    for path in tmp_path.glob("*/*.kv"):
        content = path.read_bytes()
        path.unlink()
        if how == "damage":
            path.write_bytes(content[:-1] + b"?")
    second.ask("b", 30, 2)
    deltas = second.run()
    assert ids(deltas, "b") == expected("b", 30, 2)
    assert deltas[0].num_cached_tokens == 0
    second.engine.close()


def test_a_reset_empties_all_three_places(tmp_path: Path) -> None:
    swapping = Swapping(directory=tmp_path, num_blocks=10)
    crowd(swapping)
    swapping.run()
    assert list(tmp_path.glob("*/*.kv"))
    swapping.engine.reset_prefix_cache()
    swapping.disk.work(1000)
    assert not list(tmp_path.glob("*/*.kv"))
    assert len(swapping.manager.host) == 0
    swapping.ask("again", 8, 2)
    assert swapping.run()[0].num_cached_tokens == 0


def test_nothing_of_a_sequence_that_failed_is_found_in_host_memory_or_in_files(tmp_path: Path) -> None:
    swapping = Swapping(directory=tmp_path, num_blocks=10)
    swapping.ask("a", 30, 2)
    swapping.run()
    swapping.ask("other", 30, 2, label=200)
    swapping.run()
    swapping.runner.script.row_errors = {"b": 0}
    swapping.ask("b", 30, 2)
    assert swapping.run()[0].finish_reason == "error"
    swapping.disk.work(1000)
    swapping.ask("c", 30, 2)
    deltas = swapping.run()
    assert deltas[0].num_cached_tokens == 0
    assert ids(deltas, "c") == expected("c", 30, 2)
    stats = swapping.engine.stats()
    assert stats.external_cache_hits > 0
    assert stats.external_cache_hits + stats.prefix_cache_hits == 28  # all by b


def test_a_failed_step_leaves_nothing_of_it_in_host_memory() -> None:
    swapping = Swapping(num_blocks=20, blocks_per_step=2)
    preempted(swapping)
    swapping.runner.script.failing_steps = [swapping.runner.num_steps]
    swapping.step()
    assert len(swapping.manager.host) == 0
    deltas = swapping.run()
    assert ids(deltas, "young")[-5:] == expected("young", 24, 6)[-5:]


def test_prompt_logprobs_and_sequences_from_before_a_reset_are_not_kept() -> None:
    swapping = Swapping(num_blocks=20, max_num_batched_tokens=6)
    swapping.ask("scored", 20, 2, prompt_logprobs=0)
    swapping.step()
    scheduler = swapping.engine._scheduler
    scheduler.preempt(scheduler.running.last)
    assert swapping.engine.stats().num_swap_preemptions == 0
    entries = next(delta.prompt_logprobs for delta in swapping.run() if delta.prompt_logprobs)
    assert [entry and entry.logprobs[0] for entry in entries] == [None, *(-float(p) for p in range(1, 20))]
    swapping.ask("a", 20, 9)
    swapping.step()
    swapping.engine.reset_prefix_cache()
    scheduler.preempt(scheduler.running.last)
    assert swapping.engine.stats().num_swap_preemptions == 0
    assert ids(swapping.run(), "a")[-5:] == expected("a", 20, 9)[-5:]


def test_all_of_n_keep_the_prompt_once() -> None:
    swapping = Swapping(num_blocks=14, num_slots=40)
    swapping.ask("z", 4, 30, label=500)
    swapping.ask("a", 18, 12, n=3, temperature=1.0)
    deltas = swapping.run()
    request = make_request("a", prompt_of(18), 12)
    for index in range(3):
        assert ids(deltas, "a", index) == [default_token(request, index, position) for position in range(12)]
    assert swapping.engine.stats().num_swap_preemptions > 0


def test_two_that_together_exceed_the_pool_both_end_and_the_older_first() -> None:
    """No livelock, in any mode: the older one never gives way."""
    for mode in ("recompute", "swap"):
        swapping = Swapping(policy=PreemptionPolicy(mode, SIZE, 0.0), num_blocks=12)
        swapping.ask("a", 8, 40)
        swapping.ask("b", 8, 40, label=300)
        deltas = swapping.run()
        assert [delta.request_id for delta in deltas if delta.finish_reason] == ["a", "b"]
        assert all(delta.num_preemptions == 0 for delta in deltas if delta.request_id == "a")
        assert swapping.runner.num_steps < 100


def test_the_lowest_priority_gives_way_first_and_then_the_newest() -> None:
    victims: list[str] = []
    swapping = Swapping(num_blocks=9, max_num_batched_tokens=64)
    engine = scripted_engine(swapping.runner, swap=swapping._manager, scheduling_policy="priority")
    preempt = engine._scheduler.preempt
    engine._scheduler.preempt = lambda sequence: (victims.append(sequence.request.request_id), preempt(sequence))  # type: ignore
    for name, priority, label in [("low", 5, 100), ("high", 0, 200), ("newer", 5, 300)]:
        engine.add(make_request(name, prompt_of(8, label), 17, priority=priority))
    deltas = run(engine)
    assert victims[:2] == ["newer", "low"]
    assert [delta.request_id for delta in deltas if delta.finish_reason] == ["high", "low", "newer"]


@pytest.mark.parametrize(("seconds_per_block", "moves"), [(0.001, True), (0.019, True), (0.021, False), (0.5, False)])
def test_auto_moves_what_costs_less_to_move_than_to_compute(seconds_per_block: float, moves: bool) -> None:
    policy = PreemptionPolicy("auto", SIZE, seconds_per_block)
    policy.observe(100, 1.0)  # 4 tokens take 0.04 s; a block is moved twice
    assert [policy.prefers_moving(count) for count in (1, 5, 100)] == [moves] * 3


def test_the_cost_of_computing_is_that_of_large_steps_and_follows_them() -> None:
    policy = PreemptionPolicy("auto", SIZE, 0.001)
    assert not policy.prefers_moving(1), "nothing was measured yet"
    policy.observe(1, 0.5)
    assert policy.prefers_moving(1), "half a second a token"
    policy.observe(1000, 0.1)
    assert not policy.prefers_moving(1), "0.1 ms a token"
    policy.observe(1, 0.5)
    assert not policy.prefers_moving(1), "a step with one token says nothing of a thousand"
    for _ in range(30):
        policy.observe(1000, 10.0)
    assert policy.prefers_moving(1)


def test_random_crowds_compute_nothing_twice_but_partial_blocks() -> None:
    generator = random.Random(3)
    for _ in range(30):
        swapping = Swapping(100, num_blocks=generator.randrange(8, 16), blocks_per_step=generator.randrange(1, 4))
        total = 0
        for i in range(6):
            length, tokens = generator.randrange(1, 12), generator.randrange(1, 20)
            swapping.ask(f"r{i}", length, tokens, label=100 * i)
            total += length + tokens - 1
            for _ in range(generator.randrange(4)):
                swapping.step()
        swapping.run()
        stats = swapping.engine.stats()
        assert stats.num_swap_preemptions <= stats.num_preemptions
        assert swapping.runner.num_computed_tokens <= total + SIZE * stats.num_preemptions
