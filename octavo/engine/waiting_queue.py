"""The sequences that have no row and no blocks, in the order in which they will get them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from octavo.engine.sequence import Sequence


class WaitingQueue:
    """First come, first served. Every operation costs the same however many wait.

    A preempted sequence is older than all that were never admitted, and newer than all that still run, so putting it
    first keeps the queue in order of arrival.
    """

    def __init__(self) -> None:
        self._sequences: OrderedDict[Sequence, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._sequences

    @property
    def first(self) -> Sequence:
        """Who is next; the queue is not empty."""
        return next(iter(self._sequences))

    def append(self, sequence: Sequence) -> None:
        """A new sequence: last."""
        self._sequences[sequence] = None

    def put_back(self, sequence: Sequence) -> None:
        """A preempted sequence: first."""
        self._sequences[sequence] = None
        self._sequences.move_to_end(sequence, last=False)

    def remove(self, sequence: Sequence) -> None:
        """It was admitted or aborted."""
        del self._sequences[sequence]
