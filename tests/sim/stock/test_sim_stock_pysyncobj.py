"""Goal: the checkers see bugs that somebody else has made, in a library that is widely used.

Method: stock pysyncobj runs in the simulator, on its network, disks and clocks, and the same nemesis
acts on it. For each of three known bugs some of a few seeds must make the checker that watches for
its harm speak. To know that it is that bug which is seen, and not this test's adapter, the checker
must be silent for the same seeds when the bug alone is mended, and all checkers without faults.
"""

import functools
import os
import pathlib
import subprocess
import sys

import pysyncobj.journal
import pytest
import stock_run
from stock_run import MODES, NODES, simulate

SEEDS = {"truncation": 3, "snapshot": 3, "power": 16, "votes": 16}
"""So many, from 1 on, that a change elsewhere in the simulator hardly makes all of them miss."""

CLEAN_SEEDS = 2
ACKNOWLEDGED_MIN = 50

pytestmark = [pytest.mark.simulation, pytest.mark.timeout(120)]


@functools.cache
def seen(mode, *, is_cured):
    """What the checkers see of each of the mode's seeds."""
    seeds = range(1, SEEDS[mode] + 1)
    return [simulate(seed, MODES[mode], is_cured=is_cured).seen for seed in seeds]


@pytest.mark.parametrize(
    ("mode", "checker", "says"),
    [
        # Every append cuts the follower's log off behind its entries: what was committed is gone
        # when that follower leads.
        ("truncation", "LeaderCompleteness", " was committed in term "),
        # A piece of a snapshot commits what only a deposed leader has, which answers its clients.
        ("snapshot", "LogAgreement", " committed another log up to index "),
        ("snapshot", "Ledger", " was acknowledged at "),
        # Nothing is ever synced: acknowledged entries, votes and terms vanish with the power.
        ("power", "Durability", " does not know that anything is missing"),
        ("power", "LeaderCompleteness", " was committed in term "),
        ("power", "Ledger", " was acknowledged at "),
        ("votes", "ElectionSafety", "two leaders in term "),
    ],
)
def test_a_checker_sees_a_bug_of_stock_pysyncobj(mode, checker, says):
    texts = [found[checker] for found in seen(mode, is_cured=False) if checker in found]
    assert texts
    assert all(says in text for text in texts)
    assert not any(checker in found for found in seen(mode, is_cured=True))


@pytest.mark.parametrize("mode", MODES)
def test_the_same_work_without_faults_is_clean(mode):
    for seed in range(1, CLEAN_SEEDS + 1):
        result = simulate(seed, MODES[mode], is_faulty=False)
        assert result.seen == {}
        assert result.leaders == 1
        assert result.acknowledged > ACKNOWLEDGED_MIN
        # Where appends overlap, the library sends again and again what has long arrived.
        assert result.in_step == NODES or mode == "truncation"


def test_a_seed_is_a_run_in_every_process():
    script = pathlib.Path(stock_run.__file__)
    lines = [
        subprocess.run(
            [sys.executable, str(script), "snapshot", "1"],
            env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            check=True,
            text=True,
            timeout=60,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert lines[0] == lines[1]
    assert simulate(1, MODES["snapshot"]).digest == lines[0].split()[1]


def test_the_library_is_left_as_it_was():
    before = dict(vars(pysyncobj.journal))
    simulate(1, MODES["power"], is_faulty=False)
    assert dict(vars(pysyncobj.journal)) == before
