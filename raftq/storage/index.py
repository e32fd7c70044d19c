"""Where entries and batches lie: compact arrays in memory, filled as units are written or replayed.

Entries: 8 bytes each (position and length in their segment); segments and terms are runs. Batches:
20 bytes each, per queue and partition. A log is append-only and truncation takes from its end, so
entries in index order are in file order too: (segment, position) ascends with the index.

Nothing here reads a file, and nothing here decides what is valid.
"""

from array import array
from bisect import bisect_left, bisect_right
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from raftq.batch import PUBLISH, STAMP_BYTES
from raftq.ids import Index, Offset, Partition, QueueId, Term
from raftq.raft.entry import BODY_IS_DIGEST, ENTRY_HEADER_BYTES, HEADER, Buffer

assert array("I").itemsize == 4

_STAMP: Final = Struct("<BBHIIIQ8x")
assert _STAMP.size == STAMP_BYTES
_PAIR: Final = Struct("<II")
_FIRST: Final = itemgetter(0)
_SECOND: Final = itemgetter(1)


class Place(NamedTuple):
    """Where something lies."""

    segment: int
    position: int
    length: int


class EntryRun(NamedTuple):
    """The entries that lie in one segment, in index order."""

    first_index: Index
    terms: list[tuple[Index, Term]]
    """(first index, term) of each run of equal terms."""
    positions: "array[int]"
    lengths: "array[int]"


class EntryIndex:
    """Places and terms of the entries (base, last_index]; `base` is what a snapshot covers."""

    __slots__ = ("_base", "_lengths", "_positions", "_segments", "_terms", "last_index")

    def __init__(self) -> None:
        self.reset(Index(0), Term(0))

    def reset(self, base: Index, term: Term) -> None:
        """Begin anew behind `base`, whose term is `term`."""
        self._base = base
        self.last_index: Index = base
        self._positions = array("I")
        self._lengths = array("I")
        self._segments: list[tuple[Index, int]] = []
        self._terms: list[tuple[Index, Term]] = [(base, term)]

    @property
    def first_index(self) -> Index:
        return Index(self._base + 1)

    def append(self, term: Term, segment: int, position: int, length: int) -> None:
        """The entry last_index + 1."""
        index = Index(self.last_index + 1)
        self.last_index = index
        self._positions.append(position)
        self._lengths.append(length)
        if term != self._terms[-1][1]:
            self._terms.append((index, term))
        if not self._segments or self._segments[-1][1] != segment:
            self._segments.append((index, segment))

    def skip_to(self, last: Index, segment: int, position: int) -> None:
        """The entries up to `last` are lost: no length, no known term; `position` keeps the order."""
        while self.last_index < last:
            self.append(Term(0), segment, position, 0)

    def truncate(self, start: Index) -> None:
        """Entries from `start` on are void."""
        assert start > self._base, "what a snapshot covers is never truncated"
        keep = start - 1 - self._base
        if start > self.last_index:
            return
        del self._positions[keep:]
        del self._lengths[keep:]
        while self._segments and self._segments[-1][0] >= start:
            self._segments.pop()
        while self._terms[-1][0] >= start:
            self._terms.pop()
        self.last_index = Index(start - 1)

    def term(self, index: Index) -> Term | None:
        """Also known at the base; None if not held."""
        if not self._base <= index <= self.last_index:
            return None
        if index >= self._terms[-1][0]:
            return self._terms[-1][1] or self._zero(index)
        return self._terms[bisect_right(self._terms, index, key=_FIRST) - 1][1] or self._zero(index)

    def _zero(self, index: Index) -> Term | None:
        """Term 0 is that of a lost entry, except before the log."""
        return Term(0) if index == self._base else None

    def place(self, index: Index) -> Place | None:
        """None if not held or lost."""
        ordinal = index - self._base - 1
        if not 0 <= ordinal < len(self._positions) or not self._lengths[ordinal]:
            return None
        run = bisect_right(self._segments, index, key=_FIRST) - 1
        return Place(self._segments[run][1], self._positions[ordinal], self._lengths[ordinal])

    def index_at(self, segment: int, position: int) -> Index | None:
        """The entry in which `position` of `segment` lies."""
        run = bisect_left(self._segments, segment, key=_SECOND)
        if run == len(self._segments) or self._segments[run][1] != segment:
            return None
        first = self._segments[run][0]
        behind = run + 1
        stop = self._segments[behind][0] if behind < len(self._segments) else self.last_index + 1
        low, high = first - self._base - 1, stop - self._base - 1
        ordinal = bisect_right(self._positions, position, low, high) - 1
        return Index(self._base + 1 + ordinal) if ordinal >= low else None

    def run_of(self, segment: int) -> EntryRun:
        """What lies in the newest segment that holds entries, if it is this one; else nothing."""
        if not self._segments or self._segments[-1][1] != segment:
            return EntryRun(Index(self.last_index + 1), [], array("I"), array("I"))
        first = self._segments[-1][0]
        low = first - self._base - 1
        at = bisect_right(self._terms, first, key=_FIRST) - 1
        terms = [(max(start, first), term) for start, term in self._terms[at:]]
        return EntryRun(first, terms, self._positions[low:], self._lengths[low:])

    def extend(self, segment: int, run: EntryRun) -> None:
        """Add a whole run behind the last entry."""
        assert run.first_index == self.last_index + 1, "entries have no gap"
        if not run.positions:
            return
        self._segments.append((run.first_index, segment))
        self._terms += run.terms if run.terms[0][1] != self._terms[-1][1] else run.terms[1:]
        self._positions += run.positions
        self._lengths += run.lengths
        self.last_index = Index(self.last_index + len(run.positions))

    def runs(self) -> list[tuple[Index, int]]:
        """(first index, segment) of each segment that holds entries."""
        return list(self._segments)


class BatchPlace(NamedTuple):
    """One stored batch."""

    base_offset: Offset
    count: int  # type: ignore[assignment] # A tuple's count() is not missed.
    place: Place


class BatchRun(NamedTuple):
    """The batches of one partition that lie in one segment."""

    queue: QueueId
    partition: Partition
    bases: "array[int]"
    counts: "array[int]"
    positions: "array[int]"
    lengths: "array[int]"


class _Column:
    """The batches of one partition, in offset order."""

    __slots__ = ("bases", "counts", "lengths", "positions", "segments")

    def __init__(self) -> None:
        self.bases = array("Q")
        self.counts = array("I")
        self.positions = array("I")
        self.lengths = array("I")
        self.segments: list[tuple[int, int]] = []

    def place(self, ordinal: int) -> Place:
        run = bisect_right(self.segments, ordinal, key=_FIRST) - 1
        return Place(self.segments[run][1], self.positions[ordinal], self.lengths[ordinal])

    def is_behind(self, segment: int, position: int) -> bool:
        """Whether the last batch lies at or behind the position."""
        if not self.positions:
            return False
        last = self.segments[-1][1]
        return last > segment or (last == segment and self.positions[-1] >= position)

    def pop(self) -> None:
        for values in (self.bases, self.counts, self.positions, self.lengths):
            values.pop()
        if self.segments[-1][0] == len(self.positions):
            self.segments.pop()


class BatchIndex:
    """Places of stored publish batches by queue, partition and offset."""

    __slots__ = ("_columns",)

    def __init__(self) -> None:
        self._columns: dict[tuple[int, int], _Column] = {}

    def clear(self) -> None:
        self._columns.clear()

    def add_entry(self, head: Buffer, segment: int, position: int) -> None:
        """The batches of the entry at `position`; `head` holds its table and command headers.

        Invariant: what a leader stamps is well-formed. A stamp that is not is left out here; it is
        the machine's business.
        """
        fields = HEADER.unpack_from(head)
        count, headers_bytes = fields[8], fields[9]
        header_at = ENTRY_HEADER_BYTES + 8 * count
        body_at = position + header_at + headers_bytes
        for table_at in range(ENTRY_HEADER_BYTES, header_at, 8):
            header_bytes, body_bytes = _PAIR.unpack_from(head, table_at)
            if header_bytes == STAMP_BYTES and head[header_at] == PUBLISH and body_bytes:
                _, _, _, queue, partition, messages, base = _STAMP.unpack_from(head, header_at)
                column = self._columns.get((queue, partition))
                if column is None:
                    column = self._columns[queue, partition] = _Column()
                if not column.segments or column.segments[-1][1] != segment:
                    column.segments.append((len(column.bases), segment))
                column.bases.append(base)
                column.counts.append(messages)
                column.positions.append(body_at)
                column.lengths.append(body_bytes)
            header_at += header_bytes & ~BODY_IS_DIGEST
            body_at += body_bytes

    def runs_of(self, segment: int) -> list[BatchRun]:
        """What lies in a segment, if it is the newest that holds batches of a partition."""
        runs = []
        for (queue, partition), column in self._columns.items():
            if column.segments and column.segments[-1][1] == segment:
                low = column.segments[-1][0]
                runs.append(
                    BatchRun(
                        QueueId(queue),
                        Partition(partition),
                        column.bases[low:],
                        column.counts[low:],
                        column.positions[low:],
                        column.lengths[low:],
                    )
                )
        return runs

    def extend(self, segment: int, run: BatchRun) -> None:
        """Add a whole run behind the last batch of its partition."""
        column = self._columns.get((run.queue, run.partition))
        if column is None:
            column = self._columns[run.queue, run.partition] = _Column()
        column.segments.append((len(column.bases), segment))
        column.bases += run.bases
        column.counts += run.counts
        column.positions += run.positions
        column.lengths += run.lengths

    def truncate(self, segment: int, position: int) -> None:
        """Batches at or behind the position are void."""
        for column in self._columns.values():
            while column.is_behind(segment, position):
                column.pop()

    def find(
        self, queue: QueueId, partition: Partition, start: Offset, stop: Offset, max_bytes: int
    ) -> list[BatchPlace]:
        """Batches that overlap [start, stop), in order, cut at max_bytes but at least one."""
        column = self._columns.get((queue, partition))
        if column is None:
            return []
        bases, counts = column.bases, column.counts
        ordinal = max(0, bisect_right(bases, start) - 1)
        if ordinal < len(bases) and bases[ordinal] + counts[ordinal] <= start:
            ordinal += 1
        found: list[BatchPlace] = []
        size = 0
        while ordinal < len(bases) and bases[ordinal] < stop:
            place = column.place(ordinal)
            size += place.length
            if found and size > max_bytes:
                break
            found.append(BatchPlace(Offset(bases[ordinal]), counts[ordinal], place))
            ordinal += 1
        return found

    def bounds(self, queue: QueueId, partition: Partition) -> tuple[Offset, Offset] | None:
        """First offset held, and the one behind the last; None if no batch is held."""
        column = self._columns.get((queue, partition))
        if column is None or not column.bases:
            return None
        return Offset(column.bases[0]), Offset(column.bases[-1] + column.counts[-1])

    def partitions(self) -> list[tuple[QueueId, Partition]]:
        return [(QueueId(q), Partition(p)) for q, p in self._columns]
