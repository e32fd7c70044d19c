"""The whole replicated state of a queue machine, and the one way to change it.

Rules:

1. Whoever changes a partition, a session or the shared numbers calls `touch` with it first: that is
   what keeps digests true, and a snapshot that is being drawn at its index.
2. What can be derived (deadlines, which session holds what, partitions of a queue in their order)
   is not encoded, and is made anew on restore.
"""

from bisect import insort
from operator import attrgetter
from weakref import ref

from raftq.ids import Index, QueueId, SessionId
from raftq.ids import Partition as PartitionNumber
from raftq.limits import MAX_PARTITIONS, PRODUCER_EXPIRES_MICROS, SESSION_EXPIRES_MICROS
from raftq.queue.deadlines import DELAYED, DELIVERY, PRODUCER, SESSION, Deadline, Deadlines
from raftq.queue.drawing import Drawing
from raftq.queue.partition import Partition
from raftq.queue.producers import Producer
from raftq.queue.ranges import RangeSet
from raftq.queue.sessions import Session
from raftq.queue.subscription import InFlight, Subscription

_number = attrgetter("number")


class Shared:
    """The few numbers of the whole group."""

    __slots__ = ("digest", "dropped", "next_delivery", "released", "turns")

    def __init__(self) -> None:
        self.next_delivery = 1
        self.turns: dict[tuple[QueueId, str], int] = {}
        """Where the next receive of a subscription begins, so that partitions get fair turns."""
        self.dropped = RangeSet()
        """Partitions closed for ever, each as one number: ids of queues are not used again."""
        self.released = (Index(0), bytes(16))
        """The last entry that may go, and the chain value there."""
        self.digest = b""


Item = Shared | Partition | Session
"""What is encoded, digested and drawn as one piece."""


class State:
    """Partitions, sessions and shared numbers of one group."""

    __slots__ = (
        "deadlines",
        "drawings",
        "partitions",
        "producers",
        "queues",
        "sessions",
        "shared",
    )

    def __init__(self) -> None:
        self.shared = Shared()
        self.partitions: dict[tuple[int, int], Partition] = {}
        self.queues: dict[int, list[Partition]] = {}
        """Partitions of each queue by their number; derived."""
        self.sessions: dict[int, Session] = {}
        self.producers = 0
        """Producers in all partitions; derived."""
        self.deadlines = Deadlines(self._is_live)
        self.drawings: list[ref[Drawing[Item]]] = []
        """Weak: a snapshot that nobody draws any more must not be kept up for ever."""

    def items(self) -> list[Item]:
        """In the order in which they stand in a snapshot."""
        return [self.shared, *self.partitions.values(), *self.sessions.values()]

    def touch(self, item: Item) -> None:
        item.digest = b""
        for reference in self.drawings:
            drawing = reference()
            if drawing is not None:
                drawing.keep(item)

    def open_partition(self, partition: Partition) -> None:
        self.partitions[partition.queue, partition.number] = partition
        insort(self.queues.setdefault(partition.queue, []), partition, key=_number)
        self.producers += len(partition.producers)

    def close_partition(self, partition: Partition) -> None:
        self.note_dropped(partition.queue, partition.number)
        del self.partitions[partition.queue, partition.number]
        self.producers -= len(partition.producers)
        siblings = self.queues[partition.queue]
        siblings.remove(partition)
        if not siblings:
            del self.queues[partition.queue]
            for key in [key for key in self.shared.turns if key[0] == partition.queue]:
                del self.shared.turns[key]

    def note_dropped(self, queue: QueueId, partition: PartitionNumber) -> None:
        self.touch(self.shared)
        number = place(queue, partition)
        self.shared.dropped.add(number, number + 1)

    def was_dropped(self, queue: QueueId, partition: PartitionNumber) -> bool:
        number = place(queue, partition)
        return self.shared.dropped.first_missing(number) > number

    def open_session(self, session: SessionId, now: int) -> None:
        opened = Session(session, now, now + SESSION_EXPIRES_MICROS)
        self.sessions[session] = opened
        self.watch_session(opened)

    def watch_session(self, session: Session) -> None:
        self.deadlines.push(Deadline(session.check_at, SESSION, session.id))

    def open_producer(self, partition: Partition, producer: int, epoch: int, now: int) -> Producer:
        opened = Producer(epoch, now, now + PRODUCER_EXPIRES_MICROS)
        partition.producers[producer] = opened
        self.producers += 1
        self.watch_producer(partition, producer, opened)
        return opened

    def watch_producer(self, partition: Partition, number: int, producer: Producer) -> None:
        where = (partition.queue, partition.number)
        self.deadlines.push(Deadline(producer.check_at, PRODUCER, number, *where))

    def watch_delivery(
        self, partition: Partition, subscription: Subscription, delivery: int, flight: InFlight
    ) -> None:
        where = (partition.queue, partition.number, subscription.name)
        self.deadlines.push(Deadline(flight.deadline, DELIVERY, delivery, *where))

    def watch_delayed(self, partition: Partition, subscription: Subscription) -> None:
        """The head of the delayed is new."""
        if subscription.delayed:
            due, span = subscription.delayed[0]
            where = (partition.queue, partition.number, subscription.name)
            self.deadlines.push(Deadline(due, DELAYED, span.start, *where))

    def _is_live(self, entry: Deadline) -> bool:
        if entry.kind == SESSION:
            session = self.sessions.get(entry.number)
            return session is not None and session.check_at == entry.time
        partition = self.partitions.get((entry.queue, entry.partition))
        if partition is None:
            return False
        if entry.kind == PRODUCER:
            producer = partition.producers.get(entry.number)
            return producer is not None and producer.check_at == entry.time
        subscription = partition.subscriptions.get(entry.subscription)
        if subscription is None:
            return False
        if entry.kind == DELIVERY:
            flight = subscription.in_flight.get(entry.number)
            return flight is not None and flight.deadline == entry.time
        if not subscription.delayed:
            return False
        due, span = subscription.delayed[0]
        return due == entry.time and span.start == entry.number

    def restored(self) -> None:
        """Makes anew what is derived from the sessions and partitions that were read back."""
        holders: list[tuple[int, int, Partition, Subscription]] = []
        for session in self.sessions.values():
            self.watch_session(session)
        for partition in self.partitions.values():
            for number, producer in partition.producers.items():
                self.watch_producer(partition, number, producer)
            for subscription in partition.subscriptions.values():
                self.watch_delayed(partition, subscription)
                for delivery, flight in subscription.in_flight.items():
                    self.watch_delivery(partition, subscription, delivery, flight)
                    holders.append((delivery, flight.session, partition, subscription))
        for delivery, holder, partition, subscription in sorted(holders, key=lambda row: row[0]):
            self.sessions[holder].held[delivery] = (partition, subscription)


def place(queue: QueueId, partition: PartitionNumber) -> int:
    """One number for a partition of a queue."""
    return queue * MAX_PARTITIONS + partition
