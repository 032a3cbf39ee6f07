"""Which content lies in which slot of host memory: the second place for blocks that the cache has no room for."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable

from octavo.cache.prefix_index import IntegrityError


class HostBlock:
    """A slot with the content of one block, known by its digest (`octavo.cache.prefix_index`)."""

    __slots__ = ("digest", "is_dropped", "is_ready", "is_saved", "slot", "users")

    def __init__(self, digest: bytes, slot: int) -> None:
        self.digest = digest
        self.slot = slot
        self.is_ready = False  # the content is there
        self.is_saved = False  # in a file too, so that it can go
        self.is_dropped = False  # nobody finds it any more, and the slot is free when the last user has gone
        self.users = 0  # transfers that read or write the slot at this moment


class HostPool:
    """`num_slots` slots, each free or one digest's.

    Content that is wanted (by a sequence that will come back for it) stays until it is saved or not wanted any more; the
    rest goes when a slot is needed, the least recently used first. A wanted block that is neither here nor in a file has a
    slot promised to it: what is not wanted never takes that.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._blocks: dict[bytes, HostBlock] = {}
        self._evictable: OrderedDict[bytes, HostBlock] = OrderedDict()  # the next to go first
        self._wanted: Counter[bytes] = Counter()
        self._in_files: set[bytes] = set()  # of what is wanted
        self._num_promised = 0
        self._leaving: set[HostBlock] = set()  # dropped, but in use

    def __len__(self) -> int:
        """Slots with content, or for content that is on its way."""
        return len(self._blocks)

    @property
    def num_promisable(self) -> int:
        """Slots that could be had for wanted content beyond what is promised already."""
        return len(self._free) + len(self._evictable) - self._num_promised

    def find(self, digest: bytes) -> HostBlock | None:
        """The block with this digest, whether it is ready or not."""
        return self._blocks.get(digest)

    def is_wanted(self, digest: bytes) -> bool:
        """Whether a sequence will come back for this content."""
        return digest in self._wanted

    def want(self, digests: Iterable[bytes], has_file: Callable[[bytes], bool] = lambda digest: False) -> None:
        """A sequence will come back for these, some of which have files."""
        for digest in digests:
            self._wanted[digest] += 1
            if self._wanted[digest] == 1:
                if has_file(digest):
                    self._in_files.add(digest)
                self._num_promised += self._needs_promise(digest)
                self._settle(digest)

    def release(self, digests: Iterable[bytes]) -> None:
        """The sequence came back, or never will. In the order of the prefix: its end goes first."""
        for digest in reversed(list(digests)):
            self._wanted[digest] -= 1
            if not self._wanted[digest]:
                del self._wanted[digest]
                self._num_promised -= self._needs_promise(digest)
                self._in_files.discard(digest)
                self._settle(digest)

    def take(self, digest: bytes) -> HostBlock | None:
        """A slot for content that is not here yet, which is used until `done`; None if there is none."""
        is_wanted = self.is_wanted(digest)
        if not is_wanted and self.num_promisable <= 0:
            return None
        if not self._free:
            if not self._evictable:
                return None
            self.drop(next(iter(self._evictable.values())))
        block = HostBlock(digest, self._free.pop())
        block.users = 1
        self._num_promised -= is_wanted and self._needs_promise(digest)
        self._blocks[digest] = block
        return block

    def use(self, block: HostBlock) -> None:
        """A transfer begins to read the slot: it stays until `done`."""
        block.users += 1
        self._settle(block.digest)

    def done(self, block: HostBlock) -> None:
        """A transfer is over. The block counts as used a moment ago."""
        block.users -= 1
        if block in self._leaving and not block.users:
            self._leaving.remove(block)
            self._free.append(block.slot)
        elif not block.is_dropped:
            self._settle(block.digest)

    def mark_saved(self, digest: bytes, is_saved: bool) -> None:
        """A file of the block is there now, or is no longer."""
        if self.is_wanted(digest):
            self._num_promised -= self._needs_promise(digest)
            (self._in_files.add if is_saved else self._in_files.discard)(digest)
            self._num_promised += self._needs_promise(digest)
        block = self._blocks.get(digest)
        if block is not None:
            block.is_saved = is_saved
            self._settle(digest)

    def drop(self, block: HostBlock) -> None:
        """The content is not found any more."""
        block.is_dropped = True
        del self._blocks[block.digest]
        self._evictable.pop(block.digest, None)
        self._num_promised += self.is_wanted(block.digest) and self._needs_promise(block.digest)
        if block.users:
            self._leaving.add(block)
        else:
            self._free.append(block.slot)

    def clear(self) -> None:
        """Nothing is found, and nothing wanted, any more."""
        self._wanted.clear()
        self._in_files.clear()
        for block in list(self._blocks.values()):
            self.drop(block)
        self._num_promised = 0

    def check_integrity(self, users: Counter[HostBlock], wanted: Counter[bytes]) -> None:
        """IntegrityError unless every slot is free, one digest's or about to be free, and the accounts of `users` (of every
        transfer in progress) and of what is wanted are right. Cost: the number of slots."""
        blocks = [*self._blocks.values(), *self._leaving]
        if sorted([*self._free, *(block.slot for block in blocks)]) != list(range(self.num_slots)):
            raise IntegrityError("a slot of host memory is lost, or in two places")
        if any(block.users != users[block] for block in blocks) or any(not block.users for block in self._leaving):
            raise IntegrityError("host blocks have other users than they count")
        if self._wanted != wanted:
            raise IntegrityError("host memory keeps other blocks than those that are wanted")
        for digest, block in self._blocks.items():
            if block.digest != digest or block.is_dropped or self._may_go(block) != (digest in self._evictable):
                raise IntegrityError(f"slot {block.slot} of host memory is kept or given up wrongly")
        if self._in_files - self._wanted.keys():
            raise IntegrityError("files are remembered of what is not wanted")
        if self._num_promised != sum(map(self._needs_promise, self._wanted)):
            raise IntegrityError("another number of slots is promised than wanted blocks have neither slot nor file")

    def _needs_promise(self, digest: bytes) -> bool:
        """Of a wanted digest: whether it would be lost without a slot."""
        return digest not in self._blocks and digest not in self._in_files

    def _may_go(self, block: HostBlock) -> bool:
        return block.is_ready and not block.users and (block.is_saved or not self.is_wanted(block.digest))

    def _settle(self, digest: bytes) -> None:
        """Put the block, if it is here, among those that may go, or take it out."""
        block = self._blocks.get(digest)
        if block is None:
            return
        self._evictable.pop(digest, None)
        if self._may_go(block):
            self._evictable[digest] = block
