"""Producers: messages into batches, batches into outboxes, receipts back.

Rules:

1. A partition's batch is sent when it is full, when its linger is over, or, without a linger, as
   soon as nothing is on its way (then in this very turn of the loop, with all that is submitted in
   it) or an answer has come. So one message alone never waits, and many share batches.
2. A key decides the partition. Without a key a batch goes round: the next one to the next partition.
3. What a broker would refuse in one message is refused before it is in a batch with others.
4. A named producer opens every partition, goes on with its numbers, and fences an older producer of
   its name. One without a name draws a random identity for each partition.
"""

import asyncio
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, Unpack, cast

from raftq.batch import Headers
from raftq.client.identity import Identity
from raftq.client.many import NOT_MINE, as_bytes, check_extras, collect, divide
from raftq.client.options import (
    ACKS,
    ManyOptions,
    MessageOptions,
    check_acks,
    check_names,
    duration_us,
    each,
    each_key,
    read_options,
)
from raftq.client.outbox import Outbox
from raftq.client.outgoing import BATCH_BYTES, BATCH_MESSAGES, PLAIN, OutgoingBatch
from raftq.client.ports import SECOND_US
from raftq.client.receipts import PendingReceipt, Receipt, Receipts
from raftq.client.routing import QueueInfo, Router
from raftq.errors import InvalidArgument, MessageTooLarge, RaftqError
from raftq.ids import Partition, QueueId
from raftq.limits import PRODUCER_WINDOW
from raftq.placement.partitioner import partition_for

DEFAULT_WINDOW: Final = 32
WINDOW_MAX: Final = PRODUCER_WINDOW // 2
"""What was sent before a producer began anew must be remembered beside what it sends then."""

LINGER_SECONDS: Final = 0.002
"""Without a linger of its own a batch waits at most this long behind others on their way."""

LINGER_SECONDS_MAX: Final = 60.0
BUFFER_BYTES: Final = 32 * 1024 * 1024
"""Bodies that a producer takes in before `submit` waits."""

FAILURES_MAX: Final = 1_000
"""Errors kept for `flush`; the rest is counted by the first ones of their kind."""


class Producer:
    """Publishes to one queue. Made by `AsyncClient.producer`; use it as a context manager.

    Leaving the block without an exception flushes; with one, what is buffered still goes out in the
    background until the client is closed.
    """

    def __init__(
        self,
        router: Router,
        queue: str,
        *,
        name: str | None = None,
        linger: float | None = None,
        window: int = DEFAULT_WINDOW,
        seconds: float,
    ) -> None:
        if not 1 <= window <= WINDOW_MAX:
            raise InvalidArgument(f"window is 1 to {WINDOW_MAX} batches, not {window}")
        if linger is not None and not 0 <= linger <= LINGER_SECONDS_MAX:
            raise InvalidArgument(f"linger is 0 to {LINGER_SECONDS_MAX:g} seconds, not {linger}")
        self.queue = queue
        self.name = name
        self._router = router
        self._clock = router.outside.clock
        self._linger = linger
        self._window = window
        self._seconds = seconds
        self._seconds_us = int(seconds * SECOND_US)
        self._outboxes: list[Outbox] = []
        self.queue_id = QueueId(0)
        self._max_message_bytes = 0
        self._sticky = 0
        self._buffered = 0
        self._space: list[asyncio.Future[None]] = []
        self._failures: list[RaftqError] = []
        self._is_closed = True
        self._ended: RaftqError | None = None

    # --- Life --------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Learn the queue's partitions; a named producer opens each of them."""
        info = await self._router.queue(self.queue, self._seconds)
        self.queue_id = info.id
        self._max_message_bytes = info.max_message_bytes
        self._sticky = self._router.outside.entropy.below(len(info.groups))
        self._outboxes = [
            await self._outbox(info, Partition(partition)) for partition in range(len(info.groups))
        ]
        self._is_closed = False
        return self

    async def _outbox(self, info: QueueInfo, partition: Partition) -> Outbox:
        group = info.groups[partition]
        identity = Identity(self._router, info, partition, self.name)
        if self.name is not None:
            await self._router.until_answered(
                lambda patience: identity.take_over(patience.attempt()), self._seconds, group=group
            )
        return Outbox(
            self._router,
            self,
            identity,
            queue=info.id,
            partition=partition,
            group=group,
            window=self._window,
            seconds=self._seconds,
        )

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                await self.flush()
            else:
                self._seal_all()
        finally:
            self._is_closed = True

    @property
    def is_done(self) -> bool:
        """Whether it is closed and nothing of it is on its way."""
        return self._is_closed and not self._buffered

    def stop(self, error: RaftqError) -> None:
        """Give up what is not done."""
        self._is_closed = True
        for outbox in self._outboxes:
            outbox.close()
            outbox.fail_all(error)

    # --- The user's side ---------------------------------------------------------------------

    async def send(
        self,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        **options: Unpack[MessageOptions],
    ) -> Receipt:
        """Publish one message; return when it is acknowledged. Concurrent sends share batches."""
        if self._buffered >= BUFFER_BYTES:
            await self._wait_for_space()
        return await PendingReceipt(*self._add(body, key, headers, options))

    async def submit(
        self,
        body: bytes,
        *,
        key: bytes | None = None,
        headers: Headers | None = None,
        **options: Unpack[MessageOptions],
    ) -> PendingReceipt:
        """Publish one message; wait for buffer space only. `flush` raises what failed."""
        if self._buffered >= BUFFER_BYTES:
            await self._wait_for_space()
        batch, position = self._add(body, key, headers, options)
        batch.submitted = True
        return PendingReceipt(batch, position)

    async def send_many(
        self,
        bodies: Sequence[bytes],
        *,
        keys: Sequence[bytes | None] | bytes | None = None,
        headers: Sequence[Headers | None] | Headers | None = None,
        **options: Unpack[ManyOptions],
    ) -> Receipts:
        """Publish many messages; one receipt each, in their order.

        `keys` has one for each message, or is one for all; so is every option.

        Raises: the first error that a batch met, with the positions of all messages that were not
        acknowledged in `failed`.
        """
        self._check_open()
        bodies = self._checked(bodies)
        count = len(bodies)
        if not count:
            return Receipts([])
        own_keys = each_key(keys, count)
        each_header = each(headers, count, "headers")
        if each_header is None and headers is not None:
            each_header = [cast("Headers", headers)] * count
        check_names(options, ManyOptions)
        positions: list[list[int]] | None
        if options.keys() - {"acks", "delay", "ttl"} or any(
            isinstance(value, list | tuple) for value in options.values()
        ):
            batches, positions = self._add_each(bodies, own_keys, each_header, options)
        else:
            check_acks(options.get("acks", ACKS))
            delay_us = duration_us(cast("float", options.get("delay", 0.0)), "delay")
            ttl_us = duration_us(cast("float", options.get("ttl", 0.0)), "ttl")
            check_extras(own_keys, each_header)
            batches, positions = self._cut(bodies, own_keys, each_header, delay_us, ttl_us)
        return await collect(batches, positions)

    async def flush(self) -> None:
        """Send what is buffered and wait for all of it.

        Raises: ExceptionGroup of what was submitted and failed since the last flush.
        """
        self._seal_all()
        for outbox in self._outboxes:
            for batch in outbox.batches():
                await batch.wait()
        failures, self._failures = self._failures, []
        if failures:
            raise ExceptionGroup(f"{len(failures)} batches for {self.queue!r} failed", failures)

    # --- Into batches ------------------------------------------------------------------------

    def _add(
        self,
        body: bytes,
        key: bytes | None,
        headers: Headers | None,
        options: Mapping[str, object] | MessageOptions,
    ) -> tuple[OutgoingBatch, int]:
        """Put one message into its partition's open batch; where it is."""
        if not key and not headers and not options and type(body) is bytes:
            outbox = self._outboxes[self._sticky % len(self._outboxes)] if self._outboxes else None
            batch = outbox.open if outbox is not None else None
            size = len(body)
            if batch is not None and batch.is_plain and size <= self._max_message_bytes:
                # The fast way: one more body in a batch that holds nothing but bodies.
                assert outbox is not None
                position = len(batch.bodies)
                batch.bodies.append(body)
                batch.size += size
                self._buffered += size
                if batch.size >= BATCH_BYTES or position + 1 >= BATCH_MESSAGES:
                    self._seal(outbox)
                return batch, position
        if self._is_closed:
            self._check_open()
        if type(body) is not bytes:
            body = as_bytes(body)
        if len(body) > self._max_message_bytes:
            raise self._too_large(len(body))
        if key or headers:
            check_extras([key], [headers])
        extras, delay_us, ttl_us = (
            read_options(cast("Mapping[str, Any]", options)) if options else (PLAIN, 0, 0)
        )
        outbox = self._outboxes[partition_for(key, len(self._outboxes), self._sticky)]
        batch = outbox.open
        if batch is not None and (batch.delay_us, batch.ttl_us) != (delay_us, ttl_us):
            self._seal(outbox)
            batch = None
        if batch is None:
            batch = outbox.open = self._batch(delay_us, ttl_us)
            self._schedule(outbox)
        before = batch.size
        position = batch.add(body, key, headers, extras)
        self._buffered += batch.size - before
        if batch.is_full:
            self._seal(outbox)
        return batch, position

    def _add_each(
        self,
        bodies: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers | None] | None,
        options: ManyOptions,
    ) -> tuple[list[OutgoingBatch], list[list[int]]]:
        """The way of messages with options of their own: one by one, into the open batches."""
        count = len(bodies)
        columns = {name: each(value, count, name) for name, value in options.items()}
        shared = {name: value for name, value in options.items() if columns[name] is None}
        own = {name: values for name, values in columns.items() if values is not None}
        # The batches may hold other messages too: those are given empty places.
        numbers: dict[int, int] = {}
        batches: list[OutgoingBatch] = []
        positions: list[list[int]] = []
        for message in range(count):
            one = shared | {name: values[message] for name, values in own.items()}
            key = keys[message] if keys is not None else None
            header = headers[message] if headers is not None else None
            batch, position = self._add(bodies[message], key, header, one)
            number = numbers.setdefault(id(batch), len(batches))
            if number == len(batches):
                batches.append(batch)
                positions.append([])
            places = positions[number]
            places += [NOT_MINE] * (position - len(places))
            places.append(message)
        return batches, positions

    def _cut(
        self,
        bodies: Sequence[bytes],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[Headers | None] | None,
        delay_us: int,
        ttl_us: int,
    ) -> tuple[list[OutgoingBatch], list[list[int]] | None]:
        """Whole batches, without touching a message where there are no keys."""
        batches: list[OutgoingBatch] = []
        places: list[list[int]] = []
        partitions = len(self._outboxes)
        for lot in divide(bodies, keys, headers, partitions, self._sticky):
            if lot.positions is not None:
                places.append(lot.positions)
            else:
                self._sticky += 1
            batch = self._batch(delay_us, ttl_us)
            batch.bodies, batch.keys, batch.headers = lot.bodies, lot.keys, lot.headers
            batch.size = sum(map(len, lot.bodies))
            self._buffered += batch.size
            outbox = self._outboxes[lot.partition]
            self._seal(outbox)
            outbox.put(batch)
            batches.append(batch)
        return batches, places or None

    def _batch(self, delay_us: int, ttl_us: int) -> OutgoingBatch:
        return OutgoingBatch(
            now=self._clock.wall(),
            until=self._clock.monotonic() + self._seconds_us,
            delay_us=delay_us,
            ttl_us=ttl_us,
        )

    # --- Out of the door ---------------------------------------------------------------------

    def _schedule(self, outbox: Outbox) -> None:
        """Decide when the batch that was just opened leaves at the latest."""
        loop = asyncio.get_running_loop()
        linger = self._linger
        if linger is None:
            linger = 0.0 if outbox.is_idle else LINGER_SECONDS
        if linger:
            outbox.timer = loop.call_later(linger, self._seal, outbox)
        else:
            outbox.timer = loop.call_soon(self._seal, outbox)

    def _seal(self, outbox: Outbox) -> None:
        """Send the open batch, if there is one."""
        batch, outbox.open = outbox.open, None
        if outbox.timer is not None:
            outbox.timer.cancel()
            outbox.timer = None
        if batch is not None:
            self._sticky += 1
            outbox.put(batch)

    def _seal_all(self) -> None:
        for outbox in self._outboxes:
            self._seal(outbox)

    def ended(self, error: RaftqError) -> None:
        """Fenced, or the queue is gone: whoever publishes next hears at once."""
        self._is_closed = True
        self._ended = error
        self._max_message_bytes = -1  # Nothing takes the fast way any more.

    def batch_done(self, outbox: Outbox, batch: OutgoingBatch) -> None:
        """The outbox knows what became of a batch."""
        self._buffered -= batch.size
        if batch.error is not None and batch.submitted and len(self._failures) < FAILURES_MAX:
            self._failures.append(batch.error)
        if self._space and self._buffered < BUFFER_BYTES:
            waiting, self._space = self._space, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
        if outbox.open is not None and self._linger is None and not outbox.is_crowded:
            self._seal(outbox)

    async def _wait_for_space(self) -> None:
        while self._buffered >= BUFFER_BYTES:
            self._seal_all()
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._space.append(future)
            await future

    # --- Checks ------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._ended is not None:
            raise type(self._ended)(str(self._ended), outcome="not_applied") from self._ended
        if self._is_closed:
            raise InvalidArgument(f"the producer for {self.queue!r} is closed; open another one")

    def _checked(self, bodies: Sequence[bytes]) -> Sequence[bytes]:
        if not isinstance(bodies, Sequence) or isinstance(
            bodies, str | bytes | bytearray | memoryview
        ):
            raise InvalidArgument(f"bodies is a list of bytes, not {bodies!r:.100}")
        if set(map(type, bodies)) - {bytes}:
            bodies = list(map(as_bytes, bodies))
        largest = max(map(len, bodies), default=0)
        if largest > self._max_message_bytes:
            raise self._too_large(largest)
        return bodies

    def _too_large(self, length: int) -> MessageTooLarge:
        return MessageTooLarge(
            f"a message of {length} bytes; {self.queue!r} takes {self._max_message_bytes} "
            "(max_message_bytes): store it elsewhere and send a reference"
        )
