"""Requests and replies of the data path, client port: plain values and their fixed structs.

All integers little-endian, times and durations in microseconds. `x` is a zero byte. Batches are
carried untouched: the encoders give a list of vectors, the decoders give slices.

    PUBLISH    acks u8 | x | xx | timeout_ms u32 | batch
    PUBLISHED  group u32 | partition u32 | base_offset u64 | count u32 | acks u8 | duplicate u8 | xx
               | term u64 | index u64 | chain 16 bytes
    RECEIVE    group u32 | session u64 | attachment u32 | number u64 | wanted u64 | queue u32
               | max_messages u32 | max_bytes u32 | visibility i64 | wait i64
               | flags u8 (1 = notify only) | subscription_length u8 | partitions u16
               | subscription, UTF-8 | partitions x u32
    DELIVERED  deliveries u32 | batches u32
               | deliveries x { partition u32 | delivery u64 | deadline i64 | ranges u32
                                | ranges x { start u64 | stop u64 | delivery_count u32 } }
               | batches x { partition u32 | base_offset u64 | log_time i64 | length u32 }
               | the batches
    SETTLE     group u32 | session u64 | attachment u32 | number u64 | wanted u64 | queue u32
               | action u8 (1 ack, 2 nack, 3 extend) | flags u8 (nack: 1 counts, 2 rejects)
               | subscription_length u8 | x
               | reason_length u16 | xx | items u32 | time i64 (nack: delay, extend: visibility)
               | subscription | reason | items x { partition u32 | delivery u64 | start u64 | stop u64 }
    SETTLED    items u32 | items as in SETTLE: the ranges that were stale
    READ       queue u32 | partition u32 | offset u64 | max_bytes u32 | wait i64
    BATCHES    first_offset u64 | end_offset u64 | batches u32 | rows as in DELIVERED | the batches

Rules:

1. Lengths and counts are compared with the bytes there are before anything is read by them, and
   nothing may follow what they describe.
2. A decoder raises ProtocolError and nothing else. Whether ids and numbers mean anything is for the
   machine to say; a batch is verified by who needs it, not here.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from raftq.errors import ProtocolError
from raftq.ids import GroupId, Index, Micros, Offset, Partition, QueueId, SessionId, Term
from raftq.limits import MAX_ACK_RANGES, MAX_PARTITIONS, MAX_QUEUE_NAME, MAX_REASON_BYTES

Buffer = bytes | bytearray | memoryview

ACKS_NONE: Final = 0
ACKS_LEADER: Final = 1
ACKS_QUORUM: Final = 2
ACKS_NAMES: Final = ("none", "leader", "quorum")

ACK: Final = 1
NACK: Final = 2
EXTEND: Final = 3

LATEST: Final = Offset((1 << 64) - 1)
"""As the offset of a READ: behind the end, so that the answer names the end and no batch."""

_NOTIFY_ONLY: Final = 1
_COUNTS: Final = 1
_REJECTS: Final = 2
_PUBLISH: Final = Struct("<BBHI")
_PUBLISHED: Final = Struct("<IIQIBBHQQ16s")
_RECEIVE: Final = Struct("<IQIQQIIIqqBBH")
_DELIVERED: Final = Struct("<II")
_DELIVERY: Final = Struct("<IQqI")
_RANGE: Final = Struct("<QQI")
_BATCH: Final = Struct("<IQqI")
_SETTLE: Final = Struct("<IQIQQIBBBBHHIq")
_ITEM: Final = Struct("<IQQQ")
_COUNT: Final = Struct("<I")
_READ: Final = Struct("<IIQIq")
_BATCHES: Final = Struct("<QQI")


class Publish(NamedTuple):
    """Append one batch; its header says to which queue and partition.

    `timeout_ms`: after so long at the leader it does not enter the log any more; 0: no limit.
    """

    acks: int
    timeout_ms: int
    batch: Buffer


class Published(NamedTuple):
    """The batch is in the log as `acks` demands; `chain` is the log's hash chain at `index`."""

    group: GroupId
    partition: Partition
    base_offset: Offset
    count: int  # type: ignore[assignment]  # Hides tuple.count, which nobody asks a reply for.
    acks: int
    duplicate: bool
    term: Term
    index: Index  # type: ignore[assignment]  # As above.
    chain: bytes


class Receive(NamedTuple):
    """Hand out messages of one queue and subscription from one group's partitions.

    With `notify_only` nothing is handed out: the answer is READY as soon as something is ready, or
    an empty DELIVERED when `wait_us` is over or the request is cancelled; session and number are
    not looked at. `partitions` empty means all that the group has of the queue.
    """

    group: GroupId
    session: SessionId
    attachment: int
    number: int
    wanted: int
    queue: QueueId
    subscription: str
    max_messages: int
    max_bytes: int
    visibility_us: int
    wait_us: int
    notify_only: bool = False
    partitions: tuple[Partition, ...] = ()


class Range(NamedTuple):
    """Offsets [start, stop) that were handed out `delivery_count` times by now."""

    start: Offset
    stop: Offset
    delivery_count: int


class Delivery(NamedTuple):
    """One handing-out of ranges of one partition, held until `deadline` (log time)."""

    partition: Partition
    delivery: int
    deadline: Micros
    ranges: tuple[Range, ...]


class StoredBatch(NamedTuple):
    """A batch as it lies in the log: its first message has `base_offset`."""

    partition: Partition
    base_offset: Offset
    log_time: Micros
    data: Buffer


class Delivered(NamedTuple):
    """Deliveries, and each stored batch that their ranges touch, once."""

    deliveries: tuple[Delivery, ...]
    batches: tuple[StoredBatch, ...]


class Item(NamedTuple):
    """Offsets [start, stop) of one delivery."""

    partition: Partition
    delivery: int
    start: Offset
    stop: Offset


class Settle(NamedTuple):
    """Ack, nack or extend ranges of deliveries of one queue and subscription in one group.

    `time_us` is the delay of a nack (0 = as the queue says) or the new visibility of an extend.
    `count` says whether a nack counts against the delivery limit; one with `reject` makes dead
    letters at once.
    """

    group: GroupId
    session: SessionId
    attachment: int
    number: int
    wanted: int
    queue: QueueId
    subscription: str
    action: int
    items: tuple[Item, ...]
    time_us: int = 0
    count: bool = True  # type: ignore[assignment]  # As in Published.
    reason: str = ""
    reject: bool = False


class Settled(NamedTuple):
    """The ranges that the deliveries did not hold any more; nothing happened to those."""

    stale: tuple[Item, ...]


class Read(NamedTuple):
    """Replay one partition from an offset on, consuming nothing.

    At the end it waits up to `wait_us` for something new. An offset behind the end (as LATEST is)
    is answered at once with no batch; one below the first held begins at that.
    """

    queue: QueueId
    partition: Partition
    offset: Offset
    max_bytes: int
    wait_us: int


class Batches(NamedTuple):
    """Batches in offset order; offsets missing between them are not held any more."""

    first_offset: Offset
    end_offset: Offset
    batches: tuple[StoredBatch, ...]


# --- Publish -------------------------------------------------------------------------------------


def encode_publish(request: Publish) -> list[Buffer]:
    return [_PUBLISH.pack(request.acks, 0, 0, request.timeout_ms), request.batch]


def decode_publish(body: memoryview) -> Publish:
    if len(body) <= _PUBLISH.size:
        raise ProtocolError("a PUBLISH without a batch")
    acks, zero, zeros, timeout_ms = _PUBLISH.unpack_from(body)
    if acks > ACKS_QUORUM or zero or zeros:
        raise ProtocolError(f"a PUBLISH asks for unknown acks {acks}, or has its spare bytes set")
    return Publish(acks, timeout_ms, body[_PUBLISH.size :])


def encode_published(reply: Published) -> list[Buffer]:
    group, partition, base_offset, count, acks, duplicate, term, index, chain = reply
    return [
        _PUBLISHED.pack(
            group, partition, base_offset, count, acks, duplicate, 0, term, index, chain
        )
    ]


def decode_published(body: memoryview) -> Published:
    if len(body) != _PUBLISHED.size:
        raise ProtocolError(f"a PUBLISHED has {_PUBLISHED.size} bytes, not {len(body)}")
    group, partition, base_offset, count, acks, duplicate, zeros, term, index, chain = (
        _PUBLISHED.unpack_from(body)
    )
    if acks > ACKS_QUORUM or duplicate > 1 or zeros:
        raise ProtocolError("a PUBLISHED has values that mean nothing")
    return Published(
        group, partition, base_offset, count, acks, bool(duplicate), term, index, chain
    )


# --- Receive -------------------------------------------------------------------------------------


def encode_receive(request: Receive) -> list[Buffer]:
    subscription = request.subscription.encode()
    partitions = request.partitions
    fixed = _RECEIVE.pack(
        request.group, request.session, request.attachment, request.number, request.wanted,
        request.queue, request.max_messages, request.max_bytes, request.visibility_us,
        request.wait_us, _NOTIFY_ONLY if request.notify_only else 0, len(subscription),
        len(partitions),
    )  # fmt: skip
    return [b"".join([fixed, subscription, Struct(f"<{len(partitions)}I").pack(*partitions)])]


def decode_receive(body: memoryview) -> Receive:
    if len(body) < _RECEIVE.size:
        raise ProtocolError("a RECEIVE is cut short")
    (
        group, session, attachment, number, wanted, queue, max_messages, max_bytes, visibility,
        wait, flags, subscription_length, count,
    ) = _RECEIVE.unpack_from(body)  # fmt: skip
    begin = _RECEIVE.size + subscription_length
    if len(body) != begin + 4 * count or count > MAX_PARTITIONS:
        raise ProtocolError(f"a RECEIVE of {len(body)} bytes does not add up")
    if flags & ~_NOTIFY_ONLY or visibility < 0 or wait < 0:
        raise ProtocolError("a RECEIVE has unknown flags or a negative time")
    return Receive(
        group, session, attachment, number, wanted, queue,
        _text(body[_RECEIVE.size : begin], MAX_QUEUE_NAME), max_messages, max_bytes, visibility,
        wait, bool(flags), Struct(f"<{count}I").unpack_from(body, begin),
    )  # fmt: skip


def encode_delivered(reply: Delivered) -> list[Buffer]:
    parts = [_DELIVERED.pack(len(reply.deliveries), len(reply.batches))]
    for partition, delivery, deadline, ranges in reply.deliveries:
        parts.append(_DELIVERY.pack(partition, delivery, deadline, len(ranges)))
        parts += [_RANGE.pack(*each) for each in ranges]
    return _with_batches(parts, reply.batches)


def decode_delivered(body: memoryview) -> Delivered:
    if len(body) < _DELIVERED.size:
        raise ProtocolError("a DELIVERED is cut short")
    count, batches = _DELIVERED.unpack_from(body)
    position = _DELIVERED.size
    if count * _DELIVERY.size > len(body) - position:
        raise ProtocolError(f"a DELIVERED claims {count} deliveries in {len(body)} bytes")
    deliveries = []
    for _ in range(count):
        if len(body) - position < _DELIVERY.size:
            raise ProtocolError("a DELIVERED is cut short")
        partition, delivery, deadline, ranges = _DELIVERY.unpack_from(body, position)
        position += _DELIVERY.size
        end = position + ranges * _RANGE.size
        if end > len(body):
            raise ProtocolError(f"a delivery claims {ranges} ranges in {len(body)} bytes")
        held = tuple(map(Range._make, _RANGE.iter_unpack(body[position:end])))
        for start, stop, _ in held:
            if start >= stop:
                raise ProtocolError(f"a delivery has the empty range {start} to {stop}")
        deliveries.append(Delivery(partition, delivery, deadline, held))
        position = end
    return Delivered(tuple(deliveries), _decode_batches(body, position, batches))


# --- Settle --------------------------------------------------------------------------------------


def encode_settle(request: Settle) -> list[Buffer]:
    assert len(request.items) <= MAX_ACK_RANGES
    subscription, reason = request.subscription.encode(), request.reason.encode()
    flags = (_COUNTS if request.count else 0) | (_REJECTS if request.reject else 0)
    fixed = _SETTLE.pack(
        request.group, request.session, request.attachment, request.number, request.wanted,
        request.queue, request.action, flags, len(subscription), 0, len(reason), 0,
        len(request.items), request.time_us,
    )  # fmt: skip
    return [b"".join([fixed, subscription, reason, _pack_items(request.items)])]


def decode_settle(body: memoryview) -> Settle:
    if len(body) < _SETTLE.size:
        raise ProtocolError("a SETTLE is cut short")
    (
        group, session, attachment, number, wanted, queue, action, flags, subscription_length,
        zero, reason_length, zeros, items, time,
    ) = _SETTLE.unpack_from(body)  # fmt: skip
    reason = _SETTLE.size + subscription_length
    begin = reason + reason_length
    rejects = bool(flags & _REJECTS)
    known = ACK <= action <= EXTEND and flags <= _COUNTS | _REJECTS
    if not known or (rejects and action != NACK) or zero or zeros or time < 0:
        raise ProtocolError("a SETTLE has values that mean nothing")
    return Settle(
        group, session, attachment, number, wanted, queue,
        _text(body[_SETTLE.size : reason], MAX_QUEUE_NAME), action,
        _unpack_items(body, begin, items), time, bool(flags & _COUNTS),
        _text(body[reason:begin], MAX_REASON_BYTES), rejects,
    )  # fmt: skip


def encode_settled(reply: Settled) -> list[Buffer]:
    return [_COUNT.pack(len(reply.stale)) + _pack_items(reply.stale)]


def decode_settled(body: memoryview) -> Settled:
    if len(body) < _COUNT.size:
        raise ProtocolError("a SETTLED is cut short")
    (count,) = _COUNT.unpack_from(body)
    return Settled(_unpack_items(body, _COUNT.size, count))


def _pack_items(items: Sequence[Item]) -> bytes:
    return b"".join([_ITEM.pack(*item) for item in items])


def _unpack_items(body: memoryview, begin: int, count: int) -> tuple[Item, ...]:
    if len(body) != begin + count * _ITEM.size or count > MAX_ACK_RANGES:
        raise ProtocolError(f"{count} ranges do not fit a body of {len(body)} bytes")
    items = tuple(map(Item._make, _ITEM.iter_unpack(body[begin:])))
    for item in items:
        if item.start >= item.stop:
            raise ProtocolError(f"an empty range, {item.start} to {item.stop}")
    return items


# --- Read ----------------------------------------------------------------------------------------


def encode_read(request: Read) -> list[Buffer]:
    return [_READ.pack(*request)]


def decode_read(body: memoryview) -> Read:
    if len(body) != _READ.size:
        raise ProtocolError(f"a READ has {_READ.size} bytes, not {len(body)}")
    request = Read._make(_READ.unpack_from(body))
    if request.wait_us < 0:
        raise ProtocolError("a READ has a negative time")
    return request


def encode_batches(reply: Batches) -> list[Buffer]:
    head = _BATCHES.pack(reply.first_offset, reply.end_offset, len(reply.batches))
    return _with_batches([head], reply.batches)


def decode_batches(body: memoryview) -> Batches:
    if len(body) < _BATCHES.size:
        raise ProtocolError("a BATCHES is cut short")
    first_offset, end_offset, count = _BATCHES.unpack_from(body)
    return Batches(first_offset, end_offset, _decode_batches(body, _BATCHES.size, count))


# --- Stored batches, in DELIVERED and BATCHES ----------------------------------------------------


def _with_batches(parts: list[bytes], batches: Sequence[StoredBatch]) -> list[Buffer]:
    bodies: list[Buffer] = []
    for partition, base_offset, log_time, data in batches:
        parts.append(_BATCH.pack(partition, base_offset, log_time, len(data)))
        bodies.append(data)
    return [b"".join(parts), *bodies]


def _decode_batches(body: memoryview, begin: int, count: int) -> tuple[StoredBatch, ...]:
    position = begin + count * _BATCH.size
    if position > len(body):
        raise ProtocolError(f"a reply claims {count} batches in {len(body)} bytes")
    batches = []
    for partition, base_offset, log_time, length in _BATCH.iter_unpack(body[begin:position]):
        data = body[position : position + length]
        position += length
        batches.append(StoredBatch(partition, base_offset, log_time, data))
    if position != len(body):
        raise ProtocolError("the batches of a reply do not add up to its length")
    return tuple(batches)


def _text(view: memoryview, longest: int) -> str:
    if len(view) > longest:
        raise ProtocolError(f"a text of {len(view)} bytes; {longest} are allowed")
    try:
        return str(view, "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("a text is not UTF-8") from error
