"""What is received. A message is three slots; the rest is shared by all of its batch, or cut out of
it when it is asked for.

Rules:

1. Batches are copied out of the receive chunk once, whole, and verified before anything is read.
2. A message knows its delivery (`Source`), so that it can be settled by whoever holds it.
"""

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import NamedTuple, Protocol, TypeVar

from raftq.batch import Batch, HeaderValue
from raftq.client.ports import SECOND_US
from raftq.errors import ProtocolError
from raftq.ids import GroupId, Offset, Partition, QueueId, SessionId
from raftq.wire.requests import Delivered, StoredBatch


class DeliveryReceipt(NamedTuple):
    """Names one message of one delivery: what ack, nack and extend go by."""

    queue: str
    subscription: str
    group: GroupId
    session: SessionId
    partition: Partition
    delivery: int
    offset: Offset


class Target(NamedTuple):
    """From where a receive took: the same for all its messages."""

    queue: str
    queue_id: QueueId
    subscription: str
    group: GroupId
    session: SessionId


class Settler(Protocol):
    """Who settles messages: the client, or the consumer that handed them out."""

    async def settle_ack(self, messages: "Sequence[BaseMessage]") -> None: ...

    async def settle_nack(
        self,
        messages: "Sequence[BaseMessage]",
        delay: float,
        reason: str,
        *,
        count: bool,
        reject: bool,
    ) -> None: ...

    async def settle_extend(self, messages: "Sequence[BaseMessage]", seconds: float) -> None: ...


class Source:
    """A run of messages of one stored batch, in one delivery; it remembers what it decoded."""

    __slots__ = (
        "_headers",
        "_keys",
        "_times",
        "base_offset",
        "batch",
        "delivery",
        "delivery_count",
        "log_time",
        "partition",
        "settler",
        "start",
        "stop",
        "target",
    )  # fmt: skip

    def __init__(
        self,
        target: Target,
        settler: Settler,
        batch: Batch,
        stored: StoredBatch,
        delivery: int,
        delivery_count: int,
        start: Offset,
        stop: Offset,
    ) -> None:
        self.target = target
        self.settler = settler
        self.batch = batch
        self.partition = stored.partition
        self.base_offset = stored.base_offset
        self.log_time = stored.log_time
        self.delivery = delivery
        self.delivery_count = delivery_count
        self.start = start
        self.stop = stop
        self._keys: list[bytes | None] | None = None
        self._headers: list[dict[str, HeaderValue]] | None = None
        self._times: Sequence[int] | None = None

    def bodies(self) -> list[bytes]:
        return self.batch.bodies(self.start - self.base_offset, self.stop - self.base_offset)

    def key(self, offset: Offset) -> bytes | None:
        if self._keys is None:
            base = self.base_offset
            self._keys = self.batch.keys(self.start - base, self.stop - base)
        return self._keys[offset - self.start]

    def headers(self, offset: Offset) -> dict[str, HeaderValue]:
        if self._headers is None:
            base = self.base_offset
            self._headers = self.batch.headers(self.start - base, self.stop - base)
        return self._headers[offset - self.start]

    def time_us(self, offset: Offset) -> int:
        if self._times is None:
            self._times = self.batch.times
        return self._times[offset - self.base_offset] or self.log_time


class BaseMessage:
    """A message without its verbs, which the two clients spell differently."""

    __slots__ = ("body", "offset", "source")

    def __init__(self, body: bytes, offset: Offset, source: Source) -> None:
        self.body = body
        self.offset = offset
        self.source = source

    @property
    def key(self) -> bytes | None:
        return self.source.key(self.offset)

    @property
    def headers(self) -> dict[str, HeaderValue]:
        return self.source.headers(self.offset)

    @property
    def queue(self) -> str:
        return self.source.target.queue

    @property
    def partition(self) -> Partition:
        return self.source.partition

    @property
    def timestamp(self) -> float:
        """When it was produced, in seconds since 1970, by the producer's clock."""
        return self.source.time_us(self.offset) / SECOND_US

    @property
    def delivery_count(self) -> int:
        """How often it has been handed out, this time included; 0 if it was only read."""
        return self.source.delivery_count

    @property
    def receipt(self) -> DeliveryReceipt:
        source = self.source
        target = source.target
        return DeliveryReceipt(
            target.queue, target.subscription, target.group, target.session,
            source.partition, source.delivery, self.offset,
        )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"<message {self.queue}/{self.partition} offset {self.offset}, {len(self.body)} bytes>"
        )


class Message(BaseMessage):
    """One message. `body` and `offset` are plain attributes; the rest is looked up when read."""

    __slots__ = ()

    async def ack(self) -> None:
        """It is done: never again. From a consumer this returns at once; see `Consumer.flush`."""
        await self.source.settler.settle_ack([self])

    async def nack(
        self, *, delay: float = 0.0, reason: str = "", count: bool = True, reject: bool = False
    ) -> None:
        """It failed: hand it out again after `delay`; `count` it against the delivery limit.

        With `reject` it is not handed out again: it becomes a dead letter at once.
        """
        await self.source.settler.settle_nack([self], delay, reason, count=count, reject=reject)

    async def extend(self, seconds: float) -> None:
        """It takes longer: hold it for so many seconds from now."""
        await self.source.settler.settle_extend([self], seconds)


AnyMessage = TypeVar("AnyMessage", bound=BaseMessage)


def sources_of(reply: Delivered, target: Target, settler: Settler) -> Iterator[Source]:
    """The runs of messages that a DELIVERED holds, in the order of its ranges.

    Raises: Corrupted, ProtocolError, UnsupportedVersion.
    """
    stored: dict[Partition, list[tuple[StoredBatch, Batch]]] = {}
    for each in reply.batches:
        batch = Batch(bytes(each.data))
        if batch.header.queue != target.queue_id or batch.header.partition != each.partition:
            raise ProtocolError("a batch of another queue was delivered")
        stored.setdefault(each.partition, []).append((each, batch))
    for partition, delivery, _, ranges in reply.deliveries:
        batches = stored.get(partition, [])
        for start, stop, delivery_count in ranges:
            position = start
            for each, batch in batches:
                end = each.base_offset + batch.count
                if each.base_offset <= position < min(end, stop):
                    until = Offset(min(end, stop))
                    yield Source(
                        target, settler, batch, each, delivery, delivery_count, position, until
                    )
                    position = until
            if position != stop:
                raise ProtocolError(f"offsets {position} to {stop} were delivered without a batch")


def messages_of(source: Source, kind: type[AnyMessage]) -> list[AnyMessage]:
    """All messages of a run."""
    return list(map(kind, source.bodies(), range(source.start, source.stop), repeat(source)))
