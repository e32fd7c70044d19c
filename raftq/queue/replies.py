"""What commands are answered with, and how a session's stored replies are kept.

A refusal is a `RaftqError` in the place of the reply. Effects, for the leader alone, are in
`effects`.
"""

from typing import Any, Final, NamedTuple

from raftq.errors import RaftqError, from_code
from raftq.ids import Index, Micros, Offset, Partition, ProducerId, QueueId, SessionId


class Published(NamedTuple):
    """The batch has its offsets; `duplicate` when it had them already."""

    base_offset: Offset
    count: int  # type: ignore[assignment]  # Hides tuple.count, which nobody asks a reply for.
    duplicate: bool


class Configured(NamedTuple):
    """A configuration is in force."""

    version: int
    """The version in force: higher than the one asked for when that came late."""


class Dropped(NamedTuple):
    """The partition is closed here for ever."""


class Ticked(NamedTuple):
    """What was due has happened."""


class Subscribed(NamedTuple):
    """The subscription exists."""

    start: int
    """The first offset of the subscription, also where it existed before."""


class Unsubscribed(NamedTuple):
    """The subscription does not exist any more."""


class SessionOpened(NamedTuple):
    """A new session, at its first attachment, 0."""

    session: SessionId


class Range(NamedTuple):
    """Messages [start, stop) that have been handed out `delivery_count` times, this one included."""

    start: int
    stop: int
    delivery_count: int


class Delivery(NamedTuple):
    """One handing-out of ranges of one partition to one session."""

    delivery: int
    queue: QueueId
    partition: Partition
    subscription: str
    deadline: Micros
    ranges: tuple[Range, ...]


class Attached(NamedTuple):
    """The session listens to this attachment now."""

    session: SessionId
    attachment: int
    held: tuple[Delivery, ...]
    """Deliveries numbered above the last one that the client has seen, as far as still held."""


class Released(NamedTuple):
    """A session gave back what it held."""

    messages: int
    """Messages given back."""


class ProducerOpened(NamedTuple):
    """What is known of the producer; if `opened`, it may publish with this epoch, and older ones are fenced."""

    producer: ProducerId
    epoch: int
    last_sequence: int
    """Sequence of the last message that this producer published, -1 if none is known."""
    last_offset: int
    """Its offset, or -1."""
    opened: bool
    """False: the epoch is another's, and nothing was changed."""


class TakerResult(NamedTuple):
    """What one taker got. Nothing and no error: it stays a watch, and its number stays unused."""

    session: SessionId
    number: int
    deliveries: tuple[Delivery, ...]
    error: RaftqError | None = None


class Delivered(NamedTuple):
    """What the takers got."""

    results: tuple[TakerResult, ...]
    """One for each taker, in their order."""


class Settled(NamedTuple):
    """An ack, nack or extend took effect, except on what is named as stale."""

    stale: tuple[tuple[QueueId, Partition, int, int, int], ...]
    """(queue, partition, delivery, start, stop) not held by that delivery any more."""


class Purged(NamedTuple):
    """Messages were discarded."""

    count: int  # type: ignore[assignment]  # As in Published.


class Redriven(NamedTuple):
    """Dead letters that became ready again, or would have, in a dry run."""

    count: int  # type: ignore[assignment]  # As in Published.
    ranges: tuple[tuple[int, int], ...]


class HistoryReleased(NamedTuple):
    """Entries may go, and are summed up by the command that said so."""

    through: Index
    messages: int
    """Messages whose bodies may go with them, of partitions that are still here."""


class LogsExpired(NamedTuple):
    """Partitions that are logs have forgotten what is older than they keep."""

    messages: int
    """Messages discarded by that, counted for each subscription: the settled ones are not in it."""


class Given(NamedTuple):
    """What a session remembers of a receive: the deliveries themselves are in the subscriptions."""

    deliveries: tuple[int, ...]


StoredReply = Settled | Subscribed | Unsubscribed | Purged | Redriven | Given | RaftqError

_STORED: Final[tuple[type[Any], ...]] = (
    Settled,
    Subscribed,
    Unsubscribed,
    Purged,
    Redriven,
    Given,
)


def encode_stored(reply: StoredReply) -> list[Any]:
    """Plain lists, strings and integers, for a snapshot."""
    if isinstance(reply, RaftqError):
        return [len(_STORED), reply.code, str(reply), reply.outcome]
    return [_STORED.index(type(reply)), *reply]


def decode_stored(encoded: list[Any]) -> StoredReply:
    kind, *values = encoded
    if kind == len(_STORED):
        code, message, outcome = values
        return from_code(code, message, outcome=outcome)
    reply: StoredReply = _STORED[kind](*map(_as_tuple, values))
    return reply


def _as_tuple(value: Any) -> Any:
    return tuple(map(_as_tuple, value)) if isinstance(value, list) else value
