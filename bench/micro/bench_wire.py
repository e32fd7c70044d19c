"""What one message, one batch and one frame cost in the protocol and in the client library.

Run it: `python bench/micro/bench_wire.py`. The server's side is left out: frames are fed from
memory, answers are made in advance. Figures are the best of several rounds, in nanoseconds.
"""

import asyncio
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from raftq import batch
from raftq.client.client import AsyncClient
from raftq.client.message import Message, Target, messages_of, sources_of
from raftq.client.outgoing import OutgoingBatch
from raftq.client.producer import Producer
from raftq.client.routing import QueueInfo
from raftq.client.settle import runs_of
from raftq.ids import GroupId, Micros, Offset, Partition, QueueId, SessionId
from raftq.wire import requests
from raftq.wire.frames import FrameKind, FrameReader, encode_frame

ROUNDS = 15
MESSAGES = 100_000
BODY = b"x" * 100
PER_BATCH = 630


def best(work: Callable[[], object], count: int) -> float:
    """Nanoseconds per item of the fastest round."""
    fastest = float("inf")
    for _ in range(ROUNDS):
        begun = time.perf_counter_ns()
        work()
        fastest = min(fastest, time.perf_counter_ns() - begun)
    return fastest / count


def show(what: str, nanoseconds: float) -> None:
    print(f"{what:<56}{nanoseconds:>12,.0f} ns")


class Answering:
    """Stands for a connection: answers every publish at once."""

    is_open = True

    def send(self, kind: int, parts: list[Any], answer: Callable[[Any], None]) -> int:
        header = batch.read_header(parts[1])
        reply = requests.Published(
            GroupId(1), header.partition, Offset(0), header.count, 2, False, 1, 1, bytes(16)  # type: ignore[arg-type]
        )  # fmt: skip
        body = memoryview(b"".join(requests.encode_published(reply)))
        asyncio.get_running_loop().call_soon(answer, _frame(kind + 1, body))
        return 1


def _frame(kind: int, body: memoryview) -> Any:
    reader = FrameReader()
    reader.authenticated()
    data = b"".join(encode_frame(kind, 1, body))
    reader.get_buffer()[: len(data)] = data
    return reader.received(len(data))[0]


def producer(partitions: int) -> Producer:
    """A producer whose batches are answered as soon as they are sent."""
    client = AsyncClient("raftq://nowhere")
    router = client._router  # noqa: SLF001 - the network is left out here.
    connection = Answering()
    router.open_to = lambda _: connection  # type: ignore[method-assign,assignment,return-value]
    info = QueueInfo("q", QueueId(1), (GroupId(1),) * partitions, {})
    router._queues["q"] = info  # noqa: SLF001 - as above.
    return Producer(router, "q", seconds=30.0)


async def publishing() -> None:
    bodies = [BODY] * MESSAGES
    keys: list[bytes | None] = [b"key-%d" % (number % 1_000) for number in range(MESSAGES)]
    for what, partitions, some_keys in (
        ("send_many, no keys", 1, None),
        ("send_many, 1,000 keys, 4 partitions", 4, keys),
    ):
        fastest = float("inf")
        opened = await producer(partitions).open()
        for _ in range(ROUNDS):
            begun = time.perf_counter_ns()
            await opened.send_many(bodies, keys=some_keys)
            fastest = min(fastest, time.perf_counter_ns() - begun)
        show(f"{what}, per message", fastest / MESSAGES)
    opened = await producer(1).open()
    fastest = float("inf")
    for _ in range(ROUNDS):
        begun = time.perf_counter_ns()
        for body in bodies:
            await opened.submit(body)
        await opened.flush()
        fastest = min(fastest, time.perf_counter_ns() - begun)
    show("submit + flush, per message", fastest / MESSAGES)
    fastest = float("inf")
    for _ in range(ROUNDS):
        begun = time.perf_counter_ns()
        await asyncio.gather(*(opened.send(BODY) for _ in range(10_000)))
        fastest = min(fastest, time.perf_counter_ns() - begun)
    show("10,000 concurrent sends, a task each, per message", fastest / 10_000)


def receiving() -> None:
    data = batch.encode([BODY] * PER_BATCH, queue=QueueId(1), partition=Partition(0))
    stored = requests.StoredBatch(Partition(0), Offset(0), Micros(5), data)
    held = requests.Range(Offset(0), Offset(PER_BATCH), 1)
    delivery = requests.Delivery(Partition(0), 7, Micros(9), (held,))
    body = memoryview(
        b"".join(requests.encode_delivered(requests.Delivered((delivery,), (stored,))))
    )
    target = Target("q", QueueId(1), "default", GroupId(1), SessionId(1))
    settler = cast("Any", SimpleNamespace())

    def receive() -> list[Message]:
        found: list[Message] = []
        for source in sources_of(requests.decode_delivered(body), target, settler):
            found += messages_of(source, Message)
        return found

    messages = receive()
    show("receive: frame body to messages, per message", best(receive, PER_BATCH))
    show(
        "reading body and key of each, per message",
        best(lambda: [(message.body, message.key) for message in messages], PER_BATCH),
    )
    show("ack: messages to ranges, per message", best(lambda: runs_of(messages), PER_BATCH))


def frames() -> None:
    def feed(data: bytes, reader: FrameReader) -> int:
        position = found = 0
        while position < len(data):
            buffer = reader.get_buffer()
            count = min(len(buffer), len(data) - position)
            buffer[:count] = data[position : position + count]
            position += count
            found += len(reader.received(count))
        return found

    reader = FrameReader()
    reader.authenticated()
    small = b"".join(encode_frame(FrameKind.PUBLISH, 1, bytes(236))) * 1_000
    show("reading a frame of 248 bytes", best(lambda: feed(small, reader), 1_000))
    large = b"".join(encode_frame(FrameKind.PUBLISH, 1, bytes(65_536))) * 50
    show(
        "reading a frame of 64 KiB, its copy into the chunk too",
        best(lambda: feed(large, reader), 50),
    )
    publish = b"".join(requests.encode_publish(requests.Publish(2, 5_000, bytes(200))))
    view = memoryview(publish)
    show(
        "decoding a PUBLISH",
        best(lambda: [requests.decode_publish(view) for _ in range(1_000)], 1_000),
    )
    outgoing = OutgoingBatch(now=1, until=2)
    outgoing.sequence = 0
    outgoing.bodies = [BODY] * PER_BATCH
    show(
        "encoding a batch, per message",
        best(lambda: outgoing.encode(QueueId(1), Partition(0)), PER_BATCH),
    )


def main() -> None:
    frames()
    asyncio.run(publishing())
    receiving()


if __name__ == "__main__":
    main()
