"""How many bytes the messages of a partition take, without knowing the messages.

Theory of operation. Positions count the bytes of all messages that were ever published in the
partition. A *mark* is an offset and the position at which its message begins; a batch adds one
mark. Between two marks the messages are taken to be equally long, rounded so that the parts of a
stretch always add up to the whole. A batch of unequal messages may add a mark a message, where
exactness matters (a queue with max_bytes). Marks below the first offset that anybody still needs
are forgotten.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


class MessageBytes:
    """Marks of one partition. Invariant: `_offsets` ascends strictly, `_positions` never falls."""

    __slots__ = ("_forgotten", "_offsets", "_positions", "end_offset", "end_position")

    def __init__(
        self, offsets: bytes = b"", positions: bytes = b"", end: tuple[int, int] = (0, 0)
    ) -> None:
        self._offsets = array("Q", offsets)
        self._positions = array("Q", positions)
        self._forgotten = 0
        self.end_offset, self.end_position = end

    def encoded(self) -> tuple[bytes, bytes, tuple[int, int]]:
        """What the constructor takes; forgotten marks are not in it."""
        live = slice(self._forgotten, None)
        end = (self.end_offset, self.end_position)
        return self._offsets[live].tobytes(), self._positions[live].tobytes(), end

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
