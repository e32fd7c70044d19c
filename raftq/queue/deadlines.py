"""When log time must pass: a heap of moments, most of which will have become pointless.

Rules:

1. The heap is derived: what is due stands in the state itself (a delivery's deadline, the head of
   the delayed, a session's or producer's next look). An entry whose state says otherwise is dead,
   and is dropped when it comes up. Replicas may therefore have different heaps and do the same.
2. Entries are ordered completely by their numbers and names, never by an object.
3. Dead entries are cleared out when they have become the greater part.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

DELIVERY: Final = 0
DELAYED: Final = 1
SESSION: Final = 2
PRODUCER: Final = 3

_CLEARED_MIN: Final = 1_024
"""Below this many entries clearing out is not worth its while."""


class Deadline(NamedTuple):
    """`number` is a delivery, the first offset of a span, a session or a producer."""

    time: int
    kind: int
    number: int
    queue: int = 0
    partition: int = 0
    subscription: str = ""


class Deadlines:
    """The heap; `is_live` knows the state."""

    __slots__ = ("_clear_at", "_heap", "_is_live")

    def __init__(self, is_live: Callable[[Deadline], bool]) -> None:
        self._heap: list[Deadline] = []
        self._is_live = is_live
        self._clear_at = _CLEARED_MIN

    def push(self, deadline: Deadline) -> None:
        heappush(self._heap, deadline)
        if len(self._heap) > self._clear_at:
            self._heap = [entry for entry in self._heap if self._is_live(entry)]
            heapify(self._heap)
            self._clear_at = max(_CLEARED_MIN, 2 * len(self._heap))

    def first(self) -> int | None:
        """The earliest time that still means something."""
        heap = self._heap
        while heap and not self._is_live(heap[0]):
            heappop(heap)
        return heap[0].time if heap else None

    def pop_until(self, time: int) -> Deadline | None:
        """The earliest live entry at or before `time`, taken out."""
        first = self.first()
        return heappop(self._heap) if first is not None and first <= time else None
