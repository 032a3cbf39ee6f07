"""Which blocks hold which tokens, so that the beginning of a prompt that was computed before need not be computed again.

A full block's keys and values are a function of its tokens, of all tokens before it, and of what else the model computed
with. Its digest says all of that: SHA-256 of the digest of the block before it and its own token ids; the first block's
parent is the digest of the rest. Finding a digest is therefore finding the whole prefix.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256

from octavo.cache.reach import NO_BLOCK, Reach


class IntegrityError(RuntimeError):
    """The bookkeeping of the blocks contradicts itself: a fault of ours, never of a request."""


def root_digest(*, adapter: str | None = None, cache_salt: str | None = None) -> bytes:
    """The parent of a first block: requests share blocks only if all of these are equal. Each has its own place, so that no
    value of one can pass for a value of another."""
    return sha256(json.dumps({"adapter": adapter, "cache_salt": cache_salt}).encode()).digest()


def block_digest(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Of a full block with these ids (32 bits each) that follows the block with the digest `parent`."""
    return sha256(parent + array("i", token_ids).tobytes()).digest()


class PrefixIndex:
    """Digest -> block. Every operation costs the same however many blocks there are.

    Several sequences may have computed the same block: each is known, so that a sequence's blocks are either all findable
    or, after `clear`, none of them. (Where blocks were discarded with a sequence that failed, others that had them too keep
    what they hold behind those; it is overwritten in its turn.)
    """

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self.generation = 0  # how often it was cleared
        self._digests: dict[int, bytes] = {}  # by block
        self._blocks: dict[bytes, int] = {}
        self._twins: dict[bytes, set[int]] = {}  # further blocks of a digest, where there are any

    def __len__(self) -> int:
        return len(self._digests)

    def __contains__(self, block_id: int) -> bool:
        return block_id in self._digests

    def find(self, digest: bytes) -> int | None:
        """A block with this digest."""
        return self._blocks.get(digest)

    def find_prefix(self, digests: Iterable[bytes]) -> list[int]:
        """The blocks of the longest known prefix, NO_BLOCK for those that nothing behind it looks at. Where all is looked
        at, no digest is asked for after the first unknown one."""
        found: list[int] = []

        def known() -> Iterator[bool]:
            for digest in digests:
                found.append(self._blocks.get(digest, NO_BLOCK))
                yield found[-1] != NO_BLOCK

        count = self._reach.longest_prefix(known())
        first = self._reach.first_block(count * self._reach.block_size)
        return [NO_BLOCK] * first + found[first:count]

    def twin(self, block_id: int) -> int | None:
        """Another block with the digest of this one."""
        digest = self._digests[block_id]
        block = self._blocks[digest]
        return block if block != block_id else next(iter(self._twins.get(digest, ())), None)

    def add(self, block_id: int, digest: bytes) -> None:
        """The block, which is not known yet, has this digest."""
        if block_id in self._digests:
            raise IntegrityError(f"block {block_id} has a digest already")
        self._digests[block_id] = digest
        if self._blocks.setdefault(digest, block_id) != block_id:
            self._twins.setdefault(digest, set()).add(block_id)

    def has(self, block_id: int, digest: bytes) -> bool:
        """Whether the block is known by this digest."""
        return self._digests.get(block_id) == digest

    def remove(self, block_id: int) -> bytes:
        """The block holds nothing that may be found any more. Returns its digest."""
        digest = self._digests.pop(block_id)
        twins = self._twins.get(digest)
        if self._blocks[digest] != block_id:
            assert twins is not None
            twins.remove(block_id)
        elif twins:
            self._blocks[digest] = twins.pop()
        else:
            del self._blocks[digest]
        if twins is not None and not twins:
            del self._twins[digest]
        return digest

    def clear(self) -> None:
        """Nothing is found any more."""
        self.generation += 1
        for table in (self._digests, self._blocks, self._twins):
            table.clear()

    def check_integrity(self) -> None:
        """IntegrityError unless the tables agree. Cost: their size."""
        by_digest: dict[bytes, set[int]] = {}
        for block_id, digest in self._digests.items():
            by_digest.setdefault(digest, set()).add(block_id)
        known = {digest: {block_id, *self._twins.get(digest, ())} for digest, block_id in self._blocks.items()}
        sizes = {digest: 1 + len(self._twins.get(digest, ())) for digest in self._blocks}
        if known != by_digest or any(len(known[digest]) != size for digest, size in sizes.items()):
            raise IntegrityError("the prefix index's tables disagree")
        if not self._twins.keys() <= self._blocks.keys() or not all(self._twins.values()):
            raise IntegrityError("the prefix index knows twins of nothing")
