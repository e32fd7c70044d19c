"""Reading the headers of commands; the layouts stand in `command_layout`.

Rules:

1. A count is compared with the bytes there are before anything is read by it.
2. Only ProtocolError, UnsupportedVersion and InvalidArgument are raised, whatever the bytes are.
3. What a stranger may exaggerate (messages, bytes and visibility of a receive) is cut to its
   bound; what would mean something else when cut is refused.
4. `check` costs the same for one item and for ten thousand: it is for the leader, which would
   otherwise read every command twice.
"""

from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class, only named like a module.
from typing import Any, Final

import msgspec

from raftq.errors import InvalidArgument, ProtocolError, UnsupportedVersion
from raftq.ids import Index, Offset, Partition, ProducerId, QueueId, SessionId
from raftq.limits import (
    DELAY_MICROS_MAX,
    FORMAT_VERSION,
    MAX_ACK_RANGES,
    MAX_COMMANDS,
    MAX_PARTITIONS,
    MAX_REASON_BYTES,
    MAX_RECEIVE_BYTES,
    MAX_RECEIVE_MESSAGES,
    VISIBILITY_MICROS_MAX,
)
from raftq.machine import Bound
from raftq.queue import command_layout as layout
from raftq.queue import commands
from raftq.queue.commands import By, Command, Item, Taker
from raftq.queue.config import DEFAULT_SUBSCRIPTION, QueueConfig, check_subscription_name
from raftq.queue.retention_commands import Expire, Outcome, ReleasedRange, ReleaseHistory

_ConfigMap = dict[str, int | bool | str]
OFFSET_MAX: Final = 1 << 62
"""No partition grows this long; offsets above it are lies, and sums with them stay in 64 bits."""


def _unpack(fields: Struct, header: bytes, position: int = 0) -> tuple[Any, ...]:
    try:
        return fields.unpack_from(header, position)
    except StructError as error:
        raise ProtocolError(f"a command of {len(header)} bytes is cut short") from error


def _exactly(fields: Struct, header: bytes) -> tuple[int, ...]:
    if len(header) != fields.size:
        raise ProtocolError(f"a command has {len(header)} bytes instead of {fields.size}")
    return fields.unpack(header)


def _names(header: bytes, position: int, count: int) -> tuple[list[str], int]:
    """`count` names from `position` on behind the default one, and where they end."""
    names = [DEFAULT_SUBSCRIPTION]
    for _ in range(count):
        if position >= len(header):
            raise ProtocolError("a command names more than it holds")
        end = position + 1 + header[position]
        if end > len(header):
            raise ProtocolError("a name in a command is cut short")
        try:
            names.append(header[position + 1 : end].decode())
        except UnicodeDecodeError as error:
            raise ProtocolError("a name in a command is not UTF-8") from error
        position = end
    return names, position


def _end(header: bytes, position: int) -> None:
    if position != len(header):
        raise ProtocolError(f"a command has {len(header) - position} bytes behind its end")


def _by(values: tuple[int, ...]) -> By:
    _, _, _, _, session, attachment, number, wanted = values
    if wanted > number:
        raise InvalidArgument(f"a session wants replies from number {wanted} on, but asks {number}")
    return By(SessionId(session), attachment, number, wanted)


def _items_shape(header: bytes, extra: int) -> tuple[tuple[int, ...], int]:
    """The fixed part, and where the items end."""
    values = _unpack(layout.BY_STRUCT, header)
    count = values[3]
    end = layout.BY_STRUCT.size + extra + count * layout.ITEM_STRUCT.size
    if not 1 <= count <= MAX_ACK_RANGES or end > len(header):
        raise ProtocolError(f"a command claims {count} ranges in {len(header)} bytes")
    return values, end


def _items(header: bytes, extra: int) -> tuple[By, list[Item], int]:
    values, end = _items_shape(header, extra)
    by = _by(values)
    begin = layout.BY_STRUCT.size + extra
    names, after = _names(header, end, values[2])
    items: list[Item] = []
    for queue, partition, name, delivery, start, stop in layout.ITEM_STRUCT.iter_unpack(
        header[begin:end]
    ):
        if start >= stop or stop > OFFSET_MAX or name >= len(names):
            raise InvalidArgument(
                f"a range of queue {queue}, partition {partition} is empty, too high or unnamed: "
                f"{start} to {stop}"
            )
        items.append((queue, partition, names[name], delivery, start, stop))
    return by, items, after


def _read_ack(header: bytes) -> commands.Ack:
    by, items, end = _items(header, 0)
    _end(header, end)
    return commands.Ack(by, items)


def _read_nack(header: bytes) -> commands.Nack:
    by, items, end = _items(header, layout.NACK_STRUCT.size)
    delay, flags, length = _unpack(layout.NACK_STRUCT, header, layout.BY_STRUCT.size)
    if not 0 <= delay <= DELAY_MICROS_MAX:
        raise InvalidArgument(f"a delay is 0 to {DELAY_MICROS_MAX} us, not {delay}")
    if flags > 3 or length > MAX_REASON_BYTES:
        raise ProtocolError(f"a nack has flags {flags} and a reason of {length} bytes")
    _end(header, end + length)
    # A reason may have been cut to its bound inside a character: that is no reason to refuse it.
    reason = header[end:].decode(errors="replace")
    return commands.Nack(by, items, delay, bool(flags & 1), bool(flags & 2), reason)


def _read_extend(header: bytes) -> commands.Extend:
    by, items, end = _items(header, layout.EXTEND_STRUCT.size)
    (visibility,) = _unpack(layout.EXTEND_STRUCT, header, layout.BY_STRUCT.size)
    _end(header, end)
    if not 1 <= visibility <= VISIBILITY_MICROS_MAX:
        raise InvalidArgument(f"a visibility is 1 to {VISIBILITY_MICROS_MAX} us, not {visibility}")
    return commands.Extend(by, items, visibility)


def _deliver_shape(header: bytes) -> tuple[int, int, int]:
    """Numbers of names and takers, and where the takers end."""
    _, _, names, count = _unpack(layout.DELIVER_STRUCT, header)
    end = layout.DELIVER_STRUCT.size + count * layout.TAKER_STRUCT.size
    if not 1 <= count <= MAX_COMMANDS or end > len(header):
        raise ProtocolError(f"a deliver claims {count} takers in {len(header)} bytes")
    return names, count, end


def _read_deliver(header: bytes) -> commands.Deliver:
    name_count, _, end = _deliver_shape(header)
    rows = list(layout.TAKER_STRUCT.iter_unpack(header[layout.DELIVER_STRUCT.size : end]))
    partitions_end = end + 4 * sum([row[-1] for row in rows])
    if partitions_end > len(header):
        raise ProtocolError("a deliver names more partitions than it holds")
    names, after = _names(header, partitions_end, name_count)
    _end(header, after)
    numbers = memoryview(header[end:partitions_end]).cast("I")
    takers = []
    for row in rows:
        session, attachment, name, number, wanted, queue, messages, size, visibility, count = row
        if name >= len(names) or count > MAX_PARTITIONS or wanted > number or visibility < 0:
            raise InvalidArgument(
                f"a taker of session {session} has no subscription, more than {MAX_PARTITIONS} "
                "partitions, wants replies it has not asked for, or a negative visibility"
            )
        partitions: tuple[Partition, ...] = ()
        if count:
            partitions = tuple(map(Partition, numbers[:count]))
            numbers = numbers[count:]
        takers.append(
            Taker(
                SessionId(session),
                attachment,
                number,
                wanted,
                QueueId(queue),
                names[name],
                min(max(messages, 1), MAX_RECEIVE_MESSAGES),
                min(max(size, 1), MAX_RECEIVE_BYTES),
                min(visibility, VISIBILITY_MICROS_MAX),
                partitions,
            )
        )
    return commands.Deliver(tuple(takers))


def _where(header: bytes, fields: Struct, names: int) -> tuple[By, tuple[int, ...], list[str], int]:
    """The parts of a command on one subscription, and where its names end."""
    values = _unpack(layout.BY_STRUCT, header)
    if values[2] != names or values[3]:
        raise ProtocolError(f"a command on one subscription has {values[2]} names")
    body = _unpack(fields, header, layout.BY_STRUCT.size)
    found, end = _names(header, layout.BY_STRUCT.size + fields.size, names)
    return _by(values), body, found[1:], end


def _read_subscribe(header: bytes) -> commands.Subscribe:
    by, (queue, partition, origin, offset), (name,), end = _where(
        header, layout.SUBSCRIBE_STRUCT, 1
    )
    _end(header, end)
    if origin > 2 or offset > OFFSET_MAX:
        raise InvalidArgument("a subscription starts at earliest, latest or an offset")
    start = (commands.EARLIEST, commands.LATEST, offset)[origin]
    name = check_subscription_name(name)
    return commands.Subscribe(by, QueueId(queue), Partition(partition), name, start)


def _on_one(
    kind: type[commands.Unsubscribe] | type[commands.Purge] | type[commands.PurgeDead],
) -> Callable[[bytes], Command]:
    def read(header: bytes) -> Command:
        by, (queue, partition), (name,), end = _where(header, layout.WHERE_STRUCT, 1)
        _end(header, end)
        return kind(by, QueueId(queue), Partition(partition), name)

    return read


def _read_redrive(header: bytes) -> commands.Redrive:
    by, (queue, partition, flags, limit), (name, reason), end = _where(
        header, layout.REDRIVE_STRUCT, 2
    )
    count, odd = divmod(len(header) - end, layout.RANGE_STRUCT.size)
    if odd or count > MAX_ACK_RANGES or flags > 1:
        raise ProtocolError(f"a redrive has {len(header) - end} bytes of ranges, or unknown flags")
    ranges = tuple(layout.RANGE_STRUCT.iter_unpack(header[end:]))
    for start, stop in ranges:
        if start >= stop or stop > OFFSET_MAX:
            raise InvalidArgument(f"a range is empty or too high: {start} to {stop}")
    return commands.Redrive(
        by, QueueId(queue), Partition(partition), name, reason, ranges, limit, bool(flags)
    )


def _read_tick(header: bytes) -> commands.Tick:
    _exactly(layout.SHORT_STRUCT, header)
    return commands.Tick()


def _read_open_session(header: bytes) -> commands.OpenSession:
    _exactly(layout.SHORT_STRUCT, header)
    return commands.OpenSession()


def _read_configure(header: bytes) -> commands.Configure:
    _, _, sealed, queue, partition, version = _unpack(layout.CONFIGURE_STRUCT, header)
    if sealed > 1:
        raise ProtocolError(f"a partition is sealed or not, {sealed} is neither")
    try:
        values = msgspec.json.decode(header[layout.CONFIGURE_STRUCT.size :], type=_ConfigMap)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProtocolError(f"a configuration is no flat JSON object: {error}") from error
    config = QueueConfig.from_map(values)
    if partition >= config.partitions:
        raise InvalidArgument(
            f"queue {queue} has {config.partitions} partitions, there is no partition {partition}"
        )
    return commands.Configure(QueueId(queue), Partition(partition), version, config, bool(sealed))


def _read_drop(header: bytes) -> commands.Drop:
    _, _, force, queue, partition = _exactly(layout.DROP_STRUCT, header)
    return commands.Drop(QueueId(queue), Partition(partition), bool(force))


def _read_attach(header: bytes) -> commands.Attach:
    _, _, attachment, session, last = _exactly(layout.ATTACH_STRUCT, header)
    return commands.Attach(SessionId(session), attachment, last)


def _read_release(header: bytes) -> commands.Release:
    _, _, goodbye, attachment, session = _exactly(layout.RELEASE_STRUCT, header)
    return commands.Release(SessionId(session), attachment, bool(goodbye))


def _read_open_producer(header: bytes) -> commands.OpenProducer:
    _, _, queue, partition, epoch, producer, opener = _exactly(layout.OPEN_PRODUCER_STRUCT, header)
    if not producer or not opener:
        raise InvalidArgument("producer 0 and opener 0 are nobody: draw a number")
    return commands.OpenProducer(
        QueueId(queue), Partition(partition), ProducerId(producer), epoch, opener
    )


def _read_release_history(header: bytes) -> ReleaseHistory:
    head = layout.RELEASE_HISTORY_STRUCT
    _, _, name_count, count, after, chain_after, through, chain = _unpack(head, header)
    outcomes_at = head.size + count * layout.RELEASED_STRUCT.size
    if outcomes_at > len(header):
        raise ProtocolError(f"a release claims {count} ranges in {len(header)} bytes")
    rows = list(layout.RELEASED_STRUCT.iter_unpack(header[head.size : outcomes_at]))
    end = outcomes_at + sum([row[4] for row in rows]) * layout.OUTCOME_STRUCT.size
    if end > len(header):
        raise ProtocolError(f"a release claims more outcomes than there are in {len(header)} bytes")
    names, after_names = _names(header, end, name_count)
    _end(header, after_names)
    found = layout.OUTCOME_STRUCT.iter_unpack(header[outcomes_at:end])
    ranges = []
    for queue, partition, before, offset, outcome_count in rows:
        numbered = list(islice(found, outcome_count))
        if any(
            subscription >= len(names) or name >= len(names) for subscription, name, _ in numbered
        ):
            raise InvalidArgument("an outcome of a release has no name")
        outcomes = [Outcome(names[row[0]], names[row[1]], row[2]) for row in numbered]
        where = (QueueId(queue), Partition(partition), Offset(before), Offset(offset))
        ranges.append(ReleasedRange(*where, tuple(outcomes)))
    _ascending([(row.queue, row.partition, row.offset) for row in ranges])
    return ReleaseHistory(Index(after), chain_after, Index(through), chain, tuple(ranges))


def _read_expire(header: bytes) -> Expire:
    _, _, count = _unpack(layout.EXPIRE_STRUCT, header)
    if len(header) != layout.EXPIRE_STRUCT.size + count * layout.BOUND_STRUCT.size:
        raise ProtocolError(f"an expiry claims {count} bounds in {len(header)} bytes")
    rows = layout.BOUND_STRUCT.iter_unpack(header[layout.EXPIRE_STRUCT.size :])
    bounds = tuple(
        Bound(QueueId(queue), Partition(partition), Offset(offset))
        for queue, partition, offset in rows
    )
    _ascending(bounds)
    return Expire(bounds)


def _ascending(bounds: Sequence[tuple[int, int, int]]) -> None:
    """Each partition once, in one order: the same content has the same bytes."""
    places = [bound[:2] for bound in bounds]
    if any(first >= second for first, second in pairwise(places)):
        raise InvalidArgument("partitions are named once each, ascending")
    if any(bound[2] > OFFSET_MAX for bound in bounds):
        raise InvalidArgument(f"an offset is at most {OFFSET_MAX}")


_READERS: Final[dict[int, Callable[[bytes], Command]]] = {
    layout.TICK: _read_tick,
    layout.CONFIGURE: _read_configure,
    layout.DROP: _read_drop,
    layout.SUBSCRIBE: _read_subscribe,
    layout.UNSUBSCRIBE: _on_one(commands.Unsubscribe),
    layout.OPEN_SESSION: _read_open_session,
    layout.ATTACH: _read_attach,
    layout.RELEASE: _read_release,
    layout.OPEN_PRODUCER: _read_open_producer,
    layout.DELIVER: _read_deliver,
    layout.ACK: _read_ack,
    layout.NACK: _read_nack,
    layout.EXTEND: _read_extend,
    layout.PURGE: _on_one(commands.Purge),
    layout.REDRIVE: _read_redrive,
    layout.PURGE_DEAD: _on_one(commands.PurgeDead),
    layout.RELEASE_HISTORY: _read_release_history,
    layout.EXPIRE: _read_expire,
}

_SHAPES: Final[dict[int, Callable[[bytes], object]]] = {
    layout.DELIVER: _deliver_shape,
    layout.ACK: lambda header: _items_shape(header, 0),
    layout.NACK: lambda header: _items_shape(header, layout.NACK_STRUCT.size),
    layout.EXTEND: lambda header: _items_shape(header, layout.EXTEND_STRUCT.size),
}


def decode(header: bytes) -> Command:
    """The command behind any header but PUBLISH.

    Raises: ProtocolError, UnsupportedVersion, InvalidArgument.
    """
    reader = _READERS.get(_kind(header))
    if reader is None:
        raise ProtocolError(f"a command of unknown kind {header[0]}; upgrade raftq")
    return reader(header)


def check(header: bytes) -> Command | None:
    """Refuses what is not worth a place in the log; gives the command where it had to be read.

    Raises: ProtocolError, UnsupportedVersion, InvalidArgument.
    """
    shape = _SHAPES.get(_kind(header))
    if shape is None:
        return decode(header)
    shape(header)
    return None


def _kind(header: bytes) -> int:
    if len(header) < 2:
        raise ProtocolError("a command has at least a kind and a version")
    if header[1] != FORMAT_VERSION:
        raise UnsupportedVersion(
            f"command format {header[1]} is not known, only {FORMAT_VERSION}; upgrade raftq"
        )
    return header[0]
