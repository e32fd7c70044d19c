"""The commands of the queue machine, and how their headers are written.

What a command means stands in the package's docstring, its bytes in `command_layout`. Encoders raise
InvalidArgument for what does not fit its field; what a header may mean is judged where it is read,
in `command_reader`.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from raftq.errors import InvalidArgument
from raftq.ids import Partition, ProducerId, QueueId, SessionId
from raftq.limits import FORMAT_VERSION, MAX_REASON_BYTES, MAX_RECEIVE_BYTES
from raftq.queue import command_layout as layout
from raftq.queue.command_packing import Names, packed
from raftq.queue.config import DEFAULT_SUBSCRIPTION, QueueConfig
from raftq.queue.retention_commands import Expire, ReleaseHistory

NO_SESSION: Final = SessionId(0)
"""Stands for "not retry-safe" in commands that an operator repeats by hand. Never in a receive."""
EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Item = tuple[int, int, str, int, int, int]
"""(queue, partition, subscription, delivery, start, stop)"""


class By(NamedTuple):
    """Who asks, and which of its commands this is."""

    session: SessionId
    attachment: int
    number: int
    wanted: int
    """The lowest number whose reply is still wanted. Invariant: wanted <= number."""


class Tick(NamedTuple):
    """Log time passes: what is due happens."""


class Configure(NamedTuple):
    """A partition opens here or changes. Sealed: it is empty, and takes nothing until it is opened."""

    queue: QueueId
    partition: Partition
    version: int
    config: QueueConfig
    sealed: bool = False


class Drop(NamedTuple):
    """A partition closes for ever; unless forced only when it is empty."""

    queue: QueueId
    partition: Partition
    force: bool


class OpenSession(NamedTuple):
    """Its place in the log becomes the identity of the session."""


class Attach(NamedTuple):
    """A client that has reconnected takes its session over."""

    session: SessionId
    attachment: int
    last_delivery: int


class Release(NamedTuple):
    """A session has lost its socket, with or without a goodbye."""

    session: SessionId
    attachment: int
    goodbye: bool


class OpenProducer(NamedTuple):
    """A producer starts anew, and fences all that was sent before; `raftq.queue.producers` has the rules."""

    queue: QueueId
    partition: Partition
    producer: ProducerId
    epoch: int
    """The one that it believes to be in force: of another it is only told."""
    opener: int
    """A number that nobody else draws: it tells a repetition from somebody else's opening."""


class Taker(NamedTuple):
    """One receive; `visibility_us` 0 is the queue's own, no partitions are all that are here."""

    session: SessionId
    attachment: int
    number: int
    wanted: int
    queue: QueueId
    subscription: str
    max_messages: int
    max_bytes: int = MAX_RECEIVE_BYTES
    visibility_us: int = 0
    partitions: tuple[Partition, ...] = ()


class Deliver(NamedTuple):
    """Who wants messages, the longest waiting first; apply picks."""

    takers: tuple[Taker, ...]


class Ack(NamedTuple):
    """Messages are done."""

    by: By
    items: list[Item]


class Nack(NamedTuple):
    """Messages are given back: at once, after a delay, or as dead letters."""

    by: By
    items: list[Item]
    delay: int
    counts: bool
    reject: bool
    reason: str


class Extend(NamedTuple):
    """Deliveries stay with their session for longer."""

    by: By
    items: list[Item]
    visibility: int


class Subscribe(NamedTuple):
    """A subscription is made, or found."""

    by: By
    queue: QueueId
    partition: Partition
    subscription: str
    start: str | int


class Unsubscribe(NamedTuple):
    """A subscription ends, with all it holds."""

    by: By
    queue: QueueId
    partition: Partition
    subscription: str


class Purge(NamedTuple):
    """What is ready or delayed is discarded."""

    by: By
    queue: QueueId
    partition: Partition
    subscription: str


class PurgeDead(NamedTuple):
    """Dead letters are discarded."""

    by: By
    queue: QueueId
    partition: Partition
    subscription: str


class Redrive(NamedTuple):
    """Dead letters with this reason ("" is any) and within these ranges (none are all)."""

    by: By
    queue: QueueId
    partition: Partition
    subscription: str
    reason: str
    ranges: tuple[tuple[int, int], ...]
    limit: int
    dry_run: bool


Command = (
    Tick
    | Configure
    | Drop
    | OpenSession
    | Attach
    | Release
    | OpenProducer
    | Deliver
    | Ack
    | Nack
    | Extend
    | Subscribe
    | Unsubscribe
    | Purge
    | PurgeDead
    | Redrive
    | ReleaseHistory
    | Expire
)


def encode_tick() -> bytes:
    return layout.SHORT_STRUCT.pack(layout.TICK, FORMAT_VERSION)


def encode_configure(
    queue: QueueId,
    partition: Partition,
    version: int,
    config: QueueConfig,
    *,
    sealed: bool = False,
) -> bytes:
    head = packed(
        layout.CONFIGURE_STRUCT, layout.CONFIGURE, FORMAT_VERSION, sealed, queue, partition, version
    )
    return head + msgspec.json.encode(config.to_map())


def encode_drop(queue: QueueId, partition: Partition, *, force: bool) -> bytes:
    return packed(layout.DROP_STRUCT, layout.DROP, FORMAT_VERSION, force, queue, partition)


def encode_open_session() -> bytes:
    return layout.SHORT_STRUCT.pack(layout.OPEN_SESSION, FORMAT_VERSION)


def encode_attach(session: SessionId, attachment: int, last_delivery: int) -> bytes:
    return packed(
        layout.ATTACH_STRUCT, layout.ATTACH, FORMAT_VERSION, attachment, session, last_delivery
    )


def encode_release(session: SessionId, attachment: int, *, goodbye: bool) -> bytes:
    return packed(
        layout.RELEASE_STRUCT, layout.RELEASE, FORMAT_VERSION, goodbye, attachment, session
    )


def encode_open_producer(
    queue: QueueId, partition: Partition, producer: ProducerId, *, epoch: int, opener: int
) -> bytes:
    values = (queue, partition, epoch, producer, opener)
    return packed(layout.OPEN_PRODUCER_STRUCT, layout.OPEN_PRODUCER, FORMAT_VERSION, *values)


def encode_deliver(takers: Iterable[Taker]) -> bytes:
    names = Names()
    rows, partitions, count = [], [], 0
    for taker in takers:
        count += 1
        rows.append(
            packed(
                layout.TAKER_STRUCT,
                taker.session,
                taker.attachment,
                names.number(taker.subscription),
                taker.number,
                taker.wanted,
                taker.queue,
                taker.max_messages,
                taker.max_bytes,
                taker.visibility_us,
                len(taker.partitions),
            )
        )
        partitions += [partition.to_bytes(4, "little") for partition in taker.partitions]
    head = packed(layout.DELIVER_STRUCT, layout.DELIVER, FORMAT_VERSION, len(names), count)
    return b"".join((head, *rows, *partitions, names.encoded()))


def _by(kind: int, by: By, names: int, count: int = 0) -> bytes:
    session, attachment, number, wanted = by
    return packed(
        layout.BY_STRUCT, kind, FORMAT_VERSION, names, count, session, attachment, number, wanted
    )


def _ranges(kind: int, by: By, extra: bytes, items: Iterable[Item], reason: bytes = b"") -> bytes:
    names = Names()
    rows = [
        packed(layout.ITEM_STRUCT, queue, partition, names.number(name), delivery, start, stop)
        for queue, partition, name, delivery, start, stop in items
    ]
    head = _by(kind, by, len(names), len(rows))
    return b"".join((head, extra, *rows, names.encoded(), reason))


def encode_ack(
    session: SessionId, attachment: int, number: int, wanted: int, items: Iterable[Item]
) -> bytes:
    return _ranges(layout.ACK, By(session, attachment, number, wanted), b"", items)


def encode_nack(
    session: SessionId,
    attachment: int,
    number: int,
    wanted: int,
    items: Iterable[Item],
    *,
    delay_us: int = 0,
    reason: str = "",
    count: bool = True,
    reject: bool = False,
) -> bytes:
    """`count=False` spares the delivery limit; `reject` makes dead letters at once."""
    text = reason.encode(errors="replace")[:MAX_REASON_BYTES]
    extra = packed(layout.NACK_STRUCT, delay_us, count | reject << 1, len(text))
    return _ranges(layout.NACK, By(session, attachment, number, wanted), extra, items, text)


def encode_extend(
    session: SessionId,
    attachment: int,
    number: int,
    wanted: int,
    items: Iterable[Item],
    *,
    visibility_us: int,
) -> bytes:
    extra = packed(layout.EXTEND_STRUCT, visibility_us)
    return _ranges(layout.EXTEND, By(session, attachment, number, wanted), extra, items)


def _named(kind: int, by: By, body: bytes, *texts: str) -> bytes:
    names = Names()
    for text in texts:
        names.add(text)
    return b"".join((_by(kind, by, len(names)), body, names.encoded()))


def encode_subscribe(
    session: SessionId,
    attachment: int,
    number: int,
    wanted: int,
    *,
    queue: QueueId,
    partition: Partition,
    subscription: str,
    start: str | int = EARLIEST,
) -> bytes:
    """`start` is "earliest", "latest" or an offset."""
    origins = {EARLIEST: 0, LATEST: 1}
    if isinstance(start, str) and start not in origins:
        raise InvalidArgument(f"a subscription starts at earliest, latest or an offset: {start!r}")
    origin, offset = (origins[start], 0) if isinstance(start, str) else (2, start)
    body = packed(layout.SUBSCRIBE_STRUCT, queue, partition, origin, offset)
    return _named(layout.SUBSCRIBE, By(session, attachment, number, wanted), body, subscription)


def encode_unsubscribe(
    session: SessionId,
    attachment: int,
    number: int,
    wanted: int,
    *,
    queue: QueueId,
    partition: Partition,
    subscription: str,
) -> bytes:
    body = packed(layout.WHERE_STRUCT, queue, partition)
    return _named(layout.UNSUBSCRIBE, By(session, attachment, number, wanted), body, subscription)


def encode_purge(
    session: SessionId,
    attachment: int,
    number: int,
    wanted: int,
    *,
    queue: QueueId,
    partition: Partition,
    subscription: str = DEFAULT_SUBSCRIPTION,
    dead: bool = False,
) -> bytes:
    """Discards what is ready or delayed or, with `dead`, the dead letters."""
    kind = layout.PURGE_DEAD if dead else layout.PURGE
    body = packed(layout.WHERE_STRUCT, queue, partition)
    return _named(kind, By(session, attachment, number, wanted), body, subscription)


def encode_redrive(
    session: SessionId,
    attachment: int,
    number: int,
    wanted: int,
    *,
    queue: QueueId,
    partition: Partition,
    subscription: str = DEFAULT_SUBSCRIPTION,
    reason: str = "",
    ranges: Iterable[tuple[int, int]] = (),
    limit: int = 0,
    dry_run: bool = False,
) -> bytes:
    """Up to `limit` (0: all) dead letters with this reason ("": any) and in `ranges` (none: all)."""
    body = packed(layout.REDRIVE_STRUCT, queue, partition, dry_run, limit)
    head = _named(
        layout.REDRIVE, By(session, attachment, number, wanted), body, subscription, reason
    )
    return head + b"".join(packed(layout.RANGE_STRUCT, start, stop) for start, stop in ranges)
