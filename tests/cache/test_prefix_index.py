"""Digests say all that a block depends on; what is known is found, and given up in the right order."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cache.block_pool import BlockPool, IntegrityError
from octavo.cache.block_table import BlockTable
from octavo.cache.prefix_index import PrefixIndex, block_digest, root_digest
from octavo.cache.reach import Reach

ROOT = root_digest()
TRICKY = ["X", "null", '"', '", "cache_salt": "X', "", "\0", "\ud7ff"]


def test_what_requests_may_not_share_has_its_own_root() -> None:
    extra = [None, *TRICKY]
    roots = {root_digest(adapter=adapter, cache_salt=salt) for adapter in extra for salt in extra}
    assert len(roots) == len(extra) ** 2
    assert root_digest(adapter="X") != root_digest(cache_salt="X") != ROOT


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=2), min_size=2, max_size=6, unique_by=tuple))
def test_a_digest_depends_on_all_tokens_before_it(blocks: list[list[int]]) -> None:
    def chain(order: list[list[int]]) -> bytes:
        digest = ROOT
        for tokens in order:
            digest = block_digest(digest, tokens)
        return digest

    assert len(chain(blocks)) == 32
    assert len({chain(blocks), chain(blocks[1:]), chain([blocks[1], blocks[0], *blocks[2:]]), chain(blocks[:-1])}) == 4


def chained(count: int, label: int = 0) -> list[bytes]:
    digests = [block_digest(ROOT, [label, 0])]
    while len(digests) < count:
        digests.append(block_digest(digests[-1], [label, len(digests)]))
    return digests


def filled(pool: BlockPool, digests: list[bytes]) -> list[int]:
    """Held blocks with these digests."""
    blocks = pool.allocate(len(digests))
    for block, digest in zip(blocks, digests, strict=True):
        pool.publish(block, digest)
    return blocks


def test_no_digest_is_made_behind_the_first_unknown_one() -> None:
    pool, digests = BlockPool(8, 2), chained(6)
    blocks = filled(pool, digests[:3])
    asked = iter(digests)
    assert pool.index.find_prefix(asked) == blocks
    assert list(asked) == digests[4:]


def test_released_blocks_stay_known_and_can_be_taken_back() -> None:
    pool, digests = BlockPool(8, 2), chained(3)
    blocks = filled(pool, digests)
    pool.release(blocks)
    assert pool.counts() == {"free": 5, "cached": 3, "held": 0, "total": 8}
    pool.share(pool.index.find_prefix(digests[:2]))
    assert pool.counts() == {"free": 5, "cached": 1, "held": 2, "total": 8}
    pool.check_integrity([blocks[:2]])


def test_content_is_given_up_last_and_the_least_recently_used_and_longest_first() -> None:
    pool, old, new = BlockPool(8, 2), chained(3, 1), chained(3, 2)
    for digests in (old, new):
        pool.release(filled(pool, digests))
    pool.share(found := pool.index.find_prefix(old[:1]))  # used again: now the most recent
    pool.release(found)
    gone = []
    for _ in range(8):
        before = {digest for digest in (*old, *new) if pool.index.find(digest) is not None}
        pool.allocate(1)
        gone += [digest for digest in before if pool.index.find(digest) is None]
    assert gone == [old[2], old[1], new[2], new[1], new[0], old[0]]


def test_of_equal_blocks_one_is_kept_as_recent_as_the_last_of_them() -> None:
    pool, digests, other = BlockPool(12, 2), chained(2, 1), chained(2, 2)
    first, second = filled(pool, digests), filled(pool, digests)
    pool.release(first)
    assert pool.counts()["cached"] == 0, "while another holds the same the block is of no use"
    third = filled(pool, digests)
    pool.release(second)
    pool.release(third)
    pool.release(filled(pool, other))
    again = filled(pool, [digests[0]])
    pool.release(again)
    assert pool.counts() == {"free": 8, "cached": 4, "held": 0, "total": 12}
    pool.allocate(9)
    assert [pool.index.find(digest) is None for digest in (*digests, *other)] == [False, True, False, False]


def test_contents_can_be_forgotten() -> None:
    pool, digests = BlockPool(6, 2), chained(4)
    blocks = filled(pool, digests)
    pool.release(blocks[2:])
    pool.forget_contents()
    assert pool.index.find_prefix(digests) == []
    assert pool.counts() == {"free": 4, "cached": 0, "held": 2, "total": 6}
    pool.check_integrity([blocks[:2]])
    pool.release(blocks[:2])
    assert pool.counts()["free"] == 6


def test_a_forked_table_copies_its_last_block_before_it_writes_there() -> None:
    pool = BlockPool(8, 4)
    table, child, grandchild = BlockTable(pool), BlockTable(pool), BlockTable(pool)
    table.grow(6)
    table.fork(child)
    table.fork(grandchild)
    full, partial = table.block_ids
    assert [each.missing(7) for each in (table, child, grandchild)] == [1, 1, 1]
    assert child.missing(9) == 2
    assert child.copy_on_write() == (partial, child.block_ids[1])
    assert grandchild.copy_on_write() == (partial, grandchild.block_ids[1])
    assert table.missing(7) == 0
    assert table.copy_on_write() is None, "nobody else holds it any more"
    assert [each.block_ids[0] for each in (table, child, grandchild)] == [full] * 3
    pool.check_integrity([table.block_ids, child.block_ids, grandchild.block_ids])


def test_full_blocks_are_never_copied() -> None:
    pool = BlockPool(8, 4)
    table, child = BlockTable(pool), BlockTable(pool)
    table.grow(8)
    table.fork(child)
    assert (child.missing(8), child.missing(9), child.copy_on_write()) == (0, 1, None)


@pytest.mark.parametrize(
    "misuse", [lambda pool: pool.publish(0, ROOT), lambda pool: pool.publish(7, ROOT), lambda pool: pool.index.remove(3)]
)
def test_misuse_is_refused(misuse: Callable[[BlockPool], object]) -> None:
    pool = BlockPool(8, 2)
    filled(pool, chained(2))
    with pytest.raises((IntegrityError, KeyError)):
        misuse(pool)


@pytest.mark.parametrize(
    "harm",
    [
        lambda pool, digests: setattr(pool, "num_cached", 1),
        lambda pool, digests: pool.index.add(7, chained(1, 9)[0]),  # an empty block in front of the cached ones
        lambda pool, digests: pool.index._digests.pop(0),
        lambda pool, digests: pool.index._digests.__setitem__(0, ROOT),
        lambda pool, digests: pool.index._blocks.pop(digests[0]),
        lambda pool, digests: pool.index._twins.__setitem__(digests[0], {0}),
        lambda pool, digests: pool.index._twins.__setitem__(digests[0], set()),
        lambda pool, digests: pool.index._twins.__setitem__(ROOT, {1}),
    ],
)
def test_the_integrity_check_sees_each_kind_of_damage(harm: Callable[[BlockPool, list[bytes]], object]) -> None:
    pool, digests = BlockPool(9, 2), chained(3)
    blocks = filled(pool, digests)
    held = filled(pool, chained(1, 5))
    pool.release(blocks)
    pool.check_integrity([held])
    harm(pool, digests)
    with pytest.raises(IntegrityError):
        pool.check_integrity([held])


def test_every_block_of_an_index_has_its_place() -> None:
    index = PrefixIndex(Reach(16))
    (digest,) = chained(1)
    for block in (4, 5, 6):
        index.add(block, digest)
    found = index.find(digest)
    assert found == 4
    assert index.twin(4) in (5, 6)
    assert index.twin(5) == 4
    index.remove(4)
    assert index.find(digest) in (5, 6)
    index.remove(6)
    assert (index.find(digest), index.twin(5), len(index)) == (5, None, 1)
    index.remove(5)
    assert (index.find(digest), len(index)) == (None, 0)
    index.check_integrity()
