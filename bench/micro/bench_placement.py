"""What placement costs: run `pytest -o addopts= --benchmark-only bench/micro/bench_placement.py`.

Beside each function stands its budget in nanoseconds a call. Budgets are for people: nothing here
fails by time. Only the partitioner runs once a message, in the client; the rest once a partition.
"""

from collections.abc import Callable

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from raftq.ids import GroupId, Partition, QueueId
from raftq.placement import Candidate, Ring, choose_nodes, partition_for

UNIQUE = [f"customer-{number}".encode() for number in range(100_000)]
REPEATED = [f"customer-{number % 1_000}".encode() for number in range(100_000)]
RING = Ring([GroupId(number) for number in range(1, 4)])
LOAD = {GroupId(number): 100 for number in range(1, 4)}
NODES = [Candidate(f"n{number}", f"r{number % 3}", number) for number in range(9)]

BUDGETS: dict[str, tuple[int, int, Callable[[], object]]] = {
    # name: (budget in ns, divided by this many, what is done)
    "partition of keys that repeat": (
        250,
        100_000,
        lambda: [partition_for(key, 4) for key in REPEATED],
    ),
    "partition of keys that never repeat": (
        1_400,
        100_000,
        lambda: [partition_for(key, 4) for key in UNIQUE],
    ),
    "place one partition on three groups": (
        3_000,
        1,
        lambda: RING.place(QueueId(7), Partition(3), LOAD),
    ),
    "make a ring of 100 groups": (
        15_000_000,
        1,
        lambda: Ring([GroupId(number) for number in range(100)]),
    ),
    "choose three of nine nodes": (15_000, 1, lambda: choose_nodes(GroupId(1), NODES, 3)),
}


@pytest.mark.parametrize("name", BUDGETS)
def test_placement(benchmark: BenchmarkFixture, name: str) -> None:
    budget, calls, work = BUDGETS[name]
    benchmark(work)
    assert benchmark.stats is not None
    took = benchmark.stats.stats.min * 1e9 / calls
    benchmark.extra_info.update(budget_ns=budget, took_ns=round(took, 1))
    print(f"\n{name}: {took:,.0f} ns (budget {budget:,})")
