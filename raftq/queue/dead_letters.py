"""The dead letters of one subscription: messages that will not be handed out again by themselves.

They stay in their partition, at their offset, with the reason and what they have been through,
until somebody redrives or purges them. Looking at them changes nothing.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import NamedTuple

from raftq.queue.ranges import RangeSet
from raftq.queue.spans import Attempt

DELIVERY_LIMIT = "delivery_limit"
REJECTED = "rejected"

_start = itemgetter(0)


class DeadSpan(NamedTuple):
    """Messages next to each other that died together."""

    start: int
    stop: int
    reason: str
    error: str
    delivery_count: int
    died_at: int
    history: tuple[Attempt, ...]


class DeadLetter(NamedTuple):
    """One of them, as an operator sees it."""

    offset: int
    reason: str
    error: str
    delivery_count: int
    died_at: int
    history: tuple[Attempt, ...]


class DeadLetters:
    """Invariant: spans are disjoint and ascend; `messages` counts what they cover."""

    __slots__ = ("_spans", "messages")

    def __init__(self, spans: Iterable[DeadSpan] = ()) -> None:
        self._spans = list(spans)
        self.messages = sum(span.stop - span.start for span in self._spans)

    def __iter__(self) -> Iterator[DeadSpan]:
        return iter(self._spans)

    def add(self, span: DeadSpan) -> None:
        insort(self._spans, span)
        self.messages += span.stop - span.start

    def first(self) -> int | None:
        """The lowest offset."""
        return self._spans[0].start if self._spans else None

    def any_in(self, start: int, stop: int) -> bool:
        """Whether one of [start, stop) is a dead letter."""
        at = bisect_left(self._spans, stop, key=_start)
        return at > 0 and self._spans[at - 1].stop > start

    def missing(self, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """The parts of [start, stop) that are no dead letters, ascending."""
        at = max(bisect_right(self._spans, start, key=_start) - 1, 0)
        for span in islice(self._spans, at, None):
            if span.start >= stop:
                break
            if start < span.start:
                yield start, span.start
            start = max(start, span.stop)
        if start < stop:
            yield start, stop

    def chosen(
        self, reason: str, ranges: tuple[tuple[int, int], ...], limit: int
    ) -> list[DeadSpan]:
        """Those with this reason ("" is any) and within these ranges (none are all), lowest first.

        `limit` bounds the messages; 0 is no bound.
        """
        within = _union(ranges)
        left = limit or self.messages
        found: list[DeadSpan] = []
        for span in self._spans:
            if reason and span.reason != reason:
                continue
            whole = (span.start, span.stop)
            for start, stop in within.covered(*whole) if ranges else (whole,):
                if not left:
                    return found
                stop = min(stop, start + left)
                left -= stop - start
                found.append(span._replace(start=start, stop=stop))
        return found

    def remove(self, chosen: list[DeadSpan]) -> None:
        """Takes out what `chosen` gave."""
        gone = RangeSet()
        for span in chosen:
            gone.add(span.start, span.stop)
        self._spans = [
            span._replace(start=start, stop=stop)
            for span in self._spans
            for start, stop in gone.missing(span.start, span.stop)
        ]
        self.messages -= sum(span.stop - span.start for span in chosen)

    def letters(self, after: int, limit: int) -> list[DeadLetter]:
        """At most `limit` letters with an offset above `after`, lowest first."""
        letters: list[DeadLetter] = []
        for start, stop, *rest in self._spans:
            for offset in range(max(start, after + 1), stop):
                if len(letters) >= limit:
                    return letters
                letters.append(DeadLetter(offset, *rest))  # type: ignore[arg-type]
        return letters


def _union(ranges: tuple[tuple[int, int], ...]) -> RangeSet:
    """Ranges as a stranger writes them, in any order, perhaps overlapping."""
    union = RangeSet()
    for start, stop in sorted(ranges):
        for missing in list(union.missing(start, stop)):
            union.add(*missing)
    return union
