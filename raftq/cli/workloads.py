"""The canonical workload: what a cluster does for one client process, case by case.

    publish-100     saturated publishing, 100 B messages        lists of 10,000, six on their way
    publish-1k      the same with 1 KiB                         lists of 2,000
    publishers-1    one publisher, one message in flight
    publishers-64   64 publishers, each with a connection of its own and one message in flight
    drain           receive and ack of a backlog of 100 B messages, in lists
    drain-each      the same with `async for` and an ack per message

Rules

1. A case measures what the public client does, its own cost included.
2. The first tenth of a timed case warms up and is not counted.
3. What was acknowledged is written into the ledger, if there is one, so that an audit can be asked.
"""

import asyncio
import resource
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from raftq.client.client import AsyncClient
from raftq.client.receipts import Receipt, Receipts
from raftq.embedded.ledger import LedgerRow, digest_of

QUEUE: Final = "bench"
LISTS_IN_FLIGHT: Final = 6
PUBLISHERS: Final = 64
_WARM: Final = 0.1
_RECEIVE_MESSAGES: Final = 10_000


class Measured(NamedTuple):
    """One case. Times in seconds; latencies of single calls, in milliseconds, where they make sense."""

    messages: int
    bytes: int
    seconds: float
    client_cpu_seconds: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    p999_ms: float | None = None


class Bench(NamedTuple):
    """What a case works with."""

    client: AsyncClient
    url: str
    seconds: float
    rows: list[LedgerRow] | None
    """What was acknowledged, for the ledger; None where nobody wants one."""
    noted: set[tuple[int, int]]
    """(queue, base offset) of what is in `rows`."""


Case = Callable[[Bench], Awaitable[Measured]]


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _percentile(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1_000


async def _fresh_queue(bench: Bench) -> int:
    """A queue of its own for each case; its id."""
    names = [queue.name for queue in await bench.client.list_queues()]
    if QUEUE in names:
        await bench.client.delete_queue(QUEUE, force=True)
    await bench.client.create_queue(QUEUE, partitions=1)
    return (await bench.client.describe_queue(QUEUE)).id


async def _saturate(bench: Bench, *, size: int, count: int) -> Measured:
    """Lists of `count` messages, a few at a time, for the given time."""
    queue = await _fresh_queue(bench)
    bodies = [b"x" * size] * count
    begin = time.perf_counter()
    warm, end = begin + bench.seconds * _WARM, begin + bench.seconds
    counted = 0
    cpu = 0.0
    first = begin

    async def publish() -> None:
        nonlocal counted, cpu, first
        while time.perf_counter() < end:
            receipts = await bench.client.send_many(QUEUE, bodies)
            _note(bench, queue, receipts, bodies[0])
            now = time.perf_counter()
            if now < warm:
                cpu, first = _cpu_seconds(), now
            else:
                counted += count

    await asyncio.gather(*(publish() for _ in range(LISTS_IN_FLIGHT)))
    seconds = time.perf_counter() - first
    return Measured(counted, counted * size, seconds, _cpu_seconds() - cpu)


def _note(bench: Bench, queue: int, receipts: Receipts, body: bytes) -> None:
    """All messages of a case are alike, so a batch may be noted by whoever hears of it first."""
    if bench.rows is None:
        return
    for batch in receipts.batches:
        if (queue, batch.base_offset) in bench.noted:
            continue
        bench.noted.add((queue, batch.base_offset))
        bench.rows.append(
            LedgerRow(
                queue=queue,
                partition=batch.partition,
                base_offset=batch.base_offset,
                count=batch.count,
                group=batch.group,
                term=batch.term,
                index=batch.index,
                chain=batch.chain.hex(),
                digest=digest_of([body] * batch.count),
                bytes=batch.count * len(body),
            )
        )


async def publish_100(bench: Bench) -> Measured:
    """Saturated publishing of 100 B messages."""
    return await _saturate(bench, size=100, count=10_000)


async def publish_1k(bench: Bench) -> Measured:
    """Saturated publishing of 1 KiB messages."""
    return await _saturate(bench, size=1_024, count=2_000)


async def _synchronous(bench: Bench, clients: list[AsyncClient]) -> Measured:
    """Each client sends one message after the other."""
    await _fresh_queue(bench)
    body = b"x" * 100
    for client in clients:
        await client.send(QUEUE, body)
    latencies: list[float] = []
    begin = time.perf_counter()
    warm, end = begin + bench.seconds * _WARM, begin + bench.seconds
    cpu = _cpu_seconds()

    async def publish(client: AsyncClient) -> None:
        while True:
            asked = time.perf_counter()
            if asked >= end:
                return
            receipt: Receipt = await client.send(QUEUE, body)
            assert receipt.offset >= 0
            if asked >= warm:
                latencies.append(time.perf_counter() - asked)

    await asyncio.gather(*(publish(client) for client in clients))
    latencies.sort()
    return Measured(
        len(latencies),
        len(latencies) * len(body),
        end - warm,
        (_cpu_seconds() - cpu) * (1 - _WARM),
        _percentile(latencies, 0.5),
        _percentile(latencies, 0.99),
        _percentile(latencies, 0.999),
    )


async def publishers_1(bench: Bench) -> Measured:
    """One synchronous publisher."""
    return await _synchronous(bench, [bench.client])


async def publishers_64(bench: Bench) -> Measured:
    """64 synchronous publishers, each with its own connection."""
    clients = [AsyncClient(bench.url) for _ in range(PUBLISHERS)]
    try:
        for client in clients:
            await client.connect()
        return await _synchronous(bench, clients)
    finally:
        for client in clients:
            await client.close()


async def _backlog(bench: Bench, messages: int) -> None:
    await _fresh_queue(bench)
    bodies = [b"x" * 100] * 10_000
    for _ in range(messages // len(bodies)):
        await bench.client.send_many(QUEUE, bodies)


async def drain(bench: Bench) -> Measured:
    """Receive and ack a backlog in lists; its size follows the time given."""
    wanted = max(int(bench.seconds * 200_000) // 10_000, 1) * 10_000
    await _backlog(bench, wanted)
    begin, cpu = time.perf_counter(), _cpu_seconds()
    done = 0
    while done < wanted:
        messages = await bench.client.receive(QUEUE, max_messages=_RECEIVE_MESSAGES, wait=10.0)
        await bench.client.ack(messages)
        done += len(messages)
    return Measured(done, done * 100, time.perf_counter() - begin, _cpu_seconds() - cpu)


async def drain_each(bench: Bench) -> Measured:
    """The same backlog message by message, with merged acks."""
    wanted = max(int(bench.seconds * 100_000) // 10_000, 1) * 10_000
    await _backlog(bench, wanted)
    begin, cpu = time.perf_counter(), _cpu_seconds()
    done = 0
    async with bench.client.consumer(QUEUE, prefetch=_RECEIVE_MESSAGES) as consumer:
        async for message in consumer:
            await message.ack()
            done += 1
            if done == wanted:
                break
    return Measured(done, done * 100, time.perf_counter() - begin, _cpu_seconds() - cpu)


CASES: Final[dict[str, Case]] = {
    "publish-100": publish_100,
    "publish-1k": publish_1k,
    "publishers-1": publishers_1,
    "publishers-64": publishers_64,
    "drain": drain,
    "drain-each": drain_each,
}
