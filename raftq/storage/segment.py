"""One segment: the names and bytes of its file, and the units found in it.

      0      4   5   6       8             16            24            32
      +------+---+---+-------+-------------+-------------+-------------+
      |"rqsg"|ver|flg| zeros | incarnation | sequence    | boot        |
      |      |u8 |u8 | u16   | u64         | u64         | u64         |
      +------+---+---+-------+-------------+-------------+-------------+
   32 | continues_segment u64| continues_position u64    | number  u64 |
   56 | previous  u64 | last_index  u64   | last_term  u64              |
   80 | last_chain  16 bytes | write_seq  u64           | zeros 16     |
  120 | checksum u64  = xxh3_64(bytes 0..120, seed)                    |
      +----------------------------------------------------------------+
  128 | units, then zeros or nothing                                   |
      +----------------------------------------------------------------+

Rule 1. `continues` names the segment and the position that this one follows: what lies there and
        behind, and all segments in between, is dead. (0, 0): nothing is before it. The log is the
        list of segments that hangs together so, from the newest back.
Rule 2. A header is written only after all that it continues was synced, so it proves that units up
        to `number` are durable. `number`, `previous`, `last_*`, `write_seq` say where it goes on.
Rule 3. Header and first unit are one write: they lie in one sector and share one sync.
Rule 4. Nothing here decides what an invalid byte means; that is `walk`.
"""

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol

from xxhash import xxh3_64_intdigest

from raftq.ids import Index, Term, WriteSeq
from raftq.limits import FORMAT_VERSION, KIB, MIB
from raftq.storage.unit import (
    CHECKSUM,
    MAGIC,
    UNIT_HEADER_BYTES,
    UnitHeader,
    body_checksum,
    read_unit_header,
    seed_of,
)

SEGMENT_MAGIC: Final = b"rqsg"
_HEADER: Final = Struct("<4sBBHQQQQQQQQQ16sQ16xQ")
SEGMENT_HEADER_BYTES: Final = _HEADER.size
assert SEGMENT_HEADER_BYTES == 128

AMNESIAC: Final = 1
"""Flag: this replica has forgotten something it may have promised; it never votes again."""

READ_BYTES: Final = 1 * MIB
"""How much of a segment is looked at at once, beside a unit's own length."""

BLOCK_BYTES: Final = 4 * KIB
"""When the disk refuses to give a portion, it is asked for pieces of this size."""

_SUFFIX: Final = ".log"
_INDEX: Final = ".index"
_SEGMENT: Final = "segment-"
_SPARE: Final = "spare-"


class Readable(Protocol):
    """What a segment is read through: an `env.File`, or an offline reader's."""

    def read(self, position: int, length: int) -> bytes: ...

    def size(self) -> int: ...


class ReadableFile(Readable, Protocol):
    """The same, with a name for messages."""

    @property
    def path(self) -> str: ...


def segment_name(sequence: int) -> str:
    return f"{_SEGMENT}{sequence:08d}{_SUFFIX}"


def spare_name(sequence: int) -> str:
    return f"{_SPARE}{sequence:08d}{_SUFFIX}"


def index_name(sequence: int) -> str:
    return f"{_SEGMENT}{sequence:08d}{_INDEX}"


def sequence_of(name: str) -> int | None:
    """The sequence in the name of a segment, spare or index, finished or temporary; else None."""
    for prefix in (_SEGMENT, _SPARE):
        digits = name.removeprefix(prefix).partition(".")[0]
        if name.startswith(prefix) and digits.isdecimal():
            return int(digits)
    return None


def is_segment(name: str) -> bool:
    return name.startswith(_SEGMENT) and name.endswith(_SUFFIX) and sequence_of(name) is not None


def is_index(name: str) -> bool:
    return name.startswith(_SEGMENT) and name.endswith(_INDEX) and sequence_of(name) is not None


def is_spare(name: str) -> bool:
    return name.startswith(_SPARE) and name.endswith(_SUFFIX) and sequence_of(name) is not None


def is_blank(readable: Readable) -> bool:
    """Whether there is nothing but zeros."""
    for position in range(0, readable.size(), READ_BYTES):
        data = readable.read(position, READ_BYTES)
        if data != bytes(len(data)):
            return False
    return True


class SegmentHeader(NamedTuple):
    """The fixed part at the beginning of a segment."""

    magic: bytes
    version: int
    flags: int
    zeros: int
    incarnation: int
    sequence: int
    boot: int
    continues_segment: int
    continues_position: int
    number: int
    previous: int
    last_index: Index
    last_term: Term
    last_chain: bytes
    write_seq: WriteSeq
    checksum: int


def encode_segment_header(fields: SegmentHeader) -> bytes:
    """The header's bytes; the `checksum` field given is ignored."""
    checked = _HEADER.pack(*fields)[:-8]
    seed = seed_of(fields.incarnation, fields.sequence)
    return checked + CHECKSUM.pack(xxh3_64_intdigest(checked, seed))


def read_segment_header(
    readable: Readable, *, sequence: int, incarnation: int | None
) -> SegmentHeader | None:
    """The header if it is valid and of this sequence and incarnation (None: of any)."""
    try:
        data = readable.read(0, SEGMENT_HEADER_BYTES)
    except OSError:
        return None
    if len(data) < SEGMENT_HEADER_BYTES:
        return None
    header = SegmentHeader._make(_HEADER.unpack(data))
    if header.magic != SEGMENT_MAGIC or header.version != FORMAT_VERSION:
        return None
    if header.sequence != sequence or incarnation not in {None, header.incarnation}:
        return None
    seed = seed_of(header.incarnation, sequence)
    return header if xxh3_64_intdigest(data[:-8], seed) == header.checksum else None


class Found(NamedTuple):
    """A unit whose header is valid. `body` is None when the body is not."""

    header: UnitHeader
    body: bytes | None


class Scanner:
    """Finds the units between two positions of a segment, going on past whatever is invalid.

    After the iteration `garbage` tells whether bytes that are not zero lie outside valid units. A
    unit does not reach into what a later segment has declared dead, unless `partial` says that the
    last may reach over `stop`.
    """

    def __init__(
        self,
        readable: Readable,
        seed: int,
        *,
        start: int,
        stop: int | None,
        partial: bool = False,
        read_bytes: int = READ_BYTES,
    ) -> None:
        size = readable.size()
        self._readable = readable
        self._seed = seed
        self._stop = size if stop is None else min(stop, size)
        self._limit = size if partial else self._stop
        self._position = start
        self._base = start
        self._buffer = b""
        self._read_bytes = read_bytes
        self.garbage = False

    def __iter__(self) -> Iterator[Found]:
        while self._stop - self._position >= UNIT_HEADER_BYTES:
            header = self._header_here()
            if header is None:
                if not self._skip():
                    return
                continue
            body = self._take(self._position + UNIT_HEADER_BYTES, header.body_bytes)
            valid = len(body) == header.body_bytes and (
                body_checksum((body,), self._seed) == header.body_checksum
            )
            self.garbage = self.garbage or not valid
            yield Found(header, body if valid else None)
            self._position = header.end
        self._note_garbage(self._take(self._position, self._stop - self._position))

    def _header_here(self) -> UnitHeader | None:
        self._need(UNIT_HEADER_BYTES)
        header = read_unit_header(
            self._buffer, self._position - self._base, self._position, self._seed
        )
        return header if header is None or header.end <= self._limit else None

    def _need(self, length: int) -> None:
        offset = self._position - self._base
        if offset + length > len(self._buffer):
            self._base = self._position
            self._buffer = self._read(self._position, self._portion())

    def _portion(self) -> int:
        return min(self._read_bytes, self._stop - self._position)

    def _take(self, position: int, length: int) -> bytes:
        offset = position - self._base
        if offset + length <= len(self._buffer):
            return self._buffer[offset : offset + length]
        return self._read(position, length) if length > 0 else b""

    def _read(self, position: int, length: int) -> bytes:
        """What can be read; blocks that the disk refuses to give count as zeros that are garbage."""
        try:
            return self._readable.read(position, length)
        except OSError:
            self.garbage = True
        parts = []
        for start in range(position, position + length, BLOCK_BYTES):
            size = min(BLOCK_BYTES, position + length - start)
            try:
                parts.append(self._readable.read(start, size))
            except OSError:
                parts.append(bytes(size))
        return b"".join(parts)

    def _skip(self) -> bool:
        """Go to the next place that looks like a unit; False at the end."""
        while True:
            offset = self._position - self._base
            found = self._buffer.find(MAGIC, offset + 1)
            if found >= 0:
                self._note_garbage(self._buffer[offset:found])
                self._position = self._base + found
                return True
            self._note_garbage(self._buffer[offset:])
            behind = self._base + len(self._buffer)
            if behind >= self._stop:
                self._position = self._stop
                return False
            # The magic may lie across the border of two portions.
            self._position = max(self._position + 1, behind - len(MAGIC) + 1)
            self._base = self._position
            self._buffer = self._read(self._position, self._portion())
            if not self._buffer:
                return False
            if self._buffer.startswith(MAGIC):
                return True

    def _note_garbage(self, data: bytes) -> None:
        self.garbage = self.garbage or data != bytes(len(data))
