"""A batch in the making and on its way: columns of messages, who waits for it, what became of it.

Rule: a column that is not used is not made; it is filled up when its first value comes.
"""

import asyncio
from typing import Final, NamedTuple

from raftq.batch import Headers, dedup_hash, encode
from raftq.errors import RaftqError
from raftq.ids import Partition, ProducerId, QueueId
from raftq.limits import MAX_BATCH_MESSAGES
from raftq.wire.requests import Published

BATCH_BYTES: Final = 64 * 1024
"""A batch is sent when its bodies reach this: more gave little speed for much latency."""

BATCH_MESSAGES: Final = min(MAX_BATCH_MESSAGES, 16_384)


class Extras(NamedTuple):
    """What one message has besides body, key and headers; times in microseconds, 0 = none."""

    time: int = 0
    due: int = 0
    priority: int = 0
    dedup: bytes | None = None


PLAIN: Final = Extras()


class OutgoingBatch:
    """Messages of one partition that share their delay and time to live."""

    __slots__ = (
        "_waiters",
        "bodies", "count",
        "created_us",
        "data",
        "dedup",
        "delay_us",
        "due",
        "epoch",
        "error",
        "headers",
        "is_answered",
        "is_done",
        "is_plain",
        "is_unknown",
        "keys",
        "priorities",
        "producer",
        "published",
        "sent_us",
        "sequence",
        "size",
        "submitted",
        "times",
        "ttl_us",
        "until",
    )  # fmt: skip

    def __init__(self, *, now: int, until: int, delay_us: int = 0, ttl_us: int = 0) -> None:
        self.bodies: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[Headers | None] | None = None
        self.times: list[int] | None = None
        self.due: list[int] | None = None
        self.priorities: list[int] | None = None
        self.dedup: list[bytes | None] | None = None
        self.is_plain = not delay_us and not ttl_us
        """Whether it holds nothing but bodies."""
        self.size = 0
        self.count = 0
        """Messages, when it is done and the bodies are let go."""
        self.delay_us = delay_us
        self.ttl_us = ttl_us
        self.created_us = now
        """Wall clock: the producer time of all messages that have none of their own."""
        self.until = until
        """Monotonic clock: when its producer gives up."""
        self.producer = ProducerId(0)
        self.epoch = 0
        self.sequence = -1
        """Of its first message; -1 until it is sent for the first time."""
        self.data = b""
        self.sent_us = 0
        self.is_answered = False
        """Whether the newest of its sendings was answered, if only by a refusal."""
        self.is_done = False
        self.is_unknown = False
        """Whether it may have been applied although no answer says so."""
        self.published: Published | None = None
        self.error: RaftqError | None = None
        self.submitted = False
        """Whether nobody may be waiting for it, so that `flush` must report its failure."""
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def may_be_applied(self) -> bool:
        """Whether some sending of it has an unknown fate."""
        return self.is_unknown or (self.sent_us > 0 and not self.is_answered)

    @property
    def is_full(self) -> bool:
        return self.size >= BATCH_BYTES or len(self.bodies) >= BATCH_MESSAGES

    def unsent(self) -> None:
        """No sending of it was applied, or ever will be."""
        self.is_unknown = self.is_answered = False
        self.sent_us = 0

    def add(self, body: bytes, key: bytes | None, headers: Headers | None, extras: Extras) -> int:
        """Add one message; its position."""
        position = len(self.bodies)
        self.bodies.append(body)
        self.size += len(body)
        if key or headers or extras is not PLAIN:
            self.is_plain = False
        if key or self.keys is not None:
            if self.keys is None:
                self.keys = [None] * position
            self.keys.append(key)
            self.size += len(key or b"")
        if headers or self.headers is not None:
            if self.headers is None:
                self.headers = [None] * position
            self.headers.append(headers)
            self.size += 32 * len(headers or ())  # A guess; what counts is that it is counted.
        if extras is not PLAIN or self.times is not None:
            self._add_extras(position, extras)
        return position

    def _add_extras(self, position: int, extras: Extras) -> None:
        if self.times is None:
            # All extra columns come together: who uses one is not on the fast way any more.
            self.times = [self.created_us] * position
            self.due = [0] * position
            self.priorities = [0] * position
            self.dedup = [None] * position
        assert self.due is not None
        assert self.priorities is not None
        assert self.dedup is not None
        self.times.append(extras.time or self.created_us)
        self.due.append(extras.due)
        self.priorities.append(extras.priority)
        self.dedup.append(dedup_hash(extras.dedup) if extras.dedup else None)

    def encode(self, queue: QueueId, partition: Partition) -> bytes:
        """The batch's bytes under its present number, kept in `data` for sending again.

        Raises: InvalidArgument, MessageTooLarge.
        """
        self.data = encode(
            self.bodies,
            queue=queue,
            partition=partition,
            producer=self.producer,
            epoch=self.epoch,
            sequence=self.sequence,
            keys=self.keys,
            headers=self.headers,
            times=self.created_us if self.times is None else self.times,
            due=self.due,
            priorities=self.priorities,
            dedup_hashes=self.dedup,
            delay_us=self.delay_us,
            ttl_us=self.ttl_us,
        )
        return self.data

    def resolve(self, published: Published) -> None:
        self.published = published
        self._end()

    def fail(self, error: RaftqError) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        assert not self.is_done
        self.is_done = True
        self.count = len(self.bodies)
        self.bodies = []
        self.keys = self.headers = None
        self.data = b""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> None:
        """Until it is done, well or not. Each who waits has a future of its own: one that is
        cancelled must not cancel what the others wait for.
        """
        if not self.is_done:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def result(self) -> Published:
        """What became of a batch that is done.

        Raises: the error it met; each time a new instance, so that tracebacks stay apart.
        """
        assert self.is_done, "not done yet: await it"
        if self.published is None:
            error = self.error
            assert error is not None
            raise type(error)(
                str(error),
                outcome=error.outcome,
                retry_after=error.retry_after,
                failed=error.failed,
            ) from error.__cause__
        return self.published
