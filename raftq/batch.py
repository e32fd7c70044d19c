"""The columnar batch: 1..n messages of one producer, never taken apart between producer and consumer.

This is the one module that others import: making a batch (`encode`), checking one (`read_header`,
`verify_checksum`, `verify`), reading one (`Batch`), and the stamp that stands beside it in the log.
The bytes are described in `batch_format`.

Rules:

1. A broker verifies what a client sent; who got it from a broker verifies the checksum; nothing
   else reads a batch that was not verified.
2. Reading is lazy and by range: what is not asked for is not touched.
3. No I/O here, and no knowledge of what a queue does with a message.
"""

from collections.abc import Sequence
from io import BytesIO
from struct import Struct
from typing import Final, NamedTuple

from raftq.batch_builder import encode
from raftq.batch_format import (
    DEDUP,
    DUE,
    EXPIRE,
    HEADER_BYTES,
    HEADERS,
    KEYS,
    NO_DEDUP,
    PRIORITIES,
    TIMES,
    Buffer,
    Header,
    column,
    columns_bytes,
    dedup_hash,
    key_hash,
    read_header,
    verify,
    verify_checksum,
)
from raftq.batch_headers import Headers, HeaderValue, decode_headers, encode_headers
from raftq.errors import Corrupted, UnsupportedVersion
from raftq.ids import Offset, Partition, QueueId
from raftq.limits import FORMAT_VERSION, MAX_BATCH_MESSAGES

__all__ = [
    "DEDUP",
    "DUE",
    "EXPIRE",
    "HEADERS",
    "HEADER_BYTES",
    "KEYS",
    "NO_DEDUP",
    "PRIORITIES",
    "PUBLISH",
    "STAMP_BYTES",
    "TIMES",
    "Batch",
    "Buffer",
    "Header",
    "HeaderValue",
    "Headers",
    "Stamp",
    "column",
    "dedup_hash",
    "encode",
    "encode_headers",
    "encode_stamp",
    "key_hash",
    "read_header",
    "read_stamp",
    "verify",
    "verify_checksum",
]


class Batch:
    """A lazy reader of one verified batch: it touches what is asked for, and copies only that.

    Given without a header, the bytes are verified here; with one, they are trusted. Methods that
    take `start` and `stop` take positions in the batch, as a slice does.
    """

    __slots__ = ("data", "header")

    def __init__(self, data: Buffer, header: Header | None = None) -> None:
        self.data = data
        self.header = verify(data) if header is None else header

    @property
    def count(self) -> int:
        return self.header.count

    def column(self, name: str) -> memoryview | None:
        return column(self.data, self.header, name)

    def bodies(self, start: int = 0, stop: int | None = None) -> list[bytes]:
        return self._blobs("body_length", 0, start, stop)

    def keys(self, start: int = 0, stop: int | None = None) -> list[bytes | None]:
        keys = self._blobs("key_length", self.header.body_bytes, start, stop)
        return [key or None for key in keys]

    def headers(self, start: int = 0, stop: int | None = None) -> list[dict[str, HeaderValue]]:
        """The headers of each message; messages that share them are decoded once.

        Raises: ProtocolError.
        """
        skipped = self.header.body_bytes + self.header.key_bytes
        decoded: dict[bytes, dict[str, HeaderValue]] = {}
        result = []
        for encoded in self._blobs("header_length", skipped, start, stop):
            known = decoded.get(encoded)
            if known is None:
                known = decoded[encoded] = decode_headers(encoded)
            result.append(known.copy())
        return result

    def largest_body(self) -> int:
        """Length of the longest body, by one pass over its column."""
        return max(column(self.data, self.header, "body_length") or (0,))

    def cut(self, start: int, stop: int) -> bytes:
        """The messages [start, stop) as a batch of their own, for a reader: with its bodies, keys,

        headers, times and priorities, and without what only matters to a queue.
        """
        header = self.header
        return encode(
            self.bodies(start, stop),
            queue=header.queue,
            partition=header.partition,
            keys=self.keys(start, stop) if header.flags & KEYS else None,
            headers=self.headers(start, stop) if header.flags & HEADERS else None,
            times=list(self.times[start:stop]),
            priorities=list(self.priorities[start:stop]),
        )

    def _blobs(self, lengths_name: str, skipped: int, start: int, stop: int | None) -> list[bytes]:
        header = self.header
        stop = header.count if stop is None else stop
        assert 0 <= start <= stop <= header.count, "a range outside the batch"
        lengths = self.column(lengths_name)
        if lengths is None:
            return [b""] * (stop - start)
        begin = HEADER_BYTES + columns_bytes(header.flags, header.count) + skipped
        if start:
            begin += sum(lengths[:start])
        chosen = lengths[start:stop]
        # A BytesIO shares the bytes it is made from, and its read is the cheapest way to cut them.
        if type(self.data) is bytes:
            stream = BytesIO(self.data)
            stream.seek(begin)
        else:
            end = begin + sum(chosen) if stop < header.count else len(self.data)
            stream = BytesIO(memoryview(self.data)[begin:end])
        return list(map(stream.read, chosen))

    @property
    def times(self) -> Sequence[int]:
        return self._values("time", self.header.base_time)

    @property
    def key_hashes(self) -> Sequence[int]:
        return self._values("key_hash", 0)

    @property
    def priorities(self) -> Sequence[int]:
        return self._values("priority", self.header.priority)

    @property
    def due(self) -> Sequence[int]:
        return self._values("due", 0)

    @property
    def expire(self) -> Sequence[int]:
        return self._values("expire", 0)

    @property
    def dedup_hashes(self) -> list[bytes]:
        digests = self.column("dedup_hash")
        if digests is None:
            return [NO_DEDUP] * self.count
        return [bytes(digests[at : at + 16]) for at in range(0, 16 * self.count, 16)]

    def _values(self, name: str, uniform: int) -> Sequence[int]:
        values = self.column(name)
        return [uniform] * self.count if values is None else values


# --- The stamp beside a batch in the log ---------------------------------------------------------
#
#     0      1         2       4        8            12       16            24             32
#     +------+---------+-------+--------+------------+--------+-------------+--------------+
#     | kind | version | flags | queue  | partition  | count  | base_offset | eight zeros  |
#     | u8=1 | u8      | u16   | u32    | u32        | u32    | u64         | reserved     |
#     +------+---------+-------+--------+------------+--------+-------------+--------------+

PUBLISH: Final = 1
"""Kind of the command whose body is a batch and whose header is a stamp."""

_STAMP: Final = Struct("<BBHIIIQ8s")
STAMP_BYTES: Final = _STAMP.size
assert STAMP_BYTES == 32


class Stamp(NamedTuple):
    """What the leader adds to a batch without touching it: raw segments then describe themselves."""

    queue: QueueId
    partition: Partition
    base_offset: Offset
    count: int  # type: ignore[assignment]  # As in Header.
    flags: int


def encode_stamp(
    queue: QueueId, partition: Partition, base_offset: Offset, count: int, flags: int = 0
) -> bytes:
    """The complete header of a PUBLISH command."""
    return _STAMP.pack(
        PUBLISH, FORMAT_VERSION, flags, queue, partition, count, base_offset, bytes(8)
    )


def read_stamp(command_header: bytes) -> Stamp:
    """The stamp that `encode_stamp` made.

    Raises: Corrupted, UnsupportedVersion.
    """
    if len(command_header) != STAMP_BYTES:
        raise Corrupted(f"a stamp has {STAMP_BYTES} bytes, not {len(command_header)}")
    kind, version, flags, queue, partition, count, base_offset, reserved = _STAMP.unpack(
        command_header
    )
    if kind != PUBLISH or reserved != bytes(8):
        raise Corrupted(f"a command of kind {kind} is not a publish, or its reserved bytes are set")
    if version != FORMAT_VERSION:
        raise UnsupportedVersion(f"stamp format {version} is not known, only {FORMAT_VERSION}")
    if not 1 <= count <= MAX_BATCH_MESSAGES:
        raise Corrupted(f"a stamp names 1 to {MAX_BATCH_MESSAGES} messages, not {count}")
    return Stamp(queue, partition, base_offset, count, flags)
