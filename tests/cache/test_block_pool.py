"""Blocks are free or held, never both, whatever happens; and the integrity check sees it when they are not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.block_pool import BlockPool, IntegrityError
from octavo.cache.block_table import BlockTable


def test_what_was_released_last_is_used_first() -> None:
    pool = BlockPool(6, 16)
    blocks = pool.allocate(4)
    pool.release(blocks[1:3])
    assert pool.allocate(3) == [*blocks[1:3], 4]
    assert (pool.num_free, pool.num_held) == (1, 5)


def test_a_shared_block_is_free_when_nobody_holds_it() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.allocate(1)
    pool.share(blocks)
    pool.release(blocks)
    assert (pool.num_free, pool.ref_count(blocks[0])) == (1, 1)
    pool.check_integrity([blocks])
    pool.release(blocks)
    assert pool.num_free == 2


@pytest.mark.parametrize(
    "misuse", [lambda pool: pool.allocate(4), lambda pool: pool.release([2]), lambda pool: pool.share([2])]
)
def test_misuse_is_refused(misuse: Callable[[BlockPool], object]) -> None:
    pool = BlockPool(4, 16)
    pool.allocate(2)
    with pytest.raises(IntegrityError):
        misuse(pool)


@pytest.mark.parametrize(
    ("harm", "tables"),
    [
        (lambda pool: None, [[0, 1]]),  # a table has lost block 2
        (lambda pool: None, [[0, 1, 2], [2]]),  # shared without a second reference
        (lambda pool: None, [[0, 1, 2, 2]]),
        (lambda pool: None, [[0, 1, 2, 3]]),  # held, but in the free list
        (lambda pool: pool._ref_counts.__setitem__(0, 2), [[0, 1, 2]]),
        (lambda pool: setattr(pool, "num_free", 2), [[0, 1, 2]]),
        (lambda pool: pool._next.__setitem__(4, 3), [[0, 1, 2]]),  # a cycle in the free list
        (lambda pool: pool._previous.__setitem__(4, 0), [[0, 1, 2]]),
        (lambda pool: pool._unlink(5), [[0, 1, 2]]),  # a block that is neither free nor held
    ],
)
def test_the_integrity_check_sees_each_kind_of_damage(harm: Callable[[BlockPool], object], tables: list[list[int]]) -> None:
    pool = BlockPool(6, 16)
    pool.allocate(3)
    pool.check_integrity([[0, 1, 2]])
    harm(pool)
    with pytest.raises(IntegrityError):
        pool.check_integrity(tables)


@given(st.integers(1, 12), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40)), max_size=60))
def test_tables_grow_at_the_end_and_give_everything_back(num_blocks: int, moves: list[tuple[int, int]]) -> None:
    pool = BlockPool(num_blocks, 4)
    tables = [BlockTable(pool) for _ in range(5)]
    for which, num_tokens in moves:
        table, before = tables[which], list(tables[which].block_ids)
        if table.missing(num_tokens) > pool.num_free:
            table.release()
            assert table.block_ids == []
        else:
            added = table.grow(num_tokens)
            assert table.block_ids == before + added
            assert len(table.block_ids) == max(len(before), -(-num_tokens // 4))
            assert table.missing(num_tokens) == 0
        pool.check_integrity([each.block_ids for each in tables])
    for table in tables:
        table.release()
    assert pool.num_free == num_blocks
