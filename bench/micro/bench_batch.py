"""What batches cost: run `pytest -o addopts= --benchmark-only bench/micro/bench_batch.py`.

Beside each function stands its budget in nanoseconds a message (or a call, where it says so) on the
machine that the project's figures come from. Budgets are for people: nothing here fails by time.
A batch is what a producer sends under load: 64 KiB, 630 messages of about 100 bytes.
"""

from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from raftq.batch import (
    Batch,
    Headers,
    encode,
    encode_stamp,
    read_header,
    read_stamp,
    verify,
    verify_checksum,
)
from raftq.ids import Offset, Partition, QueueId

MESSAGES = 630
QUEUE = QueueId(1)
PARTITION = Partition(2)
NOON = 1_760_000_000_000_000

MIXED = [bytes(90 + number * 7 % 21) for number in range(MESSAGES)]
EQUAL = [bytes(100) for _ in range(MESSAGES)]
KEYS = [f"customer-{number % 50}".encode() for number in range(MESSAGES)]
HEADERS: list[Headers] = [{"kind": "new", "attempt": number} for number in range(MESSAGES)]
TIMES = [NOON + number for number in range(MESSAGES)]

PLAIN = encode(MIXED, queue=QUEUE, partition=PARTITION)
PLAIN_EQUAL = encode(EQUAL, queue=QUEUE, partition=PARTITION)
KEYED = encode(MIXED, queue=QUEUE, partition=PARTITION, keys=KEYS, times=TIMES)
HEADED = encode(MIXED, queue=QUEUE, partition=PARTITION, headers=HEADERS)
ONE = encode(MIXED[:1], queue=QUEUE, partition=PARTITION)
PLAIN_BATCH = Batch(PLAIN)
KEYED_BATCH = Batch(KEYED)
STAMP = encode_stamp(QUEUE, PARTITION, Offset(1_000), MESSAGES)

BUDGETS: dict[str, tuple[int, int, Callable[[], object]]] = {
    # name: (budget in ns, divided by this many messages, what is done)
    "encode bodies": (60, MESSAGES, lambda: encode(MIXED, queue=QUEUE, partition=PARTITION)),
    "encode bodies and keys": (
        180,
        MESSAGES,
        lambda: encode(MIXED, queue=QUEUE, partition=PARTITION, keys=KEYS),
    ),
    "encode bodies and headers": (
        2_000,
        MESSAGES,
        lambda: encode(MIXED, queue=QUEUE, partition=PARTITION, headers=HEADERS),
    ),
    "encode one message, a call": (
        4_000,
        1,
        lambda: encode(MIXED[:1], queue=QUEUE, partition=PARTITION),
    ),
    "read header, a call": (2_000, 1, lambda: read_header(PLAIN)),
    "verify checksum of 64 KiB, a call": (4_000, 1, lambda: verify_checksum(PLAIN)),
    "verify 64 KiB of equal bodies, a call": (5_000, 1, lambda: verify(PLAIN_EQUAL)),
    "verify 64 KiB, a call": (10_000, 1, lambda: verify(PLAIN)),
    "verify keys and times": (120, MESSAGES, lambda: verify(KEYED)),
    "verify one message, a call": (4_000, 1, lambda: verify(ONE)),
    "read bodies from bytes": (45, MESSAGES, PLAIN_BATCH.bodies),
    "read bodies from a view": (50, MESSAGES, Batch(memoryview(PLAIN)).bodies),
    "read 100 bodies from the middle": (90, 100, lambda: PLAIN_BATCH.bodies(300, 400)),
    "read keys": (65, MESSAGES, KEYED_BATCH.keys),
    "read headers, all different": (2_500, MESSAGES, Batch(HEADED).headers),
    "column of key hashes, a call": (2_000, 1, lambda: KEYED_BATCH.key_hashes),
    "encode stamp, a call": (500, 1, lambda: encode_stamp(QUEUE, PARTITION, Offset(1), MESSAGES)),
    "read stamp, a call": (800, 1, lambda: read_stamp(STAMP)),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_batch(benchmark: BenchmarkFixture, name: str) -> None:
    budget, messages, work = BUDGETS[name]
    benchmark(work)
    assert benchmark.stats is not None
    took = benchmark.stats.stats.min * 1e9 / messages
    benchmark.extra_info.update(budget_ns=budget, took_ns=round(took, 1))
    print(f"\n{name}: {took:,.0f} ns (budget {budget:,})")
