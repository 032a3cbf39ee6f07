"""Sequences in the order in which the scheduler serves them: those that run are one such queue, those that wait another."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from octavo.engine.sequence import Sequence


class SequenceQueue:
    """Ordered by `Sequence.turn`, which no two share. No operation calls more functions when more sequences are here."""

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[int, int], Sequence]] = []  # compared by their turns only, since those differ

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Sequence]:
        return (sequence for _, sequence in self._entries)

    def __contains__(self, sequence: Sequence) -> bool:
        place = self._place(sequence)
        return place < len(self._entries) and self._entries[place][1] is sequence

    @property
    def first(self) -> Sequence:
        """Who is served first; the queue is not empty."""
        return self._entries[0][1]

    @property
    def last(self) -> Sequence:
        """Who is served last; the queue is not empty."""
        return self._entries[-1][1]

    def add(self, sequence: Sequence) -> None:
        """Put the sequence where its turn is."""
        insort(self._entries, (sequence.turn, sequence))

    def remove(self, sequence: Sequence) -> None:
        """The sequence is here, and leaves."""
        place = self._place(sequence)
        assert self._entries[place][1] is sequence
        del self._entries[place]

    def _place(self, sequence: Sequence) -> int:
        return bisect_left(self._entries, (sequence.turn,))
