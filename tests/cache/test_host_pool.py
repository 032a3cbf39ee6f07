"""What stays in host memory, and what goes when a slot is needed."""

from __future__ import annotations

from collections import Counter

import pytest

from octavo.cache.host_pool import HostBlock, HostPool
from octavo.cache.prefix_index import IntegrityError


def digest(number: int) -> bytes:
    return bytes([number]) * 32


def fill(pool: HostPool, *numbers: int) -> list[HostBlock]:
    """Take a slot for each and bring its content there."""
    blocks = [pool.take(digest(number)) for number in numbers]
    assert all(block is not None for block in blocks)
    filled = [block for block in blocks if block is not None]
    for block in filled:
        block.is_ready = True
        pool.done(block)
    return filled


def present(pool: HostPool) -> list[int]:
    return [number for number in range(20) if pool.find(digest(number)) is not None]


def check(pool: HostPool, users: list[HostBlock], wanted: list[int]) -> None:
    pool.check_integrity(Counter(users), Counter(digest(number) for number in wanted))


def test_the_least_recently_used_goes_first() -> None:
    pool = HostPool(3)
    blocks = fill(pool, 0, 1, 2)
    pool.use(blocks[0])
    pool.done(blocks[0])
    fill(pool, 3)
    assert present(pool) == [0, 2, 3]
    check(pool, [], [])


def test_what_is_wanted_stays_and_its_end_goes_first_afterwards() -> None:
    pool = HostPool(3)
    pool.want([digest(0), digest(1)])
    fill(pool, 0, 1, 2)
    fill(pool, 3)
    assert present(pool) == [0, 1, 3]
    check(pool, [], [0, 1])
    pool.release([digest(0), digest(1)])
    fill(pool, 4)
    fill(pool, 5)
    assert present(pool) == [0, 4, 5]
    check(pool, [], [])


def test_a_slot_is_promised_to_what_is_wanted_and_not_here_yet() -> None:
    pool = HostPool(2)
    pool.want([digest(0)])
    assert pool.num_promisable == 1
    fill(pool, 1)
    assert pool.num_promisable == 1, "what is not wanted gives way"
    pool.want([digest(1), digest(2)])
    assert pool.num_promisable == -1 + 1 - 1
    assert pool.take(digest(3)) is None
    fill(pool, 0)
    assert pool.take(digest(2)) is None, "more is wanted than there are slots"
    check(pool, [], [0, 1, 2])


def test_several_may_want_the_same() -> None:
    pool = HostPool(1)
    pool.want([digest(0)])
    pool.want([digest(0)])
    fill(pool, 0)
    pool.release([digest(0)])
    assert pool.take(digest(1)) is None
    pool.release([digest(0)])
    fill(pool, 1)
    assert present(pool) == [1]


def test_what_a_file_has_may_go_although_it_is_wanted() -> None:
    pool = HostPool(1)
    pool.want([digest(0)])
    fill(pool, 0)
    pool.mark_saved(digest(0), True)
    assert pool.num_promisable == 1
    pool.mark_saved(digest(0), False)
    assert pool.num_promisable == 0
    pool.mark_saved(digest(0), True)
    fill(pool, 1)
    assert present(pool) == [1]
    check(pool, [], [0])


def test_what_is_in_use_stays_and_its_slot_is_free_when_the_last_user_has_gone() -> None:
    pool = HostPool(1)
    (block,) = fill(pool, 0)
    pool.use(block)
    assert pool.take(digest(1)) is None
    pool.drop(block)
    assert present(pool) == []
    assert pool.take(digest(1)) is None
    check(pool, [block], [])
    pool.done(block)
    fill(pool, 1)
    check(pool, [], [])


def test_nothing_is_left_after_a_clear_but_what_is_in_use() -> None:
    pool = HostPool(3)
    pool.want([digest(0), digest(5)])
    blocks = fill(pool, 0, 1)
    pool.use(blocks[1])
    pool.clear()
    assert (present(pool), len(pool), pool.num_promisable) == ([], 0, 2)
    check(pool, [blocks[1]], [])
    pool.done(blocks[1])
    fill(pool, 6, 7, 8)


def test_the_check_sees_what_is_wrong() -> None:
    pool = HostPool(2)
    (block,) = fill(pool, 0)
    with pytest.raises(IntegrityError, match="users"):
        check(pool, [block], [])
    with pytest.raises(IntegrityError, match="wanted"):
        check(pool, [], [1])
    block.slot = 1 - block.slot
    with pytest.raises(IntegrityError, match="two places"):
        check(pool, [], [])


def test_what_a_file_has_needs_no_promise() -> None:
    pool = HostPool(2)
    names = [digest(number) for number in range(6)]
    pool.want(names, has_file=lambda name: name in names[1:])
    assert pool.num_promisable == 1
    check(pool, [], list(range(6)))
    (block,) = fill(pool, 0)
    assert pool.num_promisable == 1
    pool.mark_saved(names[0], True)  # it may go now, and is promised nothing when it does
    assert pool.num_promisable == 2
    pool.drop(block)
    check(pool, [], list(range(6)))
    assert pool.num_promisable == 2
    pool.mark_saved(names[3], False)  # the file is lost: what the cache still has of it needs a slot
    assert pool.num_promisable == 1
    check(pool, [], list(range(6)))
    pool.release(names)
    assert pool.num_promisable == 2
    check(pool, [], [])
