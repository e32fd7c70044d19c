"""What happened: a rolling hash for machines, a table for people.

Rules

1. The hash covers everything that is told, in order, with its virtual time: two runs of a seed are
   the same run if and only if their hashes are equal.
2. Recording changes nothing: no randomness is drawn, no callback is scheduled.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import xxhash

from raftq.ids import Micros

Buffer = bytes | bytearray | memoryview

ROWS_MAX = 100_000
"""A table is for reading: more than this and the beginning is what is kept."""

TIME_WIDTH = 10

_NUMBERS = struct.Struct("<qqq")


class Event(NamedTuple):
    """One row of the table; a node of "" is an event of the whole cluster, such as a partition."""

    now: Micros
    node: str
    text: str


class Trace:
    """The record of one run."""

    def __init__(self, *, keeps_events: bool = False) -> None:
        self.events: list[Event] = []
        self._keeps_events = keeps_events
        self._hash = xxhash.xxh3_64()

    def mix(self, now: Micros, subject: int, number: int, data: Buffer = b"") -> None:
        """Add something that happens often: to the hash only."""
        self._hash.update(_NUMBERS.pack(now, subject, number))
        if data:
            self._hash.update(data)

    def event(self, now: Micros, node: str, text: str) -> None:
        """Add something worth a row."""
        self._hash.update(f"{now} {node} {text}\n".encode())
        if self._keeps_events and len(self.events) < ROWS_MAX:
            self.events.append(Event(now, node, text))

    def note(self, now: Micros, node: str, text: str) -> None:
        """Add a row for readers alone: a run with a table has the hash of one without."""
        if self._keeps_events and len(self.events) < ROWS_MAX:
            self.events.append(Event(now, node, text))

    @property
    def keeps_events(self) -> bool:
        return self._keeps_events

    def digest(self) -> str:
        """The hash of everything so far."""
        return self._hash.hexdigest()


def table(events: Sequence[Event], nodes: Sequence[str], *, width: int = 20) -> Iterator[str]:
    """The events as lines: seconds, then a column of `width` per node; cluster events cross them.

    A text that is too long for its column is cut; those of nodes without a column name their node.
    """
    yield (
        "seconds".rjust(TIME_WIDTH) + "  " + "".join(node.ljust(width) for node in nodes)
    ).rstrip()
    columns = {node: number for number, node in enumerate(nodes)}
    for event in events:
        seconds = f"{event.now // 1_000_000}.{event.now % 1_000_000:06}".rjust(TIME_WIDTH)
        column = columns.get(event.node)
        if column is None:
            subject = f"{event.node}: " if event.node else ""
            yield f"{seconds}  ==== {subject}{event.text} ===="
        else:
            yield f"{seconds}  {' ' * (width * column)}{event.text[: width - 1]}"
