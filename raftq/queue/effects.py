"""What the leader does besides answering: wake who waits, count what happened."""

from typing import NamedTuple

from raftq.ids import Partition, QueueId


class Available(NamedTuple):
    """Messages became ready: watches on this subscription are worth a look."""

    queue: QueueId
    subscription: str


class DeadLettered(NamedTuple):
    """Messages ended as dead letters."""

    queue: QueueId
    partition: Partition
    subscription: str
    ranges: tuple[tuple[int, int], ...]
    reason: str


class Expired(NamedTuple):
    """A delivery ran out of its visibility; its messages went back, or died of it."""

    queue: QueueId
    partition: Partition
    subscription: str
    delivery: int
    session: int
    messages: int
