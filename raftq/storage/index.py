"""Where entries and batches lie: compact arrays in memory, filled as units are written or replayed.

Entries: 8 bytes each (position and length in their segment); segments and terms are runs. Batches:
20 bytes each, per queue and partition. A log is append-only and truncation takes from its end, so
entries in index order are in file order too: (segment, position) ascends with the index.

What is lost to damage keeps its place in that order, but has no length; it is a *hole*. A patch
(`patch.py`) fills holes without moving anything: its entries and batches lie in an overlay that is
asked where the segments have nothing, and whose batches go before those of the segments.

Nothing here reads a file, and nothing here decides what is valid.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
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

PATCH: Final = 1 << 62
"""Places in patch files have numbers from here on in the place of a segment's sequence."""


class Hole(NamedTuple):
    """Entries [first, last] that are lost here, and not repaired."""

    first: Index
    last: Index


class PatchRun(NamedTuple):
    """The entries of one patch file, or a part of them, in index order."""

    first_index: Index
    file: int
    terms: "array[int]"
    positions: "array[int]"
    lengths: "array[int]"

    @property
    def last_index(self) -> Index:
        return Index(self.first_index + len(self.positions) - 1)

    def cut(self, first: Index, last: Index) -> "PatchRun":
        """The part in [first, last]."""
        part = slice(max(first - self.first_index, 0), max(last + 1 - self.first_index, 0))
        return PatchRun(
            max(first, self.first_index),
            self.file,
            self.terms[part],
            self.positions[part],
            self.lengths[part],
        )


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

    __slots__ = (
        "_base",
        "_lengths",
        "_patches",
        "_positions",
        "_segments",
        "_terms",
        "holes",
        "last_index",
    )

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
        self._patches: list[PatchRun] = []
        self.holes: list[Hole] = []
        """What is lost and not patched, ascending, not adjacent."""

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
        first = Index(self.last_index + 1)
        while self.last_index < last:
            self.append(Term(0), segment, position, 0)
        if first <= last:
            self._add_hole(Hole(first, last))

    def lose(self, first: Index, last: Index) -> None:
        """Entries [first, last], which are held, do not verify any more."""
        assert self._base < first <= last <= self.last_index
        for ordinal in range(first - self._base - 1, last - self._base):
            self._lengths[ordinal] = 0
        self._carve_patches(first, last)
        self._add_hole(Hole(first, last))

    def patch(self, run: PatchRun) -> None:
        """Entries that were proved to be the lost ones."""
        first, last = run.first_index, run.last_index
        assert self._base < first <= last <= self.last_index
        self._carve_patches(first, last)
        self._patches.append(run)
        self._patches.sort(key=_FIRST)
        self.holes = [
            part
            for hole in self.holes
            for part in (
                Hole(hole.first, min(hole.last, Index(first - 1))),
                Hole(max(hole.first, Index(last + 1)), hole.last),
            )
            if part.first <= part.last
        ]

    def _add_hole(self, added: Hole) -> None:
        kept = []
        for hole in self.holes:
            if hole.last + 1 < added.first or added.last + 1 < hole.first:
                kept.append(hole)
            else:
                added = Hole(min(hole.first, added.first), max(hole.last, added.last))
        self.holes = sorted([*kept, added])

    def _carve_patches(self, first: Index, last: Index) -> None:
        """Nothing in [first, last] is taken from the patches there are."""
        self._patches = [
            part
            for run in self._patches
            for part in (
                run.cut(run.first_index, Index(first - 1)),
                run.cut(Index(last + 1), run.last_index),
            )
            if part.positions
        ]

    def _patched(self, index: Index) -> tuple[PatchRun, int] | None:
        """The patch that holds an entry, and its ordinal there."""
        at = bisect_right(self._patches, index, key=_FIRST) - 1
        if at < 0 or index > self._patches[at].last_index:
            return None
        return self._patches[at], index - self._patches[at].first_index

    def patched(self) -> list[Hole]:
        """What is read from patches, ascending."""
        return [Hole(run.first_index, run.last_index) for run in self._patches]

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
        self._carve_patches(start, self.last_index)
        self.holes = [
            Hole(hole.first, min(hole.last, Index(start - 1)))
            for hole in self.holes
            if hole.first < start
        ]
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
        if index == self._base:
            return Term(0)
        patched = self._patched(index)
        return None if patched is None else Term(patched[0].terms[patched[1]])

    def place(self, index: Index) -> Place | None:
        """None if not held or lost."""
        ordinal = index - self._base - 1
        if not 0 <= ordinal < len(self._positions):
            return None
        patched = self._patched(index) if self._patches else None
        if patched is not None:
            run, at = patched
            return Place(run.file, run.positions[at], run.lengths[at])
        if not self._lengths[ordinal]:
            return None
        segment, position = self.order(index)
        return Place(segment, position, self._lengths[ordinal])

    def order(self, index: Index) -> tuple[int, int]:
        """(segment, position) of an entry that is or was held; those of holes keep the order."""
        run = bisect_right(self._segments, index, key=_FIRST) - 1
        return self._segments[run][1], self._positions[index - self._base - 1]

    def index_at(self, segment: int, position: int) -> Index | None:
        """The entry in which `position` of `segment` lies."""
        if segment >= PATCH:
            return self._index_in_patch(segment, position)
        run = bisect_left(self._segments, segment, key=_SECOND)
        if run == len(self._segments) or self._segments[run][1] != segment:
            return None
        first = self._segments[run][0]
        behind = run + 1
        stop = self._segments[behind][0] if behind < len(self._segments) else self.last_index + 1
        low, high = first - self._base - 1, stop - self._base - 1
        ordinal = bisect_right(self._positions, position, low, high) - 1
        return Index(self._base + 1 + ordinal) if ordinal >= low else None

    def _index_in_patch(self, file: int, position: int) -> Index | None:
        for run in self._patches:
            if run.file == file and run.positions[0] <= position < (
                run.positions[-1] + run.lengths[-1]
            ):
                return Index(run.first_index + bisect_right(run.positions, position) - 1)
        return None

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
        for key, base, messages, body_at, body_bytes in _stamped(head, position):
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
        for key, base, messages, body_at, body_bytes in _stamped(head, position):
            found = BatchPlace(Offset(base), messages, Place(file, body_at, body_bytes))
            places = self._patched.setdefault(key, [])
            at = bisect_left(places, base, key=_FIRST)
            if at < len(places) and places[at].base_offset == base:
                places[at] = found
            else:
                places.insert(at, found)

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


def _stamped(
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
