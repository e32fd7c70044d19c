"""What clients do in a simulation, one worker a class.

    Synchronous   one message in flight
    Windowed      a named producer with many messages in flight; opened anew under its name, now and
                  then before the last one is done, which fences that
    Bulk          lists of messages
    Parallel      many sends at once through one client
    Receiver      receives lists; acks, gives back, extends, lets go
    Iterator      the prefetching consumer
    Replayer      reads partitions from some offset to their end
    Describer     describes queues; knows in the end when they are empty

Rule: a worker shares nothing with others but the workload, and draws from a generator of its own.
"""

import asyncio
import random
from collections.abc import Awaitable, Sequence
from typing import Final, TypeVar

from raftq.client.client import AsyncClient
from raftq.client.consumer import Consumer
from raftq.client.message import Message
from raftq.client.producer import Producer
from raftq.client.reader import Reader
from raftq.client.receipts import PendingReceipt, Receipt
from raftq.errors import OffsetOutOfRange, ProducerFenced, RaftqError, StaleReceipt
from raftq.sim.checkers import ViolationError
from raftq.sim.workload import SUBSCRIPTION, QueuePlan, Workload

Answer = TypeVar("Answer")

KEYS: Final = 5
WAIT_SECONDS: Final = 1.0
EMPTY_TIMES: Final = 2
"""So often must all queues be found empty: what a client repeats may still arrive."""


class Worker:
    """Works until the workload ends, and leaves. Every call that is answered is an operation."""

    name = "worker"
    share = 0.05
    """How much of all operations it does, about."""

    produces = False
    is_ordered = True
    """Whether it sends in an order: many sends at once have none."""

    is_named = False
    """Whether its order goes on when its process is started again."""

    def __init__(self, workload: Workload, client: AsyncClient, host: str) -> None:
        self.workload = workload
        self.client = client
        self.host = host
        self.done = 0
        self.choose: random.Random = workload.generator(self.name)
        self.payloads = workload.payloads(
            self.name, self.choose, ordered=self.is_ordered, lasting=self.is_named
        )

    @property
    def goes_on(self) -> bool:
        workload = self.workload
        return not (workload.is_ending if self.produces else workload.is_drained)

    async def run(self) -> None:
        producing = self.workload.producing
        producing[self.host] += self.produces
        while self.goes_on:
            before = self.done
            await self.work()
            await self.rest(max(1, self.done - before))
        await self.close()
        producing[self.host] -= self.produces

    async def work(self) -> None:
        """One piece of work."""
        raise NotImplementedError

    async def close(self) -> None:
        """After the last piece of work."""

    async def rest(self, operations: int) -> None:
        """Pause for as long as so many operations may take."""
        await asyncio.sleep(self.workload.pause_seconds(self.choose, operations, self.share))

    def queue(self) -> QueuePlan:
        return self.choose.choice(self.workload.queues)

    def key(self) -> bytes | None:
        number = self.choose.randrange(KEYS + 1)
        return f"key-{number}".encode() if number else None

    # --- Operations ----------------------------------------------------------------------------

    async def call(self, kind: str, work: Awaitable[Answer]) -> Answer | None:
        """One operation; None if it ended with an error that faults can cause."""
        try:
            result = await work
        except RaftqError as error:
            self.failed(kind, error)
            return None
        self.succeeded(kind)
        return result

    def succeeded(self, kind: str) -> None:
        self.done += 1
        self.workload.succeeded(kind)

    def failed(self, kind: str, error: RaftqError, also: tuple[type[RaftqError], ...] = ()) -> None:
        self.done += 1
        self.workload.failed(kind, error, also)

    async def send(
        self,
        kind: str,
        queue: str,
        body: bytes,
        work: Awaitable[Receipt],
        also: tuple[type[RaftqError], ...] = (),
    ) -> None:
        """One message on its way: tell what becomes of it. It may end with the errors `also`."""
        try:
            receipt = await work
        except RaftqError as error:
            self.failed(kind, error, also)
            if error.outcome == "not_applied":
                self.workload.refused(body)
        else:
            self.workload.acknowledged(queue, receipt, body)
            self.succeeded(kind)


class Synchronous(Worker):
    """One message at a time."""

    name = "synchronous"
    share = 0.08
    produces = True

    async def work(self) -> None:
        queue = self.queue().name
        body = self.payloads.next(queue)
        await self.send("send", queue, body, self.client.send(queue, body, key=self.key()))


class Windowed(Worker):
    """Many messages in flight, under a name that is opened again and again.

    Whatever happens to the processes of that name, what they sent stays in one order; and only who
    was followed by a newer opening may be told that it is fenced.
    """

    name = "windowed"
    share = 0.24
    produces = True
    is_named = True

    def __init__(self, workload: Workload, client: AsyncClient, host: str) -> None:
        super().__init__(workload, client, host)
        self.plan = self.queue()
        self.producer: Producer | None = None
        self.openings = 0
        self.pending: list[tuple[bytes, int, PendingReceipt]] = []

    async def work(self) -> None:
        if self.producer is None and not await self._reopened():
            return
        assert self.producer is not None
        for _ in range(self.choose.randint(5, 40)):
            body = self.payloads.next(self.plan.name)
            try:
                receipt = await self.producer.submit(body, key=self.key())
            except RaftqError as error:
                self.failed("submit", error)
                self.workload.refused(body)
                self.producer = None
                break
            self.pending.append((body, self.openings, receipt))
            if not self.choose.randrange(8):
                await asyncio.sleep(0.001)
        if not self.choose.randrange(6):
            self.producer = None  # Fenced by the next one of its name, with messages in flight.
        else:
            await self.close()

    async def close(self) -> None:
        """Wait for all that is in flight."""
        pending, self.pending = self.pending, []
        for body, opening, receipt in pending:
            also = (ProducerFenced,) if opening < self.openings else ()
            await self.send("submit", self.plan.name, body, receipt, also)

    async def _reopened(self) -> bool:
        self.openings += 1
        linger = self.choose.choice((None, 0.005))
        producer = self.client.producer(self.plan.name, name=self.name, linger=linger, window=8)
        self.producer = await self.call("open", producer.open())
        return self.producer is not None


class Bulk(Worker):
    """Lists of messages."""

    name = "bulk"
    produces = True

    async def work(self) -> None:
        queue = self.queue().name
        bodies = [self.payloads.next(queue) for _ in range(self.choose.randint(2, 20))]
        keys = [self.key() for _ in bodies] if self.choose.randrange(2) else None
        receipts = await self.call("send_many", self.client.send_many(queue, bodies, keys=keys))
        if receipts is not None:
            for body, receipt in zip(bodies, receipts, strict=True):
                self.workload.acknowledged(queue, receipt, body)


class Parallel(Worker):
    """Many sends at once, in one turn of the loop or nearly."""

    name = "parallel"
    share = 0.45
    produces = True
    is_ordered = False

    async def work(self) -> None:
        queue = self.queue().name
        spread = self.choose.choice((0.0, 0.0, 0.01))
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(self._send_one(queue, spread))
            for _ in range(self.choose.randint(5, 50))
        ]
        for task in tasks:
            await task

    async def _send_one(self, queue: str, spread: float) -> None:
        if spread:
            await asyncio.sleep(self.choose.random() * spread)
        body = self.payloads.next(queue)
        await self.send("send", queue, body, self.client.send(queue, body, key=self.key()))


class Receiver(Worker):
    """Lists of messages, which meet all the fates that messages meet."""

    name = "receiver"
    share = 0.04

    async def work(self) -> None:
        plan = self.queue()
        count = self.choose.randint(1, 50)
        messages = await self.call(
            "receive", self.client.receive(plan.name, max_messages=count, wait=WAIT_SECONDS)
        )
        if messages:
            self.workload.delivered(messages)
            await self._handle(plan, messages)

    async def _handle(self, plan: QueuePlan, messages: list[Message]) -> None:
        fate = 0 if self.workload.is_ending else self.choose.randrange(20)
        some = messages[: self.choose.randint(1, len(messages))]
        if fate == 19:
            return  # Let go: they come back when their time is over.
        if fate >= 16:
            await self.call("nack", self.client.nack(some, delay=0.2, reason="try again"))
            messages = messages[len(some) :]
        elif fate >= 14:
            await self.call("extend", self.client.extend(messages, 2.0))
            await asyncio.sleep(plan.visibility_seconds * self.choose.random())
        elif fate >= 13:
            await asyncio.sleep(plan.visibility_seconds * 1.5)
        if messages:
            await self._ack(messages)

    async def _ack(self, messages: Sequence[Message]) -> None:
        try:
            await self.client.ack(messages)
        except StaleReceipt as error:
            self.workload.settled(messages, error)
            self.failed("ack", error)
        except RaftqError as error:
            self.failed("ack", error)
        else:
            self.workload.settled(messages)
            self.succeeded("ack")


class Iterator(Worker):
    """The consumer that fetches ahead."""

    name = "iterator"
    share = 0.04

    async def work(self) -> None:
        consumer = self.client.consumer(self.queue().name, prefetch=self.choose.choice((5, 50)))
        try:
            async with consumer, asyncio.timeout(self.choose.random() * 3):
                await self._consume(consumer)
        except TimeoutError as error:
            if isinstance(error, RaftqError):  # The library's own is a TimeoutError as well.
                self.failed("iterate", error)
        except RaftqError as error:
            self.failed("iterate", error)

    async def _consume(self, consumer: Consumer[Message]) -> None:
        noted: list[Message] = []
        flush_at = self.choose.randint(1, 40)
        async for message in consumer:
            self.workload.delivered([message])
            noted.append(message)
            await message.ack()
            if len(noted) >= flush_at:
                await self._flush(consumer, noted)
                noted = []

    async def _flush(self, consumer: Consumer[Message], noted: list[Message]) -> None:
        try:
            await consumer.flush()
        except StaleReceipt as error:
            self.workload.settled(noted, error)
            self.failed("flush", error)
        else:
            self.workload.settled(noted)
            self.succeeded("flush")


LONGEST_RUN_SECONDS = 3_600.0


class Replayer(Worker):
    """Reads without consuming; what was read once stays readable until it is settled and old."""

    name = "replayer"
    share = 0.01

    def __init__(self, workload: Workload, client: AsyncClient, host: str) -> None:
        super().__init__(workload, client, host)
        self.ends: dict[tuple[str, int], int] = {}

    async def work(self) -> None:
        plan = self.queue()
        partition = self.choose.randrange(plan.partitions)
        end = self.ends.get((plan.name, partition), 0)
        expected = max(0, end - self.choose.randrange(60))
        reader = self.client.reader(plan.name, partition=partition, start=expected, follow=False)
        is_over = False
        while not is_over:
            try:
                expected = await self._read(reader, plan.name, expected)
            except OffsetOutOfRange as error:
                behind = reader.next_offset
                if plan.audit_seconds > LONGEST_RUN_SECONDS or behind is None or behind <= expected:
                    raise ViolationError(f"offsets that were read are gone: {error}") from error
                expected = behind
            except RaftqError as error:
                self.failed("read", error)
                is_over = True
            else:
                self.succeeded("read")
                is_over = True
        self.ends[plan.name, partition] = max(end, expected)

    async def _read(self, reader: Reader[Message], queue: str, expected: int) -> int:
        """Up to the end; the offset behind it."""
        async for message in reader:
            if message.offset != expected:
                raise ViolationError(
                    f"a reader of {queue}/{reader.partition} was given offset {message.offset} "
                    f"in the place of {expected}"
                )
            self.workload.read(message)
            expected += 1
        return expected


class Describer(Worker):
    """Asks for the state of queues, and so finds out when they are empty."""

    name = "describer"
    share = 0.01

    def __init__(self, workload: Workload, client: AsyncClient, host: str) -> None:
        super().__init__(workload, client, host)
        self._times_empty = 0

    async def work(self) -> None:
        workload = self.workload
        are_producers_done = workload.is_ending and not workload.producing.total()
        depth = 0
        for plan in workload.queues:
            found = await self.call(
                "describe", self.client.describe_queue(plan.name, subscription=SUBSCRIPTION)
            )
            depth += found.depth if found is not None else 1
            if found is not None and found.dead:
                raise ViolationError(f"{plan.name} has dead letters, and no delivery limit")
        is_empty = are_producers_done and not depth
        self._times_empty = self._times_empty + 1 if is_empty else 0
        workload.is_drained = self._times_empty >= EMPTY_TIMES


HOSTS: Final[dict[str, tuple[type[Worker], ...]]] = {
    "c1": (Synchronous, Bulk, Describer),
    "c2": (Windowed, Parallel),
    "c3": (Receiver, Receiver),
    "c4": (Receiver, Iterator, Replayer),
}
"""What runs on which client host."""

CRASHING: Final = ("c2", "c3")
"""Hosts whose client processes are killed now and then."""
