"""How many bytes the messages of a partition take, without knowing the messages.

Theory of operation. Positions count the bytes of all messages that were ever published in the
partition. A *mark* is an offset and the position at which its message begins; a batch adds one
mark. Between two marks the messages are taken to be equally long, rounded so that the parts of a
stretch always add up to the whole. A batch of unequal messages may add a mark a message, where
exactness matters (a queue with max_bytes). Marks below the first offset that anybody still needs
are forgotten.

A log, or a long backlog, would gather marks without end. So behind the newest ones the marks are
thinned out, until stretches are as long as `STRETCH_BYTES`: memory is then bounded by the bytes that
are kept (16 bytes for every 128 KiB or more), not by their batches, and how far a position between
marks can be off is bounded too. Which marks are there is replicated state: receives are cut by it.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from raftq.limits import KIB

STRETCH_BYTES: Final = 256 * KIB
"""Marks are thinned out to stretches of at most this: little beside what one receive may take."""

THINNED_MARKS: Final = 1_024
"""So many are looked at together, and as many of the newest are left alone."""


class MessageBytes:
    """Marks of one partition. Invariant: `_offsets` ascends strictly, `_positions` never falls."""

    __slots__ = ("_forgotten", "_offsets", "_positions", "_thinned", "end_offset", "end_position")

    def __init__(
        self,
        offsets: bytes = b"",
        positions: bytes = b"",
        end: tuple[int, int] = (0, 0),
        thinned: int = 0,
    ) -> None:
        self._offsets = array("Q", offsets)
        self._positions = array("Q", positions)
        self._forgotten = 0
        self._thinned = thinned
        """Marks below this offset have been thinned out."""
        self.end_offset, self.end_position = end

    def encoded(self) -> tuple[bytes, bytes, tuple[int, int], int]:
        """What the constructor takes; forgotten marks are not in it."""
        live = slice(self._forgotten, None)
        end = (self.end_offset, self.end_position)
        marks = self._offsets[live].tobytes(), self._positions[live].tobytes()
        return *marks, end, self._thinned

    def append(self, count: int, message_bytes: int) -> None:
        self._offsets.append(self.end_offset)
        self._positions.append(self.end_position)
        self.end_offset += count
        self.end_position += message_bytes

    def append_each(self, lengths: Sequence[int]) -> None:
        """One mark for each message: for batches of unequal messages."""
        positions = array("Q", accumulate(lengths, initial=self.end_position))
        self.end_position = positions.pop()
        self._offsets.extend(range(self.end_offset, self.end_offset + len(lengths)))
        self._positions.extend(positions)
        self.end_offset += len(lengths)

    def position(self, offset: int) -> int:
        """Where the message at `offset` begins."""
        at = bisect_right(self._offsets, offset) - 1
        assert at >= self._forgotten, "an offset that was forgotten"
        base = self._offsets[at]
        position = self._positions[at]
        if offset == base:
            return position
        last = at + 1 == len(self._offsets)
        count = (self.end_offset if last else self._offsets[at + 1]) - base
        size = (self.end_position if last else self._positions[at + 1]) - position
        return position + size * (offset - base) // count

    def between(self, start: int, stop: int) -> int:
        """Bytes of the messages in [start, stop)."""
        end = self.end_position if stop == self.end_offset else self.position(stop)
        return end - self.position(start)

    def fitting(self, start: int, stop: int, message_bytes: int) -> int:
        """The highest end of a range from `start`, up to `stop`, that takes at most these bytes."""
        target = self.position(start) + message_bytes
        if target >= self.end_position:
            return stop
        at = bisect_right(self._positions, target) - 1
        last = at + 1 == len(self._offsets)
        base, position = self._offsets[at], self._positions[at]
        count = (self.end_offset if last else self._offsets[at + 1]) - base
        size = (self.end_position if last else self._positions[at + 1]) - position
        # The most messages whose rounded share is within the target; size > 0, as target is inside.
        fit = ((target - position + 1) * count - 1) // size
        return max(start, min(stop, base + fit))

    def forget_below(self, offset: int) -> None:
        """Offsets below `offset` are not asked for any more."""
        offsets, forgotten = self._offsets, self._forgotten
        if offset >= self.end_offset:
            forgotten = len(offsets)
        else:
            forgotten = max(forgotten, bisect_right(offsets, offset) - 1)
        # The arrays are cut when half of them is dead: each mark is moved once on average.
        if 2 * forgotten > len(offsets):
            del offsets[:forgotten], self._positions[:forgotten]
            forgotten = 0
        self._forgotten = forgotten

    def crowd(self) -> tuple[int, int] | None:
        """The range of offsets in which marks are to be thinned out next, if there are enough."""
        offsets = self._offsets
        if len(offsets) - self._forgotten <= 2 * THINNED_MARKS:
            return None
        first = max(bisect_left(offsets, self._thinned), self._forgotten)
        last = first + THINNED_MARKS
        if last + THINNED_MARKS >= len(offsets):
            return None
        return offsets[first], offsets[last]

    def thin(self, start: int, stop: int) -> None:
        """Drops marks between two others, as long as stretches do not become too long.

        Positions between `start` and `stop` change by that, those of both do not.
        """
        offsets, positions = self._offsets, self._positions
        first, last = bisect_left(offsets, start), bisect_left(offsets, stop)
        at = first
        kept = []
        while at < last:
            kept.append(at)
            end = positions[at] + STRETCH_BYTES
            at = max(at + 1, bisect_right(positions, end, at, last + 1) - 1)
        offsets[first:last] = array("Q", [offsets[at] for at in kept])
        positions[first:last] = array("Q", [positions[at] for at in kept])
        self._thinned = stop
