"""A set of integers held as disjoint ranges: what of a partition a subscription is done with.

Rules:

1. Ranges never overlap and never touch: two sets with the same members have the same ranges, so
   the ranges are a canonical form for digests and snapshots.
2. A look-up is a binary search. A change in the middle moves the ranges behind it in memory
   (16 bytes each); acknowledgements in order only move one boundary.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class RangeSet:
    """Half-open ranges [start, stop), ascending."""

    __slots__ = ("_starts", "_stops")

    def __init__(self, starts: bytes = b"", stops: bytes = b"") -> None:
        self._starts = array("Q", starts)
        self._stops = array("Q", stops)
        assert len(self._starts) == len(self._stops), "every range has a start and a stop"

    def __len__(self) -> int:
        """Number of ranges, not of members."""
        return len(self._starts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self._starts, self._stops, strict=True)

    def encoded(self) -> tuple[bytes, bytes]:
        """What the constructor takes."""
        return self._starts.tobytes(), self._stops.tobytes()

    def add(self, start: int, stop: int) -> None:
        """Adds members of which none was there."""
        starts, stops = self._starts, self._stops
        at = bisect_left(starts, start)
        before = at > 0 and stops[at - 1]
        assert start < stop and before <= start, "a member is added twice"  # noqa: PT018 - hot.
        behind = starts[at] if at < len(starts) else None
        assert behind is None or stop <= behind, "a member is added twice"
        touches_before = at > 0 and before == start
        if behind == stop:
            if touches_before:
                stops[at - 1] = stops[at]
                del starts[at], stops[at]
            else:
                starts[at] = start
        elif touches_before:
            stops[at - 1] = stop
        else:
            starts.insert(at, start)
            stops.insert(at, stop)

    def remove(self, start: int, stop: int) -> None:
        """Takes out members that were all there."""
        starts, stops = self._starts, self._stops
        at = bisect_right(starts, start) - 1
        assert at >= 0 and start < stop <= stops[at], "a member is removed twice"  # noqa: PT018
        old_stop = stops[at]
        if starts[at] == start:
            if old_stop == stop:
                del starts[at], stops[at]
            else:
                starts[at] = stop
            return
        stops[at] = start
        if stop < old_stop:
            starts.insert(at + 1, stop)
            stops.insert(at + 1, old_stop)

    def first_missing(self, start: int) -> int:
        """The lowest integer from `start` on that is no member."""
        at = bisect_right(self._starts, start) - 1
        return max(start, self._stops[at]) if at >= 0 else start

    def count_below(self, stop: int) -> int:
        """Number of members below `stop`."""
        return sum(high - low for low, high in self.covered(0, stop))

    def forget_below(self, stop: int) -> None:
        """Takes out all members below `stop`."""
        at = bisect_left(self._starts, stop)
        if at and self._stops[at - 1] > stop:
            at -= 1
            self._starts[at] = stop
        del self._starts[:at], self._stops[:at]

    def covered(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, stop) that are members, ascending."""
        at = max(bisect_right(self._starts, start) - 1, 0)
        for index in range(at, len(self._starts)):
            low, high = max(start, self._starts[index]), min(stop, self._stops[index])
            if self._starts[index] >= stop:
                return
            if low < high:
                yield low, high

    def missing(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, stop) that are not members, ascending."""
        for low, high in self.covered(start, stop):
            if start < low:
                yield start, low
            start = high
        if start < stop:
            yield start, stop
