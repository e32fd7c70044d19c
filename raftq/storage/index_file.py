"""The index of a sealed segment: what its units add up to, so that a start need not read them all.

     0      4   5       8             16
     +------+---+-------+-------------+--------------------------------------------+
     |"rqix"|ver| zeros | sequence    | the segment's last unit header, 152 bytes  |
     |      |u8 | 3 B   | u64         |                                            |
     +------+---+-------+-------------+--------------------------------------------+
 168 | truncate_from u64 | first_index u64 | entries u32 | terms u32               |
 192 | partitions u32 | reset_bytes u32 | reset record, or nothing                 |
     +-----------------------------------------------------------------------------+
     | terms x { u64 first index | u64 term }                                      |
     | positions u32 x entries | lengths u32 x entries                             |
     | partitions x { u32 queue | u32 partition | u32 batches | u32 0              |
     |                | u64 base offset x batches | u32 count x batches            |
     |                | u32 position x batches | u32 length x batches }            |
     | checksum u64 of all before it, seeded like the segment's                    |
     +-----------------------------------------------------------------------------+

`truncate_from` (0: none) and the reset record say what the segment voids of older ones; the entries
and batches listed are those of its own that it does not void itself.

Rule 1. It is believed only when it verifies, joins the log before it, and its last unit header is
        the one that lies in the segment, exactly where the next segment continues it.
Rule 2. It is never synced, never needed, and never the reason to delete anything: without it the
        segment is read. What rots under a valid index is found when it is read.
"""

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class, only named like a module.
from typing import Final

from xxhash import xxh3_64_intdigest

from raftq.env import Disk
from raftq.errors import Corrupted
from raftq.ids import Index, Partition, QueueId, Term
from raftq.limits import FORMAT_VERSION
from raftq.raft.ready import SnapshotMeta
from raftq.storage.batch_index import BatchIndex, BatchRun
from raftq.storage.index import EntryIndex, EntryRun
from raftq.storage.segment import Readable, index_name
from raftq.storage.unit import (
    CHECKSUM,
    HEADER,
    UNIT_HEADER_BYTES,
    UnitHeader,
    decode_reset,
    encode_reset,
    read_unit_header,
    seed_of,
)

assert sys.byteorder == "little", "arrays are written as they lie"

_MAGIC: Final = b"rqix"
_HEAD: Final = Struct("<4sB3xQ152sQQIIII")
_TERM: Final = Struct("<QQ")
_PARTITION: Final = Struct("<IIII")


@dataclass(slots=True)
class Voided:
    """What the units of one segment void of older segments."""

    reset: SnapshotMeta | None = None
    truncate_from: Index = Index(0)  # noqa: RUF009 - a plain number.

    def note_reset(self, meta: SnapshotMeta) -> None:
        self.reset = meta
        self.truncate_from = Index(0)

    def note_truncate(self, start: Index) -> None:
        if self.reset is None and (not self.truncate_from or start < self.truncate_from):
            self.truncate_from = start


@dataclass(frozen=True, slots=True)
class SealedIndex:
    """The contents of an index file."""

    last: UnitHeader
    voided: Voided
    entries: EntryRun
    batches: tuple[BatchRun, ...]


def encode(
    *,
    sequence: int,
    incarnation: int,
    last_header: bytes,
    voided: Voided,
    entries: EntryIndex,
    batches: BatchIndex,
) -> bytes:
    """The bytes for a segment all of whose units are in `entries` and `batches`."""
    run = entries.run_of(sequence)
    columns = batches.runs_of(sequence)
    reset = b"" if voided.reset is None else encode_reset(voided.reset)
    parts = [
        _HEAD.pack(
            _MAGIC,
            FORMAT_VERSION,
            sequence,
            last_header,
            voided.truncate_from,
            run.first_index,
            len(run.positions),
            len(run.terms),
            len(columns),
            len(reset),
        ),
        reset,
        *[_TERM.pack(*term) for term in run.terms],
        run.positions.tobytes(),
        run.lengths.tobytes(),
    ]
    for column in columns:
        parts.append(_PARTITION.pack(column.queue, column.partition, len(column.bases), 0))
        parts += [
            values.tobytes()
            for values in (column.bases, column.counts, column.positions, column.lengths)
        ]
    data = b"".join(parts)
    return data + CHECKSUM.pack(xxh3_64_intdigest(data, seed_of(incarnation, sequence)))


class _Cursor:
    """Takes the parts of a file that has verified, in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def struct(self, layout: Struct) -> tuple[int, ...]:
        fields = layout.unpack_from(self._data, self._position)
        self._position += layout.size
        return fields

    def bytes(self, length: int) -> memoryview:
        taken = memoryview(self._data)[self._position : self._position + length]
        if len(taken) != length:
            raise Corrupted("an index file is too short")
        self._position += length
        return taken

    def array(self, code: str, count: int) -> "array[int]":
        values = array(code)
        values.frombytes(self.bytes(count * values.itemsize))
        return values


def decode(data: bytes, *, sequence: int, incarnation: int) -> SealedIndex:
    """The inverse of `encode`.

    Raises: Corrupted.
    """
    body, checksum = data[: -CHECKSUM.size], data[-CHECKSUM.size :]
    expected = xxh3_64_intdigest(body, seed_of(incarnation, sequence))
    if len(body) < _HEAD.size or checksum != CHECKSUM.pack(expected):
        raise Corrupted(f"the index of segment {sequence} fails its checksum")
    cursor = _Cursor(body)
    try:
        return _decode(cursor, cursor.struct(_HEAD))
    except StructError as error:
        raise Corrupted(f"the index of segment {sequence} is too short") from error


def _decode(cursor: _Cursor, head: Sequence[object]) -> SealedIndex:
    magic, version, _, last, *numbers = head
    truncate_from, first_index, entries, terms, partitions, reset_bytes = numbers
    if magic != _MAGIC or version != FORMAT_VERSION or not isinstance(last, bytes):
        raise Corrupted(f"an index file begins with {magic!r} and version {version}")
    assert isinstance(truncate_from, int)
    assert isinstance(first_index, int)
    assert isinstance(entries, int)
    assert isinstance(terms, int)
    assert isinstance(partitions, int)
    assert isinstance(reset_bytes, int)
    reset = decode_reset(cursor.bytes(reset_bytes)) if reset_bytes else None
    runs = [cursor.struct(_TERM) for _ in range(terms)]
    run = EntryRun(
        first_index=Index(first_index),
        terms=[(Index(index), Term(term)) for index, term in runs],
        positions=cursor.array("I", entries),
        lengths=cursor.array("I", entries),
    )
    columns = []
    for _ in range(partitions):
        queue, partition, count, _ = cursor.struct(_PARTITION)
        columns.append(
            BatchRun(
                QueueId(queue),
                Partition(partition),
                cursor.array("Q", count),
                cursor.array("I", count),
                cursor.array("I", count),
                cursor.array("I", count),
            )
        )
    return SealedIndex(
        last=UnitHeader._make(HEADER.unpack(last)),
        voided=Voided(reset, Index(truncate_from)),
        entries=run,
        batches=tuple(columns),
    )


def save(disk: Disk, directory: str, sequence: int, data: bytes) -> None:
    """Put it beside its segment. It may be missing, so a disk that refuses is no failure."""
    name = index_name(sequence)
    path = f"{directory}/{name}"
    try:
        if name in disk.names(directory):
            disk.remove(path)
        file = disk.open(path, create=True)
        try:
            file.write(0, (data,))
        finally:
            file.close()
    except OSError:
        pass


def load(
    data: bytes, segment: Readable, *, sequence: int, incarnation: int, stop: int
) -> SealedIndex | None:
    """The index if it is that of this segment, read up to `stop`; else None."""
    try:
        sealed = decode(data, sequence=sequence, incarnation=incarnation)
        lying = segment.read(sealed.last.position, UNIT_HEADER_BYTES)
    except (Corrupted, OSError):
        return None
    seed = seed_of(incarnation, sequence)
    found = read_unit_header(lying, 0, sealed.last.position, seed)
    return sealed if found == sealed.last and found.end == stop else None
