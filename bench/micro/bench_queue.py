"""What the queue machine costs: run `pytest -o addopts= --benchmark-only bench/micro/bench_queue.py`.

Beside each step stands its budget in nanoseconds on the machine that the project's figures come from.
Budgets are for people: nothing here fails by time. `python bench/micro/bench_queue.py` prints the bytes
that a range in flight takes, in memory and in a snapshot.
"""

import tracemalloc
from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from raftq.batch import encode
from raftq.ids import Index, Micros, Partition, ProducerId, QueueId, SessionId, Term
from raftq.machine import Admitted, Applied, Meta
from raftq.queue import commands
from raftq.queue.config import QueueConfig
from raftq.queue.machine import QueueMachine
from raftq.queue.replies import Delivered, SessionOpened

QUEUE, PARTITION, PRODUCER = QueueId(1), Partition(0), ProducerId(7)
NOON = Micros(1_760_000_000_000_000)
MESSAGES = 630
ROUNDS = 300
STEPS = 30
"""Steps in a round: long enough to be measured, short enough for the producer's window."""


class Group:
    """A machine with one partition, a session and a producer."""

    def __init__(self, *, backlog: int = 0) -> None:
        self.machine = QueueMachine()
        self.admission = self.machine.admission()
        self.index = 0
        self.sequence = 0
        self.number = 0
        self.apply(commands.encode_configure(QUEUE, PARTITION, 1, QueueConfig()))
        opened = self.apply(commands.encode_open_session()).reply
        assert isinstance(opened, SessionOpened)
        self.session: SessionId = opened.session
        for _ in range(backlog):
            self.publish(self.batch(MESSAGES))

    def apply(self, header: bytes, body: bytes = b"") -> Applied:
        self.index += 1
        return self.machine.apply(Meta(Index(self.index), Term(1), NOON, 0), header, body)

    def batch(self, count: int) -> bytes:
        sequence = self.sequence
        self.sequence += count
        return encode(
            [bytes(100)] * count,
            queue=QUEUE,
            partition=PARTITION,
            producer=PRODUCER,
            sequence=sequence,
        )

    def admit(self, body: bytes) -> bytes:
        verdict = self.admission.admit(b"\x01", body, Index(self.index + 1), NOON)
        assert isinstance(verdict, Admitted)
        return verdict.header

    def publish(self, body: bytes) -> None:
        self.apply(self.admit(body), body)
        self.admission.applied(Index(self.index))

    def deliver_header(self, messages: int) -> bytes:
        self.number += 1
        by = (self.session, 0, self.number, self.number)
        return commands.encode_deliver([commands.Taker(*by, QUEUE, "default", messages)])

    def receive(self, messages: int) -> bytes:
        """The header of an ack of what was received."""
        reply = self.apply(self.deliver_header(messages)).reply
        assert isinstance(reply, Delivered)
        delivery = reply.results[0].deliveries[0]
        self.number += 1
        items = [
            (QUEUE, PARTITION, "default", delivery.delivery, found.start, found.stop)
            for found in delivery.ranges
        ]
        return commands.encode_ack(self.session, 0, self.number, self.number, items)


def admit_rounds(
    group: Group, count: int
) -> Callable[[], tuple[tuple[list[bytes]], dict[str, object]]]:
    def setup() -> tuple[tuple[list[bytes]], dict[str, object]]:
        group.admission = group.machine.admission()
        group.sequence = 0
        return ([group.batch(count) for _ in range(STEPS)],), {}

    return setup


@pytest.mark.parametrize("count", [1, MESSAGES])
def test_admit_a_publish(benchmark: BenchmarkFixture, count: int) -> None:
    """Budget: 4,000 ns a batch."""
    group = Group()

    def run(bodies: list[bytes]) -> None:
        for body in bodies:
            group.admit(body)

    benchmark.extra_info["divide by"] = STEPS
    benchmark.pedantic(run, setup=admit_rounds(group, count), rounds=ROUNDS)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("count", [1, MESSAGES])
def test_apply_a_publish(benchmark: BenchmarkFixture, count: int) -> None:
    """Budget: 4,000 ns a batch."""
    group = Group()

    def setup() -> tuple[tuple[list[tuple[bytes, bytes]]], dict[str, object]]:
        bodies = [group.batch(count) for _ in range(STEPS)]
        group.admission = group.machine.admission()
        return ([(group.admit(body), body) for body in bodies],), {}

    def run(pairs: list[tuple[bytes, bytes]]) -> None:
        for header, body in pairs:
            group.apply(header, body)

    benchmark.extra_info["divide by"] = STEPS
    benchmark.pedantic(run, setup=setup, rounds=ROUNDS)  # type: ignore[no-untyped-call]


def test_deliver_one_range(benchmark: BenchmarkFixture) -> None:
    """Budget: 15,000 ns a taker."""
    group = Group(backlog=300)

    def setup() -> tuple[tuple[list[bytes]], dict[str, object]]:
        return ([group.deliver_header(10) for _ in range(STEPS)],), {}

    def run(headers: list[bytes]) -> None:
        for header in headers:
            group.apply(header)

    benchmark.extra_info["divide by"] = STEPS
    benchmark.pedantic(run, setup=setup, rounds=ROUNDS)  # type: ignore[no-untyped-call]


def test_ack_one_range(benchmark: BenchmarkFixture) -> None:
    """Budget: 15,000 ns an ack."""
    group = Group(backlog=300)

    def setup() -> tuple[tuple[list[bytes]], dict[str, object]]:
        return ([group.receive(10) for _ in range(STEPS)],), {}

    def run(headers: list[bytes]) -> None:
        for header in headers:
            group.apply(header)

    benchmark.extra_info["divide by"] = STEPS
    benchmark.pedantic(run, setup=setup, rounds=ROUNDS)  # type: ignore[no-untyped-call]


def test_ack_a_thousand_ranges_out_of_order(benchmark: BenchmarkFixture) -> None:
    """Budget: 5,000 ns a range, of one delivery of two thousand messages."""
    group = Group(backlog=400)
    ranges = 1_000

    def setup() -> tuple[tuple[bytes], dict[str, object]]:
        reply = group.apply(group.deliver_header(2 * ranges)).reply
        assert isinstance(reply, Delivered)
        delivery = reply.results[0].deliveries[0]
        start = delivery.ranges[0].start
        group.number += 1
        items = [
            (QUEUE, PARTITION, "default", delivery.delivery, offset, offset + 1)
            for offset in range(start, start + 2 * ranges, 2)
        ]
        return (commands.encode_ack(group.session, 0, group.number, group.number, items),), {}

    benchmark.extra_info["divide by"] = ranges
    benchmark.pedantic(group.apply, setup=setup, rounds=50)  # type: ignore[no-untyped-call]


def test_digest_of_a_thousand_partitions_of_which_ten_changed(benchmark: BenchmarkFixture) -> None:
    """Budget: 500,000 ns."""
    group = Group()
    config = QueueConfig(partitions=1_000)
    for number in range(1, 1_000):
        group.apply(commands.encode_configure(QUEUE, Partition(number), 2, config))
    group.machine.digest()

    def setup() -> None:
        for number in range(1, 11):
            body = encode([b"x"], queue=QUEUE, partition=Partition(number))
            group.publish(body)

    benchmark.pedantic(group.machine.digest, setup=setup, rounds=50)  # type: ignore[no-untyped-call]


def measure_memory(deliveries: int = 10_000) -> tuple[int, int]:
    """Bytes that a range in flight takes in memory, and in a snapshot."""
    group = Group(backlog=deliveries * 10 // MESSAGES + 1)
    headers = [group.deliver_header(10) for _ in range(deliveries)]
    snapshot = sum(map(len, group.machine.snapshot()))
    tracemalloc.start()
    for header in headers:
        group.apply(header)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    grown = sum(map(len, group.machine.snapshot())) - snapshot
    return used // deliveries, grown // deliveries


if __name__ == "__main__":
    MEMORY, SNAPSHOT = measure_memory()
    print(f"a delivery of one range takes {MEMORY} bytes in memory, {SNAPSHOT} in a snapshot")
