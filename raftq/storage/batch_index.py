"""Where stored batches lie, by queue, partition and offset: 20 bytes each, in compact arrays.

The batches of patches lie in an overlay that goes before those of the segments: a batch that was
lost is found where it was repaired, without anything being moved.

Nothing here reads a file, and nothing here decides what is valid.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

from raftq.batch import PUBLISH, STAMP_BYTES
from raftq.ids import Index, Offset, Partition, QueueId
from raftq.raft.entry import BODY_IS_DIGEST, ENTRY_HEADER_BYTES, HEADER, Buffer
from raftq.storage.index import EntryRun, Place

_STAMP: Final = Struct("<BBHIIIQ8x")
assert _STAMP.size == STAMP_BYTES
_PAIR: Final = Struct("<II")
_FIRST: Final = itemgetter(0)
_SECOND: Final = itemgetter(1)


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

    def behind(self, entries: EntryRun) -> "BatchRun":
        """Those that lie in these entries of the segment, which are its last ones."""
        start = len(self.positions)
        if entries.positions:
            start = bisect_left(self.positions, entries.positions[0])
        columns = (self.bases, self.counts, self.positions, self.lengths)
        return BatchRun(self.queue, self.partition, *[values[start:] for values in columns])


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

    def drop(self, start: int, stop: int) -> None:
        """The batches [start, stop) are gone."""
        if start == stop:
            return
        for values in (self.bases, self.counts, self.positions, self.lengths):
            del values[start:stop]
        gone = stop - start
        runs = [
            (first if first <= start else max(start, first - gone), segment)
            for first, segment in self.segments
        ]
        # Of runs that begin at one batch only the last has any.
        ends = [first for first, _ in runs[1:]] + [len(self.positions)]
        self.segments = [run for run, end in zip(runs, ends, strict=True) if run[0] < end]

    def run(self, segment: int) -> tuple[int, int]:
        """First ordinal in a segment, and the one behind the last."""
        at = bisect_left(self.segments, segment, key=_SECOND)
        start = self.segments[at][0] if at < len(self.segments) else len(self.positions)
        if at == len(self.segments) or self.segments[at][1] != segment:
            return start, start
        behind = at + 1
        is_last = behind == len(self.segments)
        return start, len(self.positions) if is_last else self.segments[behind][0]

    def pop(self) -> None:
        for values in (self.bases, self.counts, self.positions, self.lengths):
            values.pop()
        if self.segments[-1][0] == len(self.positions):
            self.segments.pop()


class BatchIndex:
    """Places of stored publish batches by queue, partition and offset."""

    __slots__ = ("_columns", "_patched")

    def __init__(self) -> None:
        self._columns: dict[tuple[int, int], _Column] = {}
        self._patched: dict[tuple[int, int], list[BatchPlace]] = {}
        """The batches in patches, by offset; they go before those of the segments."""

    def clear(self) -> None:
        self._columns.clear()
        self._patched.clear()

    def add_entry(self, head: Buffer, segment: int, position: int) -> None:
        """The batches of the entry at `position`; `head` holds its table and command headers."""
        for key, base, messages, body_at, body_bytes in _batches_of(head, position):
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = _Column()
            if not column.segments or column.segments[-1][1] != segment:
                column.segments.append((len(column.bases), segment))
            column.bases.append(base)
            column.counts.append(messages)
            column.positions.append(body_at)
            column.lengths.append(body_bytes)

    def patch_entry(self, head: Buffer, file: int, position: int) -> None:
        """The same for an entry of a patch."""
        for key, base, messages, body_at, body_bytes in _batches_of(head, position):
            found = BatchPlace(Offset(base), messages, Place(file, body_at, body_bytes))
            places = self._patched.setdefault(key, [])
            at = bisect_left(places, base, key=_FIRST)
            if at < len(places) and places[at].base_offset == base:
                places[at] = found
            else:
                places.insert(at, found)

    def drop(self, segment: int) -> None:
        """Nothing is read from a segment any more."""
        for column in self._columns.values():
            column.drop(*column.run(segment))

    def release(self, segment: int, position: int) -> None:
        """The batches before a place are gone."""
        for column in self._columns.values():
            start, stop = column.run(segment)
            column.drop(0, bisect_left(column.positions, position, start, stop))

    def in_segment(self, segment: int) -> Iterator[tuple[QueueId, Partition, BatchPlace]]:
        """The batches that lie in a segment, not in patches."""
        for (queue, partition), column in self._columns.items():
            for ordinal in range(*column.run(segment)):
                yield (
                    QueueId(queue),
                    Partition(partition),
                    BatchPlace(
                        Offset(column.bases[ordinal]),
                        column.counts[ordinal],
                        Place(segment, column.positions[ordinal], column.lengths[ordinal]),
                    ),
                )

    def in_patches(self) -> Iterator[tuple[QueueId, Partition, BatchPlace]]:
        """The batches that lie in patches."""
        for (queue, partition), places in self._patched.items():
            for place in places:
                yield QueueId(queue), Partition(partition), place

    def begin_of_newest(self, queue: QueueId, partition: Partition, newest_bytes: int) -> Offset:
        """Where the newest batches begin, as many as these bytes hold; 0: all are as many."""
        column = self._columns.get((queue, partition), _NO_COLUMN)
        patched = self._patched.get((queue, partition), ())
        newest_first = merge(
            zip(
                reversed(column.bases),
                reversed(column.counts),
                reversed(column.lengths),
                strict=True,
            ),
            ((each.base_offset, each.count, each.place.length) for each in reversed(patched)),
            reverse=True,
        )
        for base, count, length in newest_first:
            newest_bytes -= length
            if newest_bytes < 0:
                return Offset(base + count)
        return Offset(0)

    def first_behind(
        self,
        queue: QueueId,
        partition: Partition,
        index: Index,
        index_at: Callable[[Place], Index],
    ) -> Offset | None:
        """The first offset of the batches in entries behind `index`; `index_at` tells of which."""
        column = self._columns.get((queue, partition), _NO_COLUMN)
        patched = self._patched.get((queue, partition), ())
        ordinals = range(len(column.bases))
        at = bisect_right(ordinals, index, key=lambda ordinal: index_at(column.place(ordinal)))
        found = [column.bases[at]] if at < len(ordinals) else []
        at = bisect_right(patched, index, key=lambda each: index_at(each.place))
        found += [patched[at].base_offset] if at < len(patched) else []
        return Offset(min(found)) if found else None

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
        if not run.bases:
            return
        column = self._columns.get((run.queue, run.partition))
        if column is None:
            column = self._columns[run.queue, run.partition] = _Column()
        column.segments.append((len(column.bases), segment))
        column.bases += run.bases
        column.counts += run.counts
        column.positions += run.positions
        column.lengths += run.lengths

    def forget_patched(self, is_void: Callable[[Place], bool]) -> None:
        """Some places in patches are void."""
        for key, places in self._patched.items():
            self._patched[key] = [found for found in places if not is_void(found.place)]

    def truncate(self, segment: int, position: int) -> None:
        """Batches at or behind the position are void."""
        for column in self._columns.values():
            while column.is_behind(segment, position):
                column.pop()

    def find(
        self, queue: QueueId, partition: Partition, start: Offset, stop: Offset, max_bytes: int
    ) -> list[BatchPlace]:
        """Batches that overlap [start, stop), in order, cut at max_bytes but at least one."""
        column = self._columns.get((queue, partition), _NO_COLUMN)
        patched = self._patched.get((queue, partition), ())
        found: list[BatchPlace] = []
        size = 0
        batch = _first_from(column, patched, start)
        while batch is not None and batch.base_offset < stop:
            size += batch.place.length
            if found and size > max_bytes:
                break
            found.append(batch)
            batch = _first_from(column, patched, Offset(batch.base_offset + batch.count))
        return found

    def around(
        self, queue: QueueId, partition: Partition, offset: Offset
    ) -> tuple[Place | None, Place | None]:
        """Where the last batch before an offset lies, and the first one from there on."""
        column = self._columns.get((queue, partition), _NO_COLUMN)
        patched = self._patched.get((queue, partition), ())
        behind = _first_from(column, patched, offset)
        at = bisect_left(column.bases, offset) - 1
        before = [
            *([(column.bases[at], column.place(at))] if at >= 0 else []),
            *[(each.base_offset, each.place) for each in patched if each.base_offset < offset],
        ]
        return (
            max(before, key=_FIRST)[1] if before else None,
            None if behind is None else behind.place,
        )

    def bounds(self, queue: QueueId, partition: Partition) -> tuple[Offset, Offset] | None:
        """First offset held, and the one behind the last; None if no batch is held."""
        column = self._columns.get((queue, partition), _NO_COLUMN)
        patched = self._patched.get((queue, partition), ())
        firsts, ends = list(column.bases[:1]), []
        if column.bases:
            ends.append(column.bases[-1] + column.counts[-1])
        if patched:
            firsts.append(patched[0].base_offset)
            ends.append(patched[-1].base_offset + patched[-1].count)
        return (Offset(min(firsts)), Offset(max(ends))) if firsts else None

    def partitions(self) -> list[tuple[QueueId, Partition]]:
        known = {**self._columns, **self._patched}
        return [(QueueId(q), Partition(p)) for q, p in known]


_NO_COLUMN: Final = _Column()


def _first_from(
    column: _Column, patched: Sequence[BatchPlace], offset: Offset
) -> BatchPlace | None:
    """The batch that holds an offset, or the first one behind it."""
    bases, counts = column.bases, column.counts
    ordinal = max(0, bisect_right(bases, offset) - 1)
    if ordinal < len(bases) and bases[ordinal] + counts[ordinal] <= offset:
        ordinal += 1
    found = None
    if ordinal < len(bases):
        found = BatchPlace(Offset(bases[ordinal]), counts[ordinal], column.place(ordinal))
    if patched:
        at = max(0, bisect_right(patched, offset, key=_FIRST) - 1)
        if patched[at].base_offset + patched[at].count <= offset:
            at += 1
        if at < len(patched) and (
            found is None or max(patched[at].base_offset, offset) <= max(found.base_offset, offset)
        ):
            return patched[at]
    return found


def _batches_of(
    head: Buffer, position: int
) -> Iterator[tuple[tuple[int, int], int, int, int, int]]:
    """((queue, partition), base offset, messages, position, length) of an entry's batches.

    Invariant: what a leader stamps is well-formed. A stamp that is not is left out here; it is the
    machine's business.
    """
    fields = HEADER.unpack_from(head)
    count, headers_bytes = fields[8], fields[9]
    header_at = ENTRY_HEADER_BYTES + 8 * count
    body_at = position + header_at + headers_bytes
    for table_at in range(ENTRY_HEADER_BYTES, header_at, 8):
        header_bytes, body_bytes = _PAIR.unpack_from(head, table_at)
        if header_bytes == STAMP_BYTES and head[header_at] == PUBLISH and body_bytes:
            _, _, _, queue, partition, messages, base = _STAMP.unpack_from(head, header_at)
            yield (queue, partition), base, messages, body_at, body_bytes
        header_at += header_bytes & ~BODY_IS_DIGEST
        body_at += body_bytes


def stamped(header: bytes) -> tuple[QueueId, Partition, Offset, Offset] | None:
    """What batch a command's header is of: queue, partition, first offset and the one behind it."""
    if len(header) != STAMP_BYTES or header[0] != PUBLISH:
        return None
    _, _, _, queue, partition, messages, base = _STAMP.unpack(header)
    return QueueId(queue), Partition(partition), Offset(base), Offset(base + messages)


def up_to_gap(places: list[BatchPlace]) -> list[BatchPlace]:
    """The first batches, as far as none is missing between them: it may be lost."""
    for position in range(1, len(places)):
        before = places[position - 1]
        if places[position].base_offset > before.base_offset + before.count:
            return places[:position]
    return places
