"""Administration: queues, subscriptions, dead letters. Typed answers to CONTROL operations."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Unpack

from raftq.batch import HeaderValue
from raftq.client.options import QueueOptions, check_queue_options
from raftq.client.ports import SECOND_US
from raftq.client.reader import Start
from raftq.client.routing import Router
from raftq.errors import InvalidArgument, ProtocolError, QueueNotFound
from raftq.limits import MAX_ACK_RANGES
from raftq.wire.control import LETTERS_MAX, check_queue_name, check_subscription

DEFAULT_SUBSCRIPTION: Final = "default"


@dataclass(frozen=True, slots=True)
class SubscriptionCounts:
    """How many messages are in which state, in one subscription."""

    ready: int = 0
    in_flight: int = 0
    delayed: int = 0
    settled: int = 0
    dead: int = 0
    discarded: int = 0

    def __add__(self, other: "SubscriptionCounts") -> "SubscriptionCounts":
        return SubscriptionCounts(
            self.ready + other.ready,
            self.in_flight + other.in_flight,
            self.delayed + other.delayed,
            self.settled + other.settled,
            self.dead + other.dead,
            self.discarded + other.discarded,
        )


@dataclass(frozen=True, slots=True)
class PartitionDescription:
    """One partition: where it lives, and what its log holds.

    `next_offset` is its end. A new subscription at the earliest begins at `first_offset`: what lies
    before is settled, or has been forgotten by a queue that is a log. Below `released` bodies may be
    gone from the disks.
    """

    partition: int
    group: int
    leader: str | None
    first_offset: int
    next_offset: int
    subscriptions: Mapping[str, SubscriptionCounts]
    released: int = 0


@dataclass(frozen=True, slots=True)
class QueueDescription:
    """A queue as it is now. The counts are those of the subscription that was asked about."""

    name: str
    id: int
    config: Mapping[str, Any]
    subscription: str
    partitions: tuple[PartitionDescription, ...]

    @property
    def counts(self) -> SubscriptionCounts:
        total = SubscriptionCounts()
        for partition in self.partitions:
            total += partition.subscriptions.get(self.subscription, SubscriptionCounts())
        return total

    @property
    def ready(self) -> int:
        return self.counts.ready

    @property
    def in_flight(self) -> int:
        return self.counts.in_flight

    @property
    def delayed(self) -> int:
        return self.counts.delayed

    @property
    def dead(self) -> int:
        return self.counts.dead

    @property
    def depth(self) -> int:
        """Messages that somebody still has to handle."""
        counts = self.counts
        return counts.ready + counts.in_flight + counts.delayed


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """A queue as the metadata knows it."""

    name: str
    id: int
    config: Mapping[str, Any]
    partitions: int
    state: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that nobody could handle, with the reason; looking at it consumes nothing."""

    queue: str
    partition: int
    offset: int
    body: bytes
    key: bytes | None
    headers: Mapping[str, HeaderValue]
    timestamp: float
    delivery_count: int
    reason: str
    error: str
    died_at: float
    history: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Redriven:
    """How many dead letters are ready again (or would be, in a dry run)."""

    count: int
    by_reason: Mapping[str, int]


class Administration:
    """The verbs; `AsyncClient` offers them under the same names."""

    def __init__(self, router: Router, seconds: float) -> None:
        self._router = router
        self._seconds = seconds

    async def create_queue(self, name: str, **options: Unpack[QueueOptions]) -> QueueSummary:
        """Make a queue. One that exists with the same configuration is fine.

        Raises: QueueExists, InvalidQueueName, InvalidArgument, RaftqError.
        """
        check_queue_name(name)
        check_queue_options(options)
        reply = await self._call({"do": "create_queue", "name": name, "config": dict(options)})
        return _summary(reply["queue"])

    async def update_queue(self, name: str, **options: Unpack[QueueOptions]) -> QueueSummary:
        """Change some of a queue's configuration."""
        check_queue_options(options)
        reply = await self._call({"do": "update_queue", "name": name, "config": dict(options)})
        self._router.forget(name)
        return _summary(reply["queue"])

    async def delete_queue(self, name: str, *, force: bool = False) -> None:
        """Delete a queue and all it holds; one with messages only by `force`.

        Raises: QueueNotEmpty, QueueNotFound, RaftqError.
        """
        check_queue_name(name)
        tries = 0

        async def attempt(patience: Any) -> None:
            nonlocal tries
            tries += 1
            connection = await self._router.to_any(patience.attempt())
            request = {"do": "delete_queue", "name": name, "force": force}
            try:
                await connection.control(request, patience.attempt())
            except QueueNotFound:
                if tries == 1:
                    raise
                # An attempt before this one, whose answer was lost, has deleted it.

        await self._router.until_answered(attempt, self._seconds)
        self._router.forget(name)

    async def list_queues(self) -> list[QueueSummary]:
        reply = await self._call({"do": "list_queues"})
        return [_summary(queue) for queue in reply["queues"]]

    async def describe_queue(
        self, name: str, *, subscription: str = DEFAULT_SUBSCRIPTION
    ) -> QueueDescription:
        check_queue_name(name)
        reply = await self._call({"do": "describe_queue", "name": name})
        partitions = tuple(
            PartitionDescription(
                row["partition"], row["group"], row["leader"], row["first_offset"],
                row["next_offset"],
                {each: SubscriptionCounts(**counts) for each, counts in row["subscriptions"].items()},
                row.get("released", 0),
            )
            for row in reply["partitions"]
        )  # fmt: skip
        return QueueDescription(
            reply["name"], reply["id"], reply["config"], subscription, partitions
        )

    async def purge_queue(self, name: str) -> int:
        """Discard what is ready or delayed, in the default subscription; how many messages."""
        check_queue_name(name)
        return int((await self._call({"do": "purge_queue", "name": name}))["purged"])

    async def subscribe(self, name: str, subscription: str, *, start: Start = "earliest") -> None:
        """Make a subscription: from the earliest retained message, the latest, or an offset."""
        check_subscription(subscription)
        request = {"do": "subscribe", "name": name, "subscription": subscription, "start": start}
        await self._call(request)

    async def unsubscribe(self, name: str, subscription: str) -> None:
        check_subscription(subscription)
        await self._call({"do": "unsubscribe", "name": name, "subscription": subscription})

    async def dead_letters(
        self,
        name: str,
        *,
        subscription: str = DEFAULT_SUBSCRIPTION,
        limit: int = 100,
        partition: int | None = None,
        after_offset: int | None = None,
    ) -> list[DeadLetter]:
        """Look at dead letters, `after_offset` for the next page of a partition."""
        if not isinstance(limit, int) or not 1 <= limit <= LETTERS_MAX:
            raise InvalidArgument(f"limit is 1 to {LETTERS_MAX}, not {limit!r:.100}")
        request: dict[str, Any] = {
            "do": "dead_letters",
            "name": name,
            "subscription": subscription,
            "limit": limit,
        }
        if partition is not None:
            request["partition"] = partition
        if after_offset is not None:
            request["after_offset"] = after_offset
        reply = await self._call(request)
        return [_letter(name, letter) for letter in reply["letters"]]

    async def redrive(
        self,
        name: str,
        *,
        subscription: str = DEFAULT_SUBSCRIPTION,
        reason: str | None = None,
        offsets: list[tuple[int, int]] | None = None,
        dry_run: bool = False,
    ) -> Redriven:
        """Make dead letters ready again: all, those of a reason, or those at (partition, offset)."""
        if offsets is not None and not isinstance(offsets, list | tuple):
            raise InvalidArgument("offsets is a list of pairs (partition, offset)")
        if offsets is not None and len(offsets) > MAX_ACK_RANGES:
            raise InvalidArgument(f"at most {MAX_ACK_RANGES} offsets at once")
        request: dict[str, Any] = {
            "do": "redrive",
            "name": name,
            "subscription": subscription,
            "dry_run": dry_run,
        }
        if reason is not None:
            request["reason"] = reason
        if offsets is not None:
            try:
                request["offsets"] = [list(pair) for pair in offsets]
            except TypeError as error:
                raise InvalidArgument("offsets are pairs (partition, offset)") from error
        reply = await self._call(request)
        return Redriven(reply["redriven"], reply["by_reason"])

    async def purge_dead(self, name: str, *, subscription: str = DEFAULT_SUBSCRIPTION) -> int:
        """Discard a subscription's dead letters for good; how many."""
        request = {"do": "purge_dead", "name": name, "subscription": subscription}
        return int((await self._call(request))["purged"])

    async def replace_node(self, name: str) -> list[int]:
        """Give the place of a node that is gone to the empty data directory that asks for it.

        Returns the groups that have still to take its replica in; `status` tells when none is left.

        Raises: InvalidArgument while the node is up, or while nobody asks for its place; RaftqError.
        """
        reply = await self._call({"do": "replace_node", "name": name})
        return list(reply["groups"])

    async def status(self) -> dict[str, Any]:
        """The cluster as the answering node sees it."""
        return await self._call({"do": "status"})

    async def _call(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._router.call(request, self._seconds)


def _summary(queue: dict[str, Any]) -> QueueSummary:
    try:
        return QueueSummary(
            queue["name"], queue["id"], queue["config"], len(queue["partitions"]), queue["state"]
        )
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"a queue that cannot be read: {error}") from error


def _letter(queue: str, letter: dict[str, Any]) -> DeadLetter:
    try:
        return DeadLetter(
            queue, letter["partition"], letter["offset"], letter["body"], letter["key"],
            letter["headers"], letter["timestamp"] / SECOND_US, letter["delivery_count"],
            letter["reason"], letter["error"], letter["died_at"] / SECOND_US,
            tuple(letter["history"]),
        )  # fmt: skip
    except (KeyError, TypeError) as error:
        raise ProtocolError(f"a dead letter that cannot be read: {error}") from error
