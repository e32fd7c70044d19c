"""The state as bytes: items one after another, the same for equal states.

    +---------+---------+   +------+--------+----------------+        +----------+-------+
    | "rqqs"  | version |   | kind | length | cbor array     |  ...   | kind = 0 | items |
    | 4 bytes | u8      |   | u8   | u32    | length bytes   |        | u8       | u32   |
    +---------+---------+   +------+--------+----------------+        +----------+-------+

Kind 1 is the shared numbers, once; then partitions (2) and sessions (3), each in the order in which
they were made. Slices of a snapshot may be cut anywhere.

Rules:

1. The bytes depend on the state alone: heaps are sorted, derived values are left out, dicts keep the
   order of the log. So they can be digested.
2. Arrays of plain numbers are written as they lie in memory, little-endian.
3. What is read back is our own, under the storage's checksum; still, damage raises `Corrupted`.
"""

from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Any, Final

import cbor2

from raftq.errors import Corrupted, RaftqError, UnsupportedVersion
from raftq.ids import Index, QueueId, SessionId
from raftq.ids import Partition as PartitionNumber
from raftq.limits import FORMAT_VERSION
from raftq.queue.config import QueueConfig
from raftq.queue.dead_letters import DeadLetters, DeadSpan
from raftq.queue.message_bytes import MessageBytes
from raftq.queue.partition import Partition
from raftq.queue.producers import Producer
from raftq.queue.ranges import RangeSet
from raftq.queue.replies import decode_stored, encode_stored
from raftq.queue.sessions import Session
from raftq.queue.spans import Attempt, Span
from raftq.queue.state import Item, Shared, State
from raftq.queue.subscription import InFlight, Subscription

HEAD: Final = b"rqqs" + bytes((FORMAT_VERSION,))
_FRAME: Final = Struct("<BI")
_END, _SHARED, _PARTITION, _SESSION = range(4)


def tail(items: int) -> bytes:
    return _FRAME.pack(_END, items)


def encode_item(item: Item) -> bytes:
    if isinstance(item, Partition):
        kind, values = _PARTITION, _partition(item)
    elif isinstance(item, Session):
        kind, values = _SESSION, _session(item)
    else:
        kind, values = _SHARED, _shared(item)
    encoded = cbor2.dumps(values)
    return _FRAME.pack(kind, len(encoded)) + encoded


def _shared(shared: Shared) -> list[Any]:
    turns = [[queue, name, turn] for (queue, name), turn in shared.turns.items()]
    return [shared.next_delivery, turns, shared.dropped.encoded(), shared.released]


def _session(session: Session) -> list[Any]:
    replies = [
        [number, kind, encode_stored(reply)] for number, (kind, reply) in session.replies.items()
    ]
    numbers = (session.id, session.attachment, session.wanted, session.used, session.check_at)
    return [*numbers, replies]


def _partition(partition: Partition) -> list[Any]:
    return [
        partition.queue,
        partition.number,
        partition.version,
        partition.config.to_map(),
        partition.needed_from,
        partition.whole_from,
        partition.floor,
        partition.released,
        partition.messages,
        partition.message_bytes,
        partition.epoch,
        partition.sealed,
        partition.sizes.encoded(),
        [_producer(number, producer) for number, producer in partition.producers.items()],
        [_subscription(subscription) for subscription in partition.subscriptions.values()],
    ]


def _producer(number: int, producer: Producer) -> list[Any]:
    return [
        number,
        producer.epoch,
        producer.opener,
        producer.next_sequence,
        producer.last_offset,
        producer.used,
        producer.check_at,
        producer.window.tobytes(),
    ]


def _subscription(subscription: Subscription) -> list[Any]:
    return [
        subscription.name,
        subscription.start,
        subscription.next_new,
        subscription.settled,
        list(subscription.discarded.items()),
        [[reason, *gone.encoded()] for reason, gone in subscription.discarded_ranges.items()],
        list(subscription.released.items()),
        subscription.finished.encoded(),
        sorted(subscription.waiting),
        sorted(subscription.delayed),
        [
            [
                delivery,
                flight.session,
                flight.since,
                flight.visibility,
                flight.deadline,
                flight.postponed,
                flight.held,
            ]
            for delivery, flight in subscription.in_flight.items()
        ],
        list(subscription.dead),
    ]


def decode(slices: Iterable[bytes]) -> State:
    """Raises: Corrupted, UnsupportedVersion."""
    state = State()
    frames = _frames(slices)
    try:
        for kind, values in frames:
            if kind == _SHARED:
                state.shared = _read_shared(values)
            elif kind == _PARTITION:
                state.open_partition(_read_partition(values))
            elif kind == _SESSION:
                session = _read_session(values)
                state.sessions[session.id] = session
            else:
                raise Corrupted(f"a snapshot has an item of unknown kind {kind}")
        state.restored()
    except RaftqError:
        raise
    except Exception as error:
        raise Corrupted(f"a snapshot of a queue machine cannot be read: {error!r}") from error
    return state


def _frames(slices: Iterable[bytes]) -> Iterator[tuple[int, Any]]:
    reader = _Reader(iter(slices))
    head = reader.read(len(HEAD))
    if head[:-1] != HEAD[:-1]:
        raise Corrupted(f"a snapshot of a queue machine begins with {HEAD[:-1]!r}")
    if head != HEAD:
        raise UnsupportedVersion(f"snapshot format {head[-1]} is not known; upgrade raftq")
    count = 0
    while True:
        kind, length = _FRAME.unpack(reader.read(_FRAME.size))
        if kind == _END:
            break
        count += 1
        yield kind, cbor2.loads(reader.read(length))
    if length != count or not reader.at_end():
        raise Corrupted(
            f"a snapshot says it has {length} items, {count} are there, or more follows"
        )


class _Reader:
    """Bytes across the borders of slices."""

    def __init__(self, slices: Iterator[bytes]) -> None:
        self._slices = slices
        self._buffer = bytearray()

    def read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            more = next(self._slices, None)
            if more is None:
                raise Corrupted("a snapshot of a queue machine is cut short")
            self._buffer += more
        found = bytes(self._buffer[:size])
        del self._buffer[:size]
        return found

    def at_end(self) -> bool:
        return not self._buffer and not any(self._slices)


def _read_shared(values: Any) -> Shared:
    shared = Shared()
    shared.next_delivery, turns, dropped, (through, chain) = values
    shared.released = (Index(through), chain)
    shared.turns = {(QueueId(queue), name): turn for queue, name, turn in turns}
    shared.dropped = RangeSet(*dropped)
    return shared


def _read_session(values: Any) -> Session:
    number, attachment, wanted, used, check_at, replies = values
    session = Session(SessionId(number), used, check_at)
    session.attachment = attachment
    session.wanted = wanted
    session.replies = {number: (kind, decode_stored(reply)) for number, kind, reply in replies}
    return session


def _read_partition(values: Any) -> Partition:
    queue, number, version, config, needed_from, whole_from, floor, *rest = values
    released, messages, message_bytes, epoch, *rest = rest
    sealed, sizes, producers, subscriptions = rest
    partition = Partition(
        QueueId(queue), PartitionNumber(number), version, QueueConfig.from_map(config)
    )
    for encoded in subscriptions:
        partition.add(_read_subscription(partition, encoded))
    partition.needed_from = needed_from
    partition.whole_from = whole_from
    partition.floor = floor
    partition.released = released
    partition.messages = messages
    partition.message_bytes = message_bytes
    partition.epoch = epoch
    partition.sealed = sealed
    offsets, positions, (end_offset, end_position), thinned = sizes
    partition.sizes = MessageBytes(offsets, positions, (end_offset, end_position), thinned)
    partition.producers = {encoded[0]: _read_producer(encoded) for encoded in producers}
    return partition


def _read_producer(values: Any) -> Producer:
    _, epoch, opener, next_sequence, last_offset, used, check_at, window = values
    producer = Producer(epoch, used, check_at)
    producer.opener = opener
    producer.next_sequence = next_sequence
    producer.last_offset = last_offset
    producer.window.frombytes(window)
    return producer


def _read_subscription(partition: Partition, values: Any) -> Subscription:
    name, start, next_new, settled, discarded, ranges, released, *rest = values
    finished, waiting, delayed, flights, dead = rest
    subscription = Subscription(partition.queue, name, start)
    subscription.next_new = next_new
    subscription.settled = settled
    subscription.discarded = dict(discarded)
    subscription.discarded_ranges = {reason: RangeSet(*gone) for reason, *gone in ranges}
    subscription.released = dict(released)
    subscription.finished = RangeSet(*finished)
    for span in waiting:
        subscription.wait(_read_span(span))
    for due, span in delayed:
        subscription.delay(due, _read_span(span))
    for delivery, session, since, visibility, deadline, postponed, held in flights:
        flight = InFlight(
            session,
            since=since,
            visibility=visibility,
            deadline=deadline,
            held=[_read_span(span) for span in held],
        )
        flight.postponed = postponed
        subscription.in_flight[delivery] = flight
        subscription.in_flight_messages += sum(span.stop - span.start for span in flight.held)
    subscription.dead = DeadLetters(
        DeadSpan._make([*values[:-1], _read_history(values[-1])]) for values in dead
    )
    return subscription


def _read_span(values: Any) -> Span:
    start, stop, delivery_count, failures, history = values
    return Span(start, stop, delivery_count, failures, _read_history(history))


def _read_history(attempts: Any) -> tuple[Attempt, ...]:
    return tuple(Attempt(*attempt) for attempt in attempts)
