"""The bytes of a batch: the same on wire, on disk and in Spark.

    0               4       5       6       8               12              16
    +---------------+-------+-------+-------+---------------+---------------+
    | magic "rqba"  |version| codec | flags | count         | payload_bytes |
    | 4 bytes       | u8    | u8    | u16   | u32           | u32           |
    +---------------+-------+-------+-------+---------------+---------------+
 16 | queue         | partition             | producer                      |
    | u32           | u32                   | u64                           |
    +---------------+-----------------------+-------------------------------+
 32 | epoch         | body_bytes            | sequence                      |
    | u32           | u32                   | u64                           |
    +---------------+-----------------------+-------------------------------+
 48 | base_time  i64 us                     | max_time  i64 us              |
 64 | delay      i64 us                     | ttl       i64 us              |
 80 | min_due    i64 us                     | max_due   i64 us              |
 96 | min_expire i64 us                     | max_expire i64 us             |
    +---------------+-------+---------------+-------------------------------+
112 | key_bytes     |priorit| 3 zero bytes  | checksum                      |
    | u32           | u8    |               | u64                           |
    +---------------+-------+---------------+-------------------------------+
128 | columns, in this order; each has count values, is there when flagged, |
    | and is filled up with zeros to a multiple of 8 bytes:                 |
    |   body_length   u32   always                                          |
    |   key_length    u32   KEYS         0: the message has no key          |
    |   key_hash      u64   KEYS         xxh3-64 of the key; 0: no key      |
    |   header_length u32   HEADERS      0: the message has no headers      |
    |   time          i64   TIMES        producer time                      |
    |   due           i64   DUE          not before; 0: by `delay`          |
    |   expire        i64   EXPIRE       not after; 0: by `ttl`             |
    |   priority      u8    PRIORITIES                                      |
    |   dedup_hash    16 B  DEDUP        xxh3-128 digest; zeros: none       |
    +-----------------------------------------------------------------------+
    | all bodies (body_bytes) | all keys (key_bytes) | all headers (rest)   |
    +-----------------------------------------------------------------------+

Little-endian. `payload_bytes` counts all that follows the header. The header is 128 bytes, not 96:
the times alone take 64. It also states how many bytes the bodies and the keys take, so that a
reader finds the keys without adding up the bodies. Columns hold lengths, not ends: that encodes
and decodes faster. Every column begins at a multiple of 8, so it can be mapped as it lies.

    checksum = xxh3_64(payload, seed = xxh3_64(the first 120 bytes))

Rule 1. Lengths and counts are compared with the bytes there are before anything is read by them.
Rule 2. Queue and partition lie under the checksum: a batch cannot land in another queue.
Rule 3. The uniform fields describe the whole batch where a column is absent. Where it is there,
        base_time, max_time, min_due and the like are its bounds (zeros left out of a minimum), and
        `priority` is its highest value: the machine judges by the header alone where it can.
Rule 4. `Corrupted` means that the bytes are not what was written; `ProtocolError` that they are,
        and that the writer was wrong.

Brokers read neither bodies nor headers; what the latter hold is in `batch_headers`. Nothing here
does I/O, and nothing knows what a queue does with a message.
"""

import sys
from array import array
from collections.abc import Sequence
from struct import Struct
from typing import Final, Literal, NamedTuple

from xxhash import xxh3_64_intdigest, xxh3_128_digest

from raftq.errors import Corrupted, ProtocolError, UnsupportedVersion
from raftq.ids import Partition, ProducerId, QueueId
from raftq.limits import (
    DELAY_MICROS_MAX,
    FORMAT_VERSION,
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_HEADERS_BYTES,
    MAX_KEY_BYTES,
)

assert sys.byteorder == "little", "columns are read as they lie, which needs a little-endian CPU"
assert array("I").itemsize == 4
assert array("Q").itemsize == 8

Buffer = bytes | bytearray | memoryview

MAGIC: Final = b"rqba"
KEYS: Final = 1
HEADERS: Final = 2
TIMES: Final = 4
DUE: Final = 8
EXPIRE: Final = 16
PRIORITIES: Final = 32
DEDUP: Final = 64
ALL_FLAGS: Final = 127

CODEC_NONE: Final = 0
RESERVED_CODECS: Final = {1: "lz4", 2: "zstd"}

NO_DEDUP: Final = bytes(16)
MICROS_MAX: Final = 1 << 62
"""Largest time in a batch: a time and a duration added up still fit an i64."""

HEADER_STRUCT: Final = Struct("<4sBBHIIIIQIIQqqqqqqqqIB3xQ")
HEADER_BYTES: Final = HEADER_STRUCT.size
assert HEADER_BYTES == 128
CHECKED_BYTES: Final = HEADER_BYTES - 8


class _Column(NamedTuple):
    """Where a column stands: `flag` 0 means always there, `code` is that of struct and array."""

    flag: int
    width: int
    code: Literal["B", "I", "Q", "q"]


_COLUMNS: Final = {
    "body_length": _Column(0, 4, "I"),
    "key_length": _Column(KEYS, 4, "I"),
    "key_hash": _Column(KEYS, 8, "Q"),
    "header_length": _Column(HEADERS, 4, "I"),
    "time": _Column(TIMES, 8, "q"),
    "due": _Column(DUE, 8, "q"),
    "expire": _Column(EXPIRE, 8, "q"),
    "priority": _Column(PRIORITIES, 1, "B"),
    "dedup_hash": _Column(DEDUP, 16, "B"),
}


def _present(flags: int) -> list[_Column]:
    return [column for column in _COLUMNS.values() if not column.flag or column.flag & flags]


# For each combination of flags: columns of 4-byte values, bytes a message in wide columns, and
# columns of 1-byte values. It makes the size of all columns one expression instead of a loop.
_SHAPES: Final = tuple(
    (
        sum(column.width == 4 for column in _present(flags)),
        sum(column.width for column in _present(flags) if column.width >= 8),
        sum(column.width == 1 for column in _present(flags)),
    )
    for flags in range(ALL_FLAGS + 1)
)


def columns_bytes(flags: int, count: int) -> int:
    narrow, wide, single = _SHAPES[flags]
    return narrow * (4 * count + 7 & -8) + wide * count + single * (count + 7 & -8)


def key_hash(key: bytes) -> int:
    """The number that stands for a key in its column, and that chooses the key's partition."""
    return xxh3_64_intdigest(key)


def dedup_hash(identifier: bytes) -> bytes:
    """The 16 bytes that stand for a dedup id in its column."""
    return xxh3_128_digest(identifier)


def checksum(head: Buffer, payload: Buffer) -> int:
    """Over the header up to its checksum field, and the payload, in one pass each."""
    return xxh3_64_intdigest(payload, xxh3_64_intdigest(head))


class Header(NamedTuple):
    """The fixed part of a batch. Times and durations are microseconds; 0 means "none"."""

    magic: bytes
    version: int
    codec: int
    flags: int
    count: int  # type: ignore[assignment]  # Hides tuple.count, which nobody asks a header for.
    payload_bytes: int
    queue: QueueId
    partition: Partition
    producer: ProducerId
    epoch: int
    body_bytes: int
    sequence: int
    base_time: int
    max_time: int
    delay: int
    ttl: int
    min_due: int
    max_due: int
    min_expire: int
    max_expire: int
    key_bytes: int
    priority: int
    checksum: int


def _unpack(data: Buffer) -> Header:
    size = len(data)
    if size < HEADER_BYTES:
        raise Corrupted(f"a batch has at least {HEADER_BYTES} bytes, this one {size}")
    header = Header._make(HEADER_STRUCT.unpack_from(data))
    if header.magic != MAGIC:
        raise Corrupted(f"a batch begins with {MAGIC!r}, not {header.magic!r}")
    if header.version != FORMAT_VERSION:
        raise UnsupportedVersion(
            f"batch format {header.version} is not known, only {FORMAT_VERSION}; upgrade raftq"
        )
    if header.payload_bytes != size - HEADER_BYTES:
        raise Corrupted(
            f"a batch claims {header.payload_bytes} bytes of payload, {size - HEADER_BYTES} are there"
        )
    return header


def _judge(header: Header) -> Header:
    count, flags = header.count, header.flags
    if not 1 <= count <= MAX_BATCH_MESSAGES:
        raise ProtocolError(f"a batch has 1 to {MAX_BATCH_MESSAGES} messages, not {count}")
    if header.payload_bytes > MAX_BATCH_BYTES:
        raise ProtocolError(f"a batch has at most {MAX_BATCH_BYTES} bytes of payload")
    if flags > ALL_FLAGS:
        raise ProtocolError(f"a batch has unknown column flags 0x{flags & ~ALL_FLAGS:x}")
    if header.codec != CODEC_NONE:
        name = RESERVED_CODECS.get(header.codec)
        if name:
            raise UnsupportedVersion(
                f"a batch is compressed with {name}; install raftq[compression] of a version with it"
            )
        raise UnsupportedVersion(f"a batch has the unknown codec {header.codec}; upgrade raftq")
    rest = header.payload_bytes - columns_bytes(flags, count) - header.body_bytes
    rest -= header.key_bytes
    if rest < 0 or (rest and not flags & HEADERS) or (header.key_bytes and not flags & KEYS):
        raise ProtocolError(
            f"a batch of {count} messages does not add up: {header.payload_bytes} bytes of payload, "
            f"{header.body_bytes} of bodies, {header.key_bytes} of keys, column flags 0x{flags:x}"
        )
    if not (
        0 <= header.delay <= DELAY_MICROS_MAX
        and 0 <= header.ttl <= MICROS_MAX
        and 0 <= header.base_time <= header.max_time <= MICROS_MAX
        and 0 <= header.min_due <= header.max_due <= MICROS_MAX
        and 0 <= header.min_expire <= header.max_expire <= MICROS_MAX
        and (not header.max_due or flags & DUE)
        and (not header.max_expire or flags & EXPIRE)
        and (header.base_time == header.max_time or flags & TIMES)
    ):
        raise ProtocolError("a batch has times outside their range, or bounds without their column")
    return header


def read_header(data: Buffer) -> Header:
    """The header of a batch that is exactly `data`: cheap, and without its checksum.

    Raises: Corrupted, ProtocolError, UnsupportedVersion.
    """
    return _judge(_unpack(data))


def verify_checksum(data: Buffer) -> Header:
    """As `read_header`, and the bytes are what was written: for who trusts the writer.

    Raises: Corrupted, ProtocolError, UnsupportedVersion.
    """
    header = _unpack(data)
    view = memoryview(data)
    if checksum(view[:CHECKED_BYTES], view[HEADER_BYTES:]) != header.checksum:
        raise Corrupted(
            f"a batch for queue {header.queue}, partition {header.partition} fails its checksum"
        )
    return _judge(header)


def verify(data: Buffer) -> Header:
    """As `verify_checksum`, and the columns agree with the header: for who trusts nobody.

    Plain batches of equal bodies cost no pass over a column, others one pass over each.

    Raises: Corrupted, ProtocolError, UnsupportedVersion.
    """
    header = verify_checksum(data)
    view = memoryview(data)
    count, flags = header.count, header.flags
    column_bytes = bytes(view[HEADER_BYTES : HEADER_BYTES + 4 * count])
    lengths = memoryview(column_bytes).cast("I")
    if column_bytes[4:] == column_bytes[:-4]:
        right = lengths[0] * count == header.body_bytes
    else:
        right = sum(lengths) == header.body_bytes
    if flags and right:
        right = _featured_columns_agree(view, header)
    if not right:
        raise ProtocolError(
            f"a batch for queue {header.queue}, partition {header.partition} has columns that "
            "disagree with its header"
        )
    return header


def _featured_columns_agree(view: memoryview, header: Header) -> bool:
    for name, total, largest in (
        ("key_length", header.key_bytes, MAX_KEY_BYTES),
        ("header_length", headers_bytes(header), MAX_HEADERS_BYTES),
    ):
        lengths = column(view, header, name)
        if lengths is not None and (sum(lengths) != total or max(lengths) > largest):
            return False
    times = column(view, header, "time")
    if times is not None and (min(times), max(times)) != (header.base_time, header.max_time):
        return False
    for name, bounds in (
        ("due", (header.min_due, header.max_due)),
        ("expire", (header.min_expire, header.max_expire)),
    ):
        values = column(view, header, name)
        if values is not None and _bounds(values) != bounds:
            return False
    priorities = column(view, header, "priority")
    return priorities is None or max(priorities) == header.priority


def _bounds(values: Sequence[int]) -> tuple[int, int]:
    return min(filter(None, values), default=0), max(values)


def headers_bytes(header: Header) -> int:
    columns = columns_bytes(header.flags, header.count)
    return header.payload_bytes - columns - header.body_bytes - header.key_bytes


def column(data: Buffer, header: Header, name: str) -> memoryview | None:
    """One column as it lies, or None where the batch has none of this name; nothing is copied.

    `dedup_hash` comes as bytes, 16 a message, the others as integers.
    """
    wanted = _COLUMNS[name].flag
    if wanted and not wanted & header.flags:
        return None
    position = HEADER_BYTES
    for known, (flag, width, code) in _COLUMNS.items():
        if flag and not flag & header.flags:
            continue
        size = width * header.count
        if known == name:
            values = memoryview(data)[position : position + size]
            return values if code == "B" else values.cast(code)
        position += size + 7 & -8
    raise KeyError(name)
