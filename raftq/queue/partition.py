"""One partition: offsets, sizes, producers and subscriptions.

A partition never refuses a publish: that is the admission's work. It counts what its limits are
about: a message counts while any subscription has it ready, delayed or in flight.

Which bodies are still needed follows from three offsets. Below `needed_from` nobody needs any. From
`keep_from` on all are kept, settled or not: that is what makes a log. Between the two a body is needed
while a subscription has its message unfinished or dead; what is not (`gone`) may have vanished, so it
never comes alive again, also not for a subscription made later. `floor` is what a log has forgotten
by itself; `released` is what the group has agreed to let go.
"""

from collections.abc import Sequence

from raftq.ids import Partition as PartitionNumber
from raftq.ids import QueueId
from raftq.queue.config import QueueConfig
from raftq.queue.effects import Available
from raftq.queue.message_bytes import MessageBytes
from raftq.queue.producers import Producer
from raftq.queue.ranges import RangeSet
from raftq.queue.subscription import Subscription


class Partition:
    """State of one partition of one queue.

    Invariants: released <= needed_from <= next_offset; no subscription needs an offset below
    needed_from; message_bytes is the sum over all messages that count.
    """

    __slots__ = (
        "available",
        "config",
        "digest",
        "epoch",
        "floor",
        "message_bytes",
        "messages",
        "needed_from",
        "number",
        "producers",
        "queue",
        "released",
        "sealed",
        "sizes",
        "subscriptions",
        "version",
        "whole_from",
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
        self.needed_from = 0
        self.whole_from = 0 if config.is_log else None
        """Where the history of a log begins; None where the partition is no log."""
        self.floor = 0
        """Below this offset a log has forgotten what it could; it never falls."""
        self.released = 0
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

    @property
    def keep_from(self) -> int:
        """From this offset on messages stay readable when they are finished."""
        return self.next_offset if self.whole_from is None else max(self.whole_from, self.floor)

    @property
    def earliest(self) -> int:
        """Where a new subscription may begin."""
        return max(self.floor, self.needed_from)

    def configure(self, version: int, config: QueueConfig, *, sealed: bool) -> None:
        self.version = version
        self.config = config
        self.sealed = sealed
        if config.is_log and self.whole_from is None:
            # What was settled until now may be gone already: history begins here.
            self.whole_from = self.next_offset
        elif not config.is_log and self.whole_from is not None:
            self.whole_from = None
            self.floor = 0
            self.trim()

    def publish(self, count: int, message_bytes: int, lengths: Sequence[int] | None) -> None:
        """The next `count` messages are there, of these lengths where they are given."""
        if lengths is None:
            self.sizes.append(count, message_bytes)
        else:
            self.sizes.append_each(lengths)
        self.messages += count
        self.message_bytes += message_bytes
        while self._thin():
            pass

    def _thin(self) -> bool:
        """Thins out marks where there are too many, without a change of what is counted."""
        crowd = self.sizes.crowd()
        if crowd is None or (self.config.max_bytes and crowd[1] > self._counted_from()):
            # A limit of bytes is exact: marks of messages that count against it all stay.
            return False
        finished = self._finished_elsewhere(None, *crowd)
        before = sum(self.sizes.between(*part) for part in finished)
        self.sizes.thin(*crowd)
        self.message_bytes += before - sum(self.sizes.between(*part) for part in finished)
        return True

    def _counted_from(self) -> int:
        """No message below this offset counts."""
        return min(
            subscription.finished.first_missing(subscription.start)
            for subscription in self.subscriptions.values()
        )

    def gone(self, start: int, stop: int) -> RangeSet:
        """What of [start, stop) nobody needs any more, so that it may have no body."""
        gone = RangeSet()
        for part in self._finished_elsewhere(None, start, min(stop, self.keep_from)):
            parts = [part]
            for other in self.subscriptions.values():
                parts = [left for low, high in parts for left in other.dead.missing(low, high)]
            for low, high in parts:
                gone.add(low, high)
        return gone

    def is_gone(self, start: int, stop: int) -> bool:
        """Whether `gone` is all of it. It stays so."""
        if stop <= self.needed_from:
            return True
        return stop <= self.keep_from and all(
            subscription.is_done(start, stop) for subscription in self.subscriptions.values()
        )

    def would_count(self, start: int) -> tuple[int, int]:
        """Messages and bytes that count again if a subscription begins there."""
        gone = self.gone(start, self.next_offset)
        again = [
            part
            for low, high in self._finished_elsewhere(None, start, self.next_offset)
            for part in gone.missing(low, high)
        ]
        messages = sum(high - low for low, high in again)
        return messages, sum(self.sizes.between(low, high) for low, high in again)

    def begin(self, subscription: Subscription) -> None:
        """A new subscription, which has not been handed anything."""
        messages, message_bytes = self.would_count(subscription.start)
        self.messages += messages
        self.message_bytes += message_bytes
        gone = self.gone(subscription.start, self.next_offset)
        subscription.begin_without(gone, self.next_offset)
        self.add(subscription)

    def add(self, subscription: Subscription) -> None:
        """A subscription as it was when a snapshot was drawn, or a new one."""
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

    def discard(self, subscription: Subscription, start: int, stop: int, reason: str) -> None:
        """The subscription is done with these messages without having settled them."""
        subscription.note_discarded(start, stop, reason)
        self.finish(subscription, start, stop)

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
        if self.whole_from is not None:
            lowest = min(lowest, self.keep_from)
        if lowest > self.needed_from:
            self.needed_from = lowest
            self.sizes.forget_below(lowest)

    def release_below(self, bound: int) -> None:
        """What lies below may go; of its messages nobody needs any."""
        for subscription in self.subscriptions.values():
            subscription.note_released(self.released, bound)
        self.released = bound

    def _count(self, start: int, stop: int) -> None:
        self.messages += stop - start
        self.message_bytes += self.sizes.between(start, stop)

    def _discount(self, start: int, stop: int) -> None:
        self.messages -= stop - start
        self.message_bytes -= self.sizes.between(start, stop)

    def _finished_elsewhere(
        self, subscription: Subscription | None, start: int, stop: int
    ) -> list[tuple[int, int]]:
        """The parts of [start, stop) that no other subscription (for None: no one) has before it."""
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
