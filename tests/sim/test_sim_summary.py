"""Sums of many runs."""

from raftq.sim.run import Result
from raftq.sim.summary import Summary


def result(seed, violations=(), **counters):
    return Result(seed, 3, "ab", violations, counters)


def test_runs_are_summed_up():
    summary = Summary()
    summary.add(result(1, operations=10, acknowledged=4, milliseconds=900_000, **{"fault kill": 2}))
    summary.add(
        result(
            2,
            ("two leaders", "a loss"),
            operations=1,
            milliseconds=900_000,
            **{"fault kill": 1, "fault pause": 1, "unavailable milliseconds": 70},
        )
    )
    assert summary.as_map(60.0) == {
        "seeds": 2,
        "violations": 1,
        "failed_seeds": {"2": "two leaders"},
        "seconds": 60.0,
        "seeds_per_hour": 120,
        "simulated_hours": 0.5,
        "operations": 11,
        "acknowledged": 4,
        "unavailable_ms": 70,
        "faults": {"kill": 3, "pause": 1},
    }
