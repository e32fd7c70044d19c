"""What operators and the mapping ask for: partitions, subscriptions, producers, purge and redrive."""

from typing import Final

from raftq.errors import (
    Busy,
    InvalidArgument,
    OffsetOutOfRange,
    QueueFull,
    QueueNotEmpty,
    QueueNotFound,
)
from raftq.ids import Partition as PartitionNumber
from raftq.ids import ProducerId, QueueId
from raftq.limits import MAX_ACK_RANGES, MAX_PRODUCERS
from raftq.machine import Applied, Meta
from raftq.queue.commands import (
    EARLIEST,
    LATEST,
    Configure,
    Drop,
    OpenProducer,
    Purge,
    PurgeDead,
    Redrive,
    Subscribe,
    Unsubscribe,
)
from raftq.queue.config import DEFAULT_SUBSCRIPTION
from raftq.queue.partition import Partition
from raftq.queue.replies import (
    Configured,
    Dropped,
    ProducerOpened,
    Purged,
    Redriven,
    Subscribed,
    Unsubscribed,
)
from raftq.queue.spans import Span
from raftq.queue.state import State
from raftq.queue.subscription import Subscription

MAX_SUBSCRIPTIONS: Final = 256
"""Of one partition: a publish and a settling look at each."""

PURGED: Final = "purged"
PURGED_DEAD: Final = "purged_dead"


def not_here(queue: QueueId, partition: PartitionNumber) -> QueueNotFound:
    return QueueNotFound(f"queue {queue} has no partition {partition} here (any more)")


def configure(state: State, _: Meta, command: Configure) -> Applied:
    queue, number, version, config, sealed = command
    if state.was_dropped(queue, number):
        return Applied(not_here(queue, number))
    partition = state.partitions.get((queue, number))
    if partition is None:
        partition = Partition(queue, number, version, config)
        partition.sealed = sealed
        partition.begin(Subscription(queue, DEFAULT_SUBSCRIPTION, 0))
        state.open_partition(partition)
    elif version > partition.version:
        left = _messages_left(partition)
        if sealed and left:
            return Applied(_not_empty(partition, left))
        state.touch(partition)
        partition.configure(version, config, sealed=sealed)
    return Applied(Configured(partition.version))


def _messages_left(partition: Partition) -> int:
    return sum(
        subscription.unfinished(partition.next_offset) + subscription.dead.messages
        for subscription in partition.subscriptions.values()
    )


def _not_empty(partition: Partition, left: int) -> QueueNotEmpty:
    return QueueNotEmpty(
        f"queue {partition.queue}, partition {partition.number} still holds {left} messages; drain "
        "it, or delete it with force=True"
    )


def drop(state: State, _: Meta, command: Drop) -> Applied:
    queue, number, force = command
    partition = state.partitions.get((queue, number))
    if partition is None:
        # Remembered, so that a configuration that comes late does not open it after all.
        if not state.was_dropped(queue, number):
            state.note_dropped(queue, number)
        return Applied(Dropped())
    left = _messages_left(partition)
    if left and not force:
        return Applied(_not_empty(partition, left))
    state.touch(partition)
    for subscription in partition.subscriptions.values():
        _forget_deliveries(state, subscription)
    state.close_partition(partition)
    return Applied(Dropped())


def _forget_deliveries(state: State, subscription: Subscription) -> None:
    for delivery, flight in subscription.in_flight.items():
        del state.sessions[flight.session].held[delivery]


def subscribe(state: State, _: Meta, command: Subscribe) -> Applied:
    partition = state.partitions.get((command.queue, command.partition))
    if partition is None:
        return Applied(not_here(command.queue, command.partition))
    name, start = command.subscription, command.start
    known = partition.subscriptions.get(name)
    if known is not None:
        return Applied(Subscribed(known.start))
    if len(partition.subscriptions) >= MAX_SUBSCRIPTIONS:
        return Applied(InvalidArgument(f"a queue has at most {MAX_SUBSCRIPTIONS} subscriptions"))
    first, next_offset = partition.earliest, partition.next_offset
    if start == EARLIEST:
        start = first
    elif start == LATEST:
        start = next_offset
    assert isinstance(start, int), "a start is earliest, latest or an offset"
    if not first <= start <= next_offset:
        return Applied(
            OffsetOutOfRange(
                f"queue {command.queue}, partition {command.partition} has offsets {first} to "
                f"{next_offset}, a subscription cannot start at {start}"
            )
        )
    full = _too_full(partition, *partition.would_count(start))
    if full is not None:
        return Applied(full)
    state.touch(partition)
    partition.begin(Subscription(command.queue, name, start))
    return Applied(Subscribed(start), partition.subscriptions[name].available)


def unsubscribe(state: State, _: Meta, command: Unsubscribe) -> Applied:
    partition = state.partitions.get((command.queue, command.partition))
    if partition is None:
        return Applied(not_here(command.queue, command.partition))
    subscription = partition.subscriptions.get(command.subscription)
    if subscription is None:
        return Applied(Unsubscribed())
    if len(partition.subscriptions) == 1:
        return Applied(
            InvalidArgument(
                f"{command.subscription!r} is the last subscription of queue {command.queue}: without "
                "one its messages would be nobody's; make another first, or delete the queue"
            )
        )
    state.touch(partition)
    _forget_deliveries(state, subscription)
    partition.remove(subscription)
    return Applied(Unsubscribed())


def open_producer(state: State, meta: Meta, command: OpenProducer) -> Applied:
    partition = state.partitions.get((command.queue, command.partition))
    if partition is None:
        return Applied(not_here(command.queue, command.partition))
    producer = partition.producers.get(command.producer)
    if producer is None and state.producers >= MAX_PRODUCERS:
        return Applied(Busy(f"this group knows {MAX_PRODUCERS} producers, its bound; retry later"))
    state.touch(partition)
    opened = producer is None or producer.epoch == command.epoch
    if producer is None:
        partition.epoch += 1
        producer = state.open_producer(partition, command.producer, partition.epoch, meta.log_time)
        producer.opener = command.opener
    elif opened:
        partition.epoch += 1
        producer.epoch, producer.opener = partition.epoch, command.opener
    if producer.opener == command.opener:
        producer.used = meta.log_time
    return Applied(
        ProducerOpened(
            ProducerId(command.producer),
            producer.epoch,
            producer.next_sequence - 1,
            producer.last_offset,
            producer.opener == command.opener,
        )
    )


def _find(
    state: State, command: Purge | PurgeDead | Redrive
) -> tuple[Partition, Subscription] | QueueNotFound | InvalidArgument:
    partition = state.partitions.get((command.queue, command.partition))
    if partition is None:
        return not_here(command.queue, command.partition)
    subscription = partition.subscriptions.get(command.subscription)
    if subscription is None:
        return InvalidArgument(
            f"queue {command.queue} has no subscription {command.subscription!r}"
        )
    return partition, subscription


def purge(state: State, _: Meta, command: Purge) -> Applied:
    found = _find(state, command)
    if not isinstance(found, tuple):
        return Applied(found)
    partition, subscription = found
    state.touch(partition)
    gone = subscription.withdraw_below(partition.next_offset)
    for start, stop in gone:
        partition.discard(subscription, start, stop, PURGED)
    partition.trim()
    return Applied(Purged(sum(stop - start for start, stop in gone)))


def purge_dead(state: State, _: Meta, command: PurgeDead) -> Applied:
    found = _find(state, command)
    if not isinstance(found, tuple):
        return Applied(found)
    partition, subscription = found
    state.touch(partition)
    dead = subscription.dead.chosen("", (), 0)
    subscription.dead.remove(dead)
    for span in dead:
        subscription.note_discarded(span.start, span.stop, PURGED_DEAD)
    partition.trim()
    return Applied(Purged(sum(span.stop - span.start for span in dead)))


def redrive(state: State, _: Meta, command: Redrive) -> Applied:
    found = _find(state, command)
    if not isinstance(found, tuple):
        return Applied(found)
    partition, subscription = found
    chosen = subscription.dead.chosen(command.reason, command.ranges, command.limit)
    # The reply names every range: more than this is asked for again.
    chosen = chosen[:MAX_ACK_RANGES]
    ranges = tuple((span.start, span.stop) for span in chosen)
    reply = Redriven(sum(stop - start for start, stop in ranges), ranges)
    if command.dry_run or not chosen:
        return Applied(reply)
    counts = [partition.not_counted(subscription, span.start, span.stop) for span in chosen]
    more = sum(count for count, _ in counts), sum(size for _, size in counts)
    full = _too_full(partition, *more)
    if full is not None:
        return Applied(full)
    state.touch(partition)
    subscription.dead.remove(chosen)
    for span in chosen:
        partition.unfinish(subscription, span.start, span.stop)
        # It gets the whole delivery limit again, but does not forget what it has been through.
        subscription.wait(Span(span.start, span.stop, span.delivery_count, 0, span.history))
    return Applied(reply, subscription.available)


def _too_full(partition: Partition, more: int, more_bytes: int) -> QueueFull | None:
    """Why so many messages that are here, but do not count, cannot become ready."""
    messages, message_bytes = partition.messages + more, partition.message_bytes + more_bytes
    messages_max = partition.config.messages_share(partition.number)
    bytes_max = partition.config.bytes_share(partition.number)
    over = (messages_max and messages > messages_max) or (bytes_max and message_bytes > bytes_max)
    if over and more:
        return QueueFull(
            f"queue {partition.queue}, partition {partition.number} has no room for {more} messages "
            "that would become ready again; take fewer at a time or begin later, consume, or raise "
            "the limit"
        )
    return None
