"""Questions about the applied state. They change nothing, and cost little."""

from typing import NamedTuple

from raftq.ids import Partition as PartitionNumber
from raftq.ids import QueueId
from raftq.queue.dead_letters import DeadLetter
from raftq.queue.partition import Partition
from raftq.queue.state import State
from raftq.queue.subscription import Subscription


class SubscriptionStats(NamedTuple):
    """Messages of one subscription by their state.

    Invariant: next_offset - start = ready + in_flight + delayed + settled + dead + discarded.
    """

    name: str
    start: int
    ready: int
    in_flight: int
    delayed: int
    settled: int
    dead: int
    discarded: int
    deliveries: int


class PartitionStats(NamedTuple):
    """One partition, as of the last command applied."""

    queue: QueueId
    partition: PartitionNumber
    version: int
    next_offset: int
    first_offset: int
    """Where a new subscription at the earliest begins: before it, what is settled in a queue, and what
    a log has forgotten."""
    needed_from: int
    """Nobody needs a message below this offset. Lower than `first_offset` in a log with dead letters, or
    messages in flight, that are older than what it keeps."""
    released: int
    """Bodies of messages below this offset may be gone from the disk."""
    messages: int
    """Those that count against max_messages."""
    message_bytes: int
    producers: int
    sessions: int
    """Sessions that hold deliveries of this partition."""
    subscriptions: tuple[SubscriptionStats, ...]


def describe(state: State, queue: QueueId, partition: PartitionNumber) -> PartitionStats | None:
    found = state.partitions.get((queue, partition))
    if found is None:
        return None
    subscriptions = found.subscriptions.values()
    holders = {
        flight.session
        for subscription in subscriptions
        for flight in subscription.in_flight.values()
    }
    return PartitionStats(
        queue,
        partition,
        found.version,
        found.next_offset,
        found.earliest,
        found.needed_from,
        found.released,
        found.messages,
        found.message_bytes,
        len(found.producers),
        len(holders),
        tuple(_describe(found, subscription) for subscription in subscriptions),
    )


def _describe(partition: Partition, subscription: Subscription) -> SubscriptionStats:
    return SubscriptionStats(
        subscription.name,
        subscription.start,
        subscription.ready(partition.next_offset),
        subscription.in_flight_messages,
        subscription.delayed_messages,
        subscription.settled,
        subscription.dead.messages,
        sum(subscription.discarded.values()),
        len(subscription.in_flight),
    )


def has_ready(state: State, queue: QueueId, subscription: str) -> bool:
    for partition in state.queues.get(queue, ()):
        found = partition.subscriptions.get(subscription)
        if found is not None and found.ready(partition.next_offset):
            return True
    return False


def without_subscription(
    state: State, queue: QueueId, subscription: str
) -> tuple[PartitionNumber, ...]:
    return tuple(
        partition.number
        for partition in state.queues.get(queue, ())
        if subscription not in partition.subscriptions
    )


def ready_count(state: State, queue: QueueId, subscription: str) -> int:
    count = 0
    for partition in state.queues.get(queue, ()):
        found = partition.subscriptions.get(subscription)
        if found is not None:
            count += found.ready(partition.next_offset)
    return count


def dead_letters(
    state: State,
    queue: QueueId,
    partition: PartitionNumber,
    subscription: str,
    *,
    after_offset: int,
    limit: int,
) -> list[DeadLetter]:
    found = state.partitions.get((queue, partition))
    held = found.subscriptions.get(subscription) if found else None
    return held.dead.letters(after_offset, limit) if held else []
