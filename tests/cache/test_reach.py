"""How many blocks a window keeps, against counting them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.block_pool import BlockPool
from octavo.cache.block_table import BlockTable
from octavo.cache.reach import NO_BLOCK, Reach

REACHES = st.builds(Reach, st.integers(1, 16), st.integers(1, 60))


@given(REACHES, st.integers(0, 300))
def test_what_a_query_sees_is_kept_and_not_a_block_more_than_a_restart_needs(reach: Reach, position: int) -> None:
    assert reach.window is not None
    begin_of_block = position // reach.block_size * reach.block_size
    first_seen = max(0, begin_of_block - reach.window + 1) // reach.block_size  # by a query that begins the block
    assert reach.first_block(position) in (first_seen, begin_of_block // reach.block_size - 1)
    assert reach.first_block(position) <= first_seen


@given(REACHES, st.integers(1, 40), st.integers(1, 40))
def test_the_most_blocks_are_those_of_the_worst_chunk(reach: Reach, num_tokens: int, chunk: int) -> None:
    size = reach.block_size
    most = max(-(-min(start + chunk, num_tokens) // size) - reach.first_block(start) for start in range(num_tokens))
    assert most <= reach.most_blocks(num_tokens, chunk)
    long = 100 * size + chunk + reach.window  # type: ignore[operator]
    worst = max(-(-(start + chunk) // size) - reach.first_block(start) for start in range(long - chunk))
    assert worst == reach.most_blocks(long, chunk)


@given(REACHES, st.integers(1, 30))
def test_the_longest_chunk_fits_and_none_longer(reach: Reach, num_blocks: int) -> None:
    chunk, endless = reach.longest_chunk(num_blocks), 10_000
    if chunk is None:
        assert reach.most_blocks(endless, 1) > num_blocks
    else:
        assert reach.most_blocks(endless, chunk) <= num_blocks < reach.most_blocks(endless, chunk + 1)


@given(st.integers(1, 8), st.one_of(st.none(), st.integers(1, 40)), st.lists(st.booleans(), max_size=20))
def test_the_longest_prefix_ends_behind_all_that_it_looks_at(size: int, window: int | None, known: list[bool]) -> None:
    reach = Reach(size, window)
    ends = [end for end in range(len(known) + 1) if all(known[reach.first_block(end * size) : end])]
    assert reach.longest_prefix(known) == max(ends)


def test_without_a_window_everything_is_looked_at() -> None:
    reach = Reach(16)
    assert reach.first_block(10_000) == 0
    assert reach.most_blocks(10_000, 1) == 625
    assert reach.longest_chunk(3) is None
    assert reach.longest_prefix(iter([True, True, False, True])) == 2


def test_a_table_gives_back_what_lies_before_the_window() -> None:
    pool = BlockPool(8, 4, window=6)
    table = BlockTable(pool)
    table.grow(17)
    first = list(table.block_ids)
    table.drop_unseen()
    assert table.block_ids == [NO_BLOCK, NO_BLOCK, *first[2:]]
    assert table.held_ids == first[2:]
    assert pool.num_free == 5
    table.grow(21)
    other = BlockTable(pool)
    table.fork(other)
    assert other.num_gone == 2
    pool.check_integrity([table.held_ids, other.held_ids])
    table.release()
    other.release()
    assert pool.num_free == 8
