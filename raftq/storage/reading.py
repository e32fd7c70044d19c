"""Reading what a log holds: entries by index, batches by partition and offset, from the page cache.

Everything that leaves here is proved: entries by their chain, batches by their own checksum. What
fails is `Corrupted`, never served. Neighbours in a file are fetched by one read.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from raftq import batch
from raftq.env import Disk, File
from raftq.errors import Corrupted
from raftq.ids import Index, Micros, Offset, Partition, QueueId
from raftq.limits import KIB, MIB
from raftq.raft.entry import (
    COMMANDS,
    ENTRY_HEADER_BYTES,
    HEADER,
    Buffer,
    Entry,
    commands,
    is_whole,
    parse,
    verify,
)
from raftq.storage.append import Appender
from raftq.storage.batch_index import BatchPlace
from raftq.storage.index import PATCH, Place
from raftq.storage.replay import Contents
from raftq.storage.segment import segment_name

OPEN_FILES: Final = 8
"""Sealed segments of one group held open: descriptors are few when groups are many."""

GAP_BYTES: Final = 4 * KIB
"""Neighbours this far apart are still fetched by one read: a unit header, an entry's table."""

SPAN_BYTES: Final = 4 * MIB
"""Length of one read, beside the first item."""


class StoredBatch(NamedTuple):
    """One publish as it was stored; `data` is the untouched batch."""

    base_offset: Offset
    count: int  # type: ignore[assignment] # A tuple's count() and index() are not missed.
    index: Index  # type: ignore[assignment]
    log_time: Micros
    data: Buffer


class _Span(NamedTuple):
    """Bytes of one file."""

    segment: int
    start: int
    data: memoryview

    def slice(self, place: Place) -> memoryview | None:
        offset = place.position - self.start
        inside = place.segment == self.segment and offset >= 0
        return self.data[offset : offset + place.length] if inside else None


def _spans(places: Sequence[Place]) -> Iterator[tuple[int, int, int]]:
    """(segment, start, stop) of the reads that fetch all places."""
    segment, start, stop = places[0].segment, places[0].position, places[0].position
    for place in places:
        end = place.position + place.length
        if (
            place.segment != segment
            or place.position - stop > GAP_BYTES
            or (end - start > SPAN_BYTES and stop > start)
        ):
            yield segment, start, stop
            segment, start = place.segment, place.position
        stop = end
    yield segment, start, stop


class LogFiles:
    """The files of a log, opened when they are read."""

    def __init__(self, disk: Disk, directory: str, contents: Contents) -> None:
        self._disk = disk
        self._directory = directory
        self._contents = contents
        self._open: OrderedDict[int, File] = OrderedDict()
        self._current = 0
        self.patch_names: dict[int, str] = {}
        """Names of the patch files that are in use, by their number in places."""

    def current(self, appender: Appender) -> None:
        """The file that is being written; it stays open until another is."""
        assert appender.file is not None
        self._current = appender.sequence
        self._open[appender.sequence] = appender.file
        self._close_some()

    def file(self, segment: int) -> File:
        file = self._open.get(segment)
        if file is None:
            name = segment_name(segment) if segment < PATCH else self.patch_names[segment]
            file = self._disk.open(f"{self._directory}/{name}")
            self._open[segment] = file
            self._close_some()
        else:
            self._open.move_to_end(segment)
        return file

    def _close_some(self) -> None:
        while len(self._open) > OPEN_FILES:
            self.let_go(next(segment for segment in self._open if segment != self._current))

    def let_go(self, segment: int) -> None:
        """The file is not held open any more."""
        file = self._open.pop(segment, None)
        if file is not None:
            file.close()

    def close(self) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()

    def _read(self, segment: int, start: int, stop: int) -> memoryview:
        try:
            data = self.file(segment).read(start, stop - start)
        except OSError as error:
            raise Corrupted(f"segment {segment} cannot be read at {start}: {error}") from error
        if len(data) != stop - start:
            raise Corrupted(f"segment {segment} ends at {start + len(data)}, not at {stop}")
        return memoryview(data)

    # --- Entries ------------------------------------------------------------------------------

    def _header(self, index: Index) -> tuple[int, ...] | None:
        place = self._contents.entries.place(index)
        if place is None:
            return None
        start = place.position
        fields = HEADER.unpack(self._read(place.segment, start, start + ENTRY_HEADER_BYTES))
        if fields[5] != index:
            raise Corrupted(f"segment {place.segment} holds no entry {index} at {start}")
        return fields

    def _stated_chain(self, index: Index) -> bytes | None:
        """Chain value at an index as its entry states it, not proved."""
        base = self._contents.base
        if index == base.index:
            return base.chain
        fields = self._header(index)
        return None if fields is None else bytes(fields[10])

    def chain(self, index: Index) -> bytes | None:
        """Chain value at an index, from an entry that verifies; None if not held or lost.

        Raises: Corrupted. What peers are told or compared with must be true.
        """
        if not self.is_sound(index):
            raise Corrupted(f"entry {index} breaks the chain")
        return self._stated_chain(index)

    def log_time(self, index: Index) -> Micros | None:
        base = self._contents.base
        if index == base.index:
            return base.log_time
        fields = self._header(index)
        return None if fields is None else Micros(fields[7])

    def entries(self, start: Index, stop: Index, max_bytes: int) -> list[Entry]:
        """Entries [start, stop), which have places unless they are lost.

        Raises: Corrupted.
        """
        places: list[Place] = []
        size = 0
        for index in range(start, stop):
            place = self._contents.entries.place(Index(index))
            if place is None:
                if places:
                    break
                raise Corrupted(f"entry {index} was lost to damage")
            size += place.length
            if places and size > max_bytes:
                break
            places.append(place)
        if not places:
            return []
        previous = self._stated_chain(Index(start - 1))
        found: list[Entry] = []
        at = 0
        for segment, first, behind in _spans(places):
            view = self._read(segment, first, behind)
            while (
                at < len(places)
                and places[at].segment == segment
                and (first <= places[at].position < behind)
            ):
                entry = parse(view, places[at].position - first)
                if previous is not None and not verify(entry, previous):
                    raise Corrupted(f"entry {start + at} in segment {segment} breaks the chain")
                if entry.index != start + at:
                    raise Corrupted(f"segment {segment} holds no entry {start + at}")
                found.append(entry)
                previous = entry.chain
                at += 1
        return found

    def entry(self, index: Index) -> Entry | None:
        """One entry as it lies, not proved; None if not held or lost.

        Raises: Corrupted.
        """
        place = self._contents.entries.place(index)
        if place is None:
            return None
        start = place.position
        entry = parse(self._read(place.segment, start, start + place.length))
        if entry.index != index:
            raise Corrupted(f"segment {place.segment} holds no entry {index} at {start}")
        return entry

    def is_sound(self, index: Index) -> bool:
        """Whether an entry follows from what the one before it states, as far as that is known."""
        try:
            entry = self.entry(index)
            previous = self._stated_chain(Index(index - 1))
        except Corrupted:
            return False
        return entry is None or previous is None or verify(entry, previous)

    def unsound_around(self, start: Index, stop: Index) -> tuple[Index, Index] | None:
        """The first run of entries at or right before [start, stop) that are not sound.

        A chain value that rots accuses the entry behind it too: both count.
        """
        entries = self._contents.entries
        first = next(
            (
                Index(index)
                for index in range(max(entries.first_index, start - 1), stop)
                if not self.is_sound(Index(index))
            ),
            None,
        )
        if first is None:
            return None
        last = first
        while first > entries.first_index and not self.is_sound(Index(first - 1)):
            first = Index(first - 1)
        while last < entries.last_index and not self.is_sound(Index(last + 1)):
            last = Index(last + 1)
        return first, last

    # --- Batches ------------------------------------------------------------------------------

    def batches(self, places: Sequence[BatchPlace]) -> list[StoredBatch]:
        """The batches at these places, in order.

        Raises: Corrupted.
        """
        if not places:
            return []
        spans = iter(
            _Span(segment, first, self._read(segment, first, behind))
            for segment, first, behind in _spans([place.place for place in places])
        )
        span = next(spans)
        found = []
        known: tuple[Index, Micros] = (Index(0), Micros(0))
        for base_offset, count, place in places:
            data = span.slice(place)
            if data is None or len(data) < place.length:
                span = next(spans)
                data = span.slice(place)
            assert data is not None
            assert len(data) == place.length
            _check_batch(data, base_offset, count)
            known = self._entry_of(place, span, known)
            found.append(StoredBatch(base_offset, count, *known, data))
        return found

    def _entry_of(
        self, place: Place, span: _Span, known: tuple[Index, Micros]
    ) -> tuple[Index, Micros]:
        """Index and log time of the entry around a batch; neighbours often share it."""
        index = self._contents.entries.index_at(place.segment, place.position)
        assert index is not None, "a batch lies in an entry"
        if index == known[0]:
            return known
        entry = self._contents.entries.place(index)
        if entry is None:
            raise Corrupted(f"entry {index} was lost to damage")
        header = span.slice(entry._replace(length=ENTRY_HEADER_BYTES))
        if header is not None:
            return index, Micros(HEADER.unpack(header)[7])
        log_time = self.log_time(index)
        assert log_time is not None
        return index, log_time


def _check_batch(data: Buffer, base_offset: Offset, count: int) -> None:
    header = batch.verify_checksum(data)
    if header.count != count:
        raise Corrupted(f"the batch at offset {base_offset} has {header.count} messages")


def batches_in(
    entries: Sequence[Entry], queue: QueueId, partition: Partition, start: Offset, stop: Offset
) -> Iterator[StoredBatch]:
    """The batches of entries in memory that overlap [start, stop).

    What has just been written is whole; of an entry that is not, nothing is given.
    """
    for entry in entries:
        if entry.kind != COMMANDS or not is_whole(entry):
            continue
        for header, body in commands(entry):
            if not body or len(header) != batch.STAMP_BYTES or header[0] != batch.PUBLISH:
                continue
            stamp = batch.read_stamp(header)
            if (stamp.queue, stamp.partition) == (queue, partition) and (
                stamp.base_offset < stop and stamp.base_offset + stamp.count > start
            ):
                yield StoredBatch(stamp.base_offset, stamp.count, entry.index, entry.log_time, body)
