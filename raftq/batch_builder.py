"""Making batches: what a producer does. The bytes are described in `batch_format`.

Rules:

1. No Python statement runs per message on the plain way: columns are made by array, map and join.
2. A column is left out where it would say nothing: all times or priorities equal, no key at all.
3. What a broker would refuse is refused here, with a message that names the argument.
"""

from array import array
from collections.abc import Iterable, Sequence
from struct import error as StructError  # noqa: N812 - it is a class, only named like a module.
from typing import Final, cast

from xxhash import xxh3_64_intdigest

from raftq.batch_format import (
    CHECKED_BYTES,
    CODEC_NONE,
    DEDUP,
    DUE,
    EXPIRE,
    HEADER_STRUCT,
    HEADERS,
    KEYS,
    MAGIC,
    MICROS_MAX,
    NO_DEDUP,
    PRIORITIES,
    TIMES,
    Buffer,
    checksum,
)
from raftq.batch_headers import Headers, encode_headers
from raftq.errors import InvalidArgument, MessageTooLarge
from raftq.ids import Partition, ProducerId, QueueId
from raftq.limits import (
    DELAY_MICROS_MAX,
    FORMAT_VERSION,
    MAX_BATCH_BYTES,
    MAX_BATCH_MESSAGES,
    MAX_KEY_BYTES,
    MAX_MESSAGE_BYTES,
)

NOT_IDEMPOTENT: Final = ProducerId(0)


def encode(
    bodies: Sequence[Buffer],
    *,
    queue: QueueId,
    partition: Partition,
    producer: ProducerId = NOT_IDEMPOTENT,
    epoch: int = 0,
    sequence: int = 0,
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
    times: Sequence[int] | int | None = None,
    priority: int = 0,
    delay_us: int = 0,
    ttl_us: int = 0,
    due: Sequence[int] | None = None,
    expire: Sequence[int] | None = None,
    priorities: Sequence[int] | None = None,
    dedup_hashes: Sequence[bytes | None] | None = None,
) -> bytes:
    """One batch. A sequence has one item per body; an empty key is no key, a zero time is none.

    Raises: InvalidArgument, MessageTooLarge.
    """
    count = len(bodies)
    if not 1 <= count <= MAX_BATCH_MESSAGES:
        raise InvalidArgument(f"a batch has 1 to {MAX_BATCH_MESSAGES} messages, not {count}")
    lengths = array("I", map(len, bodies))
    body_bytes = sum(lengths)
    if body_bytes > MAX_MESSAGE_BYTES and max(lengths) > MAX_MESSAGE_BYTES:
        raise MessageTooLarge(f"a message has at most {MAX_MESSAGE_BYTES} bytes")
    columns = _Columns(count)
    columns.add(0, lengths)
    columns.add_keys(keys)
    columns.add_headers(headers)
    if times is None or isinstance(times, int):
        base_time = max_time = times or 0
    else:
        base_time, max_time = columns.add_times(times)
    min_due, max_due = columns.add_bounded(DUE, due, "due")
    min_expire, max_expire = columns.add_bounded(EXPIRE, expire, "expire")
    if priorities is not None:
        priority = columns.add_priorities(priorities)
    columns.add_dedup(dedup_hashes)

    payload = b"".join([*columns.parts, *bodies, *columns.keys, *columns.headers])
    if len(payload) != columns.size + body_bytes + columns.key_bytes + columns.headers_bytes:
        raise InvalidArgument("bodies and keys are bytes, or views of single bytes")
    if len(payload) > MAX_BATCH_BYTES:
        raise MessageTooLarge(f"a batch has at most {MAX_BATCH_BYTES} bytes, not {len(payload)}")
    if not (0 <= delay_us <= DELAY_MICROS_MAX and 0 <= ttl_us <= MICROS_MAX):
        raise InvalidArgument(f"delay is 0 to {DELAY_MICROS_MAX} microseconds, ttl is not negative")
    if not 0 <= base_time <= max_time <= MICROS_MAX:
        raise InvalidArgument("times are microseconds since 1970, and not negative")
    try:
        head = HEADER_STRUCT.pack(
            MAGIC, FORMAT_VERSION, CODEC_NONE, columns.flags, count, len(payload),
            queue, partition, producer, epoch, body_bytes, sequence,
            base_time, max_time, delay_us, ttl_us, min_due, max_due, min_expire, max_expire,
            columns.key_bytes, priority, 0,
        )[:CHECKED_BYTES]  # fmt: skip
    except StructError as error:
        raise InvalidArgument(f"a number does not fit its field in a batch: {error}") from error
    return b"".join((head, checksum(head, payload).to_bytes(8, "little"), payload))


class _Columns:
    """The columns of one batch in the making. They must be added in the order of the format."""

    __slots__ = ("count", "flags", "headers", "headers_bytes", "key_bytes", "keys", "parts", "size")

    def __init__(self, count: int) -> None:
        self.count = count
        self.flags = 0
        self.parts: list[array[int] | bytes] = []
        self.size = 0
        self.keys: Sequence[bytes] = ()
        self.key_bytes = 0
        self.headers: Sequence[bytes] = ()
        self.headers_bytes = 0

    def add(self, flag: int, values: "array[int] | bytes") -> None:
        size = memoryview(values).nbytes
        self.flags |= flag
        self.parts.append(values)
        if size % 8:
            self.parts.append(bytes(-size % 8))
        self.size += size + 7 & -8

    def values(self, code: str, values: Sequence[int], name: str) -> "array[int]":
        self.check(values, name)
        try:
            return array(code, values)
        except OverflowError as error:
            raise InvalidArgument(f"a value of {name} is out of range: {error}") from error

    def check(self, values: Sequence[object], name: str) -> None:
        if len(values) != self.count:
            raise InvalidArgument(f"{name} has {len(values)} items for {self.count} messages")

    def add_keys(self, keys: Sequence[bytes | None] | None) -> None:
        if keys is None:
            return
        self.check(keys, "keys")
        complete = all(keys)
        blobs = cast("Sequence[bytes]", keys) if complete else [key or b"" for key in keys]
        lengths = array("I", map(len, blobs))
        longest = max(lengths)
        if longest > MAX_KEY_BYTES:
            raise InvalidArgument(f"a key has at most {MAX_KEY_BYTES} bytes, not {longest}")
        if not longest:
            return
        if complete:
            hashes = list(map(xxh3_64_intdigest, blobs))
        else:
            hashes = [xxh3_64_intdigest(key) if key else 0 for key in blobs]
        self.add(KEYS, lengths)
        self.add(KEYS, array("Q", hashes))
        self.keys = blobs
        self.key_bytes = sum(lengths)

    def add_headers(self, headers: Sequence[Headers | None] | None) -> None:
        if headers is None:
            return
        self.check(headers, "headers")
        blobs = list(_encode_each(headers))
        lengths = array("I", map(len, blobs))
        if any(lengths):
            self.add(HEADERS, lengths)
            self.headers = blobs
            self.headers_bytes = sum(lengths)

    def add_times(self, times: Sequence[int]) -> tuple[int, int]:
        values = self.values("q", times, "times")
        bounds = min(values), max(values)
        if bounds[0] != bounds[1]:
            self.add(TIMES, values)
        return bounds

    def add_bounded(self, flag: int, times: Sequence[int] | None, name: str) -> tuple[int, int]:
        if times is None:
            return 0, 0
        values = self.values("q", times, name)
        if not 0 <= min(values) <= max(values) <= MICROS_MAX:
            raise InvalidArgument(f"{name} is microseconds since 1970, and not negative")
        if not any(values):
            return 0, 0
        self.add(flag, values)
        return min(filter(None, values)), max(values)

    def add_priorities(self, priorities: Sequence[int]) -> int:
        values = self.values("B", priorities, "priorities")
        if min(values) != max(values):
            self.add(PRIORITIES, values)
        return max(values)

    def add_dedup(self, hashes: Sequence[bytes | None] | None) -> None:
        if hashes is None:
            return
        self.check(hashes, "dedup_hashes")
        if any(hashes):
            filled = [value or NO_DEDUP for value in hashes]
            if set(map(len, filled)) != {len(NO_DEDUP)}:
                raise InvalidArgument(f"a dedup hash has {len(NO_DEDUP)} bytes")
            self.add(DEDUP, b"".join(filled))


def _encode_each(headers: Sequence[Headers | None]) -> Iterable[bytes]:
    """The bytes of each item; one object given for many messages in a row is encoded once."""
    previous: Headers | None = None
    encoded = b""
    for item in headers:
        if item is not previous:
            encoded = encode_headers(item)
            previous = item
        yield encoded
