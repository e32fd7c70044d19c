"""Goal: no seed makes the real cluster lose, invent, double, reorder or diverge, or stay unavailable.

Method: whole runs (3 or 5 nodes, 30 virtual seconds, 2,000 client operations, 5 faults) of fixed
seeds, a chunk of them a test, so that workers share them. A seed that once failed stays in
`regressions.txt`, with what it found.
"""

import pathlib

import pytest

from raftq.sim.run import simulate

SEEDS = 80
CHUNK = 10
REGRESSIONS = pathlib.Path(__file__).with_name("regressions.txt")

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(300)]


def regressions():
    lines = REGRESSIONS.read_text().splitlines()
    return [int(line.split()[0]) for line in lines if line and not line.startswith("#")]


def failures(seeds):
    results = [simulate(seed) for seed in seeds]
    for result in results:
        assert result.counters["operations"] >= 2_000 or result.violations
        assert result.counters["faults"] == 5 or result.violations
    return [(result.seed, result.violations[0]) for result in results if result.violations]


@pytest.mark.parametrize("first", range(1, SEEDS + 1, CHUNK))
def test_seeds_are_clean(first):
    assert failures(range(first, first + CHUNK)) == []


def test_seeds_that_failed_once_are_clean():
    assert failures(regressions()) == []
