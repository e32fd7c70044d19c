"""One partition: offsets, sizes, producers and subscriptions.

A partition never refuses a publish: that is the admission's work. It counts what its limits are
about: a message counts while any subscription has it ready, delayed or in flight.
"""

from collections.abc import Sequence

from raftq.ids import Partition as PartitionNumber
from raftq.ids import QueueId
from raftq.queue.config import QueueConfig
from raftq.queue.effects import Available
from raftq.queue.message_bytes import MessageBytes
from raftq.queue.producers import Producer
from raftq.queue.subscription import Subscription


class Partition:
    """State of one partition of one queue.

    Invariant: first_offset <= next_offset, and no subscription needs an offset below first_offset.
    """

    __slots__ = (
        "available",
        "config",
        "digest",
        "epoch",
        "first_offset",
        "message_bytes",
        "messages",
        "number",
        "producers",
        "queue",
        "sealed",
        "sizes",
        "subscriptions",
        "version",
    )

    def __init__(
        self, queue: QueueId, number: PartitionNumber, version: int, config: QueueConfig
    ) -> None:
        self.queue = queue
        self.number = number
        self.version = version
        self.config = config
        self.sealed = False
        """Empty, and to stay so: publishes are refused until a configuration opens it again."""
        self.first_offset = 0
        self.sizes = MessageBytes()
        self.messages = 0
        """Messages that count against max_messages."""
        self.message_bytes = 0
        """Their bytes: of bodies, keys and headers."""
        self.epoch = 0
        """The last epoch minted for a producer here."""
        self.producers: dict[int, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.available: tuple[Available, ...] = ()
        """What a publish makes available: everything."""
        self.digest = b""
        """Of the encoded state, or empty when it has changed since."""

    @property
    def next_offset(self) -> int:
        return self.sizes.end_offset

    def publish(self, count: int, message_bytes: int, lengths: Sequence[int] | None) -> None:
        """The next `count` messages are there, of these lengths where they are given."""
        if lengths is None:
            self.sizes.append(count, message_bytes)
        else:
            self.sizes.append_each(lengths)
        self.messages += count
        self.message_bytes += message_bytes

    def add(self, subscription: Subscription) -> None:
        for start, stop in self._finished_elsewhere(
            subscription, subscription.start, self.next_offset
        ):
            self._count(start, stop)
        self.subscriptions[subscription.name] = subscription
        self._note_subscriptions()

    def remove(self, subscription: Subscription) -> None:
        """The caller has ended its deliveries; what only this subscription needed is released."""
        for low, high in list(subscription.finished.missing(subscription.start, self.next_offset)):
            for start, stop in self._finished_elsewhere(subscription, low, high):
                self._discount(start, stop)
        del self.subscriptions[subscription.name]
        self._note_subscriptions()
        self.trim()

    def _note_subscriptions(self) -> None:
        self.available = tuple(Available(self.queue, name) for name in self.subscriptions)

    def finish(self, subscription: Subscription, start: int, stop: int) -> None:
        """The subscription settled or discarded these messages, or made dead letters of them."""
        subscription.finished.add(start, stop)
        if len(self.subscriptions) == 1:
            self._discount(start, stop)
            return
        for low, high in self._finished_elsewhere(subscription, start, stop):
            self._discount(low, high)

    def unfinish(self, subscription: Subscription, start: int, stop: int) -> None:
        """Dead letters of this subscription live again."""
        subscription.finished.remove(start, stop)
        for low, high in self._finished_elsewhere(subscription, start, stop):
            self._count(low, high)

    def not_counted(self, subscription: Subscription, start: int, stop: int) -> tuple[int, int]:
        """Messages and bytes that `unfinish` would count again."""
        parts = self._finished_elsewhere(subscription, start, stop)
        messages = sum(high - low for low, high in parts)
        return messages, sum(self.sizes.between(low, high) for low, high in parts)

    def trim(self) -> None:
        """Forgets what nobody needs any more."""
        lowest = min(
            (subscription.lowest_needed() for subscription in self.subscriptions.values()),
            default=self.next_offset,
        )
        if lowest > self.first_offset:
            self.first_offset = lowest
            self.sizes.forget_below(lowest)

    def _count(self, start: int, stop: int) -> None:
        self.messages += stop - start
        self.message_bytes += self.sizes.between(start, stop)

    def _discount(self, start: int, stop: int) -> None:
        self.messages -= stop - start
        self.message_bytes -= self.sizes.between(start, stop)

    def _finished_elsewhere(
        self, subscription: Subscription, start: int, stop: int
    ) -> list[tuple[int, int]]:
        """The parts of [start, stop) that no other subscription has before it."""
        parts = [(start, stop)] if start < stop else []
        for other in self.subscriptions.values():
            if other is subscription:
                continue
            parts = [finished for low, high in parts for finished in _finished(other, low, high)]
        return parts


def _finished(subscription: Subscription, start: int, stop: int) -> list[tuple[int, int]]:
    """The parts of [start, stop) that a subscription is done with, or that lie below its start."""
    before = min(max(start, subscription.start), stop)
    parts = [(start, before)] if start < before else []
    return parts + list(subscription.finished.covered(before, stop))
