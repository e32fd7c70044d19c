"""Random worlds: the core survives them, and the checkers find every bug that is switched on.

Each world is one seed; a failing one is run again by its number.
"""

import pytest
from raft_explorer import Explorer
from raft_harness import Violated

from raftq.raft.faults import Faults


@pytest.mark.parametrize("block", range(4))
def test_three_replicas_survive_random_worlds(block):
    for seed in range(block * 50, block * 50 + 50):
        Explorer(3, seed).run()


@pytest.mark.parametrize("block", range(4))
def test_five_replicas_survive_random_worlds(block):
    for seed in range(block * 25, block * 25 + 25):
        Explorer(5, seed).run()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_other_sizes_survive_random_worlds(size):
    for seed in range(30):
        Explorer(size, seed).run()


def test_worlds_are_eventful():
    """What is explored is worth it: many elections, commits and reads, and no seed by luck."""
    runs = [Explorer(3, seed).run() for seed in range(500, 530)]
    assert sum(max(run.leaders) for run in runs) > 90
    assert sum(run.top for run in runs) > 200
    assert sum(run.answered for run in runs) > 60


def test_same_seed_same_world():
    first, second = (Explorer(5, 7).run() for _ in range(2))
    assert first.committed == second.committed
    assert first.now == second.now


def found_by(faults, *, promises, seeds=400, **weights):
    """The complaint of the first seed that finds the bug."""
    for seed in range(seeds):
        try:
            Explorer(3, seed, faults=faults, promises=promises, **weights).run()
        except Violated as violated:
            return str(violated)
    return "nothing was found"


CALM = {
    "crash_some": 0, "lose_message": 0, "cut_some": 0, "compact_some": 0, "transfer_some": 0,
    "read_some": 0, "break_link": 0,
}  # fmt: skip
SLOW_DISKS = {
    **CALM, "repeat_message": 20, "sync_some": 15, "cut_leader": 1, "heal_some": 2,
    "propose_some": 5, "pass_time": 15,
}  # fmt: skip
CRASHES = {"crash_some": 6, "restart_some": 12, "sync_some": 3, "deliver_some": 60}
CUTS = {"cut_leader": 2, "heal_some": 8, "propose_some": 10}


@pytest.mark.parametrize(
    ("switch", "weights"),
    [("vote_unsynced", {}), ("ack_before_fsync", {}), ("completion_by_index", SLOW_DISKS)],
)
def test_broken_promises_are_seen_as_they_are_made(switch, weights):
    found = found_by(Faults(**{switch: True}), promises=True, **weights)
    assert "promises what is not durable" in found


@pytest.mark.parametrize(
    ("switch", "weights", "complaint"),
    [
        ("vote_unsynced", CRASHES, "both lead"),
        ("ack_before_fsync", CRASHES, ""),
        ("heartbeat_commit_unchecked", CUTS, "another entry"),
        ("truncates_what_agrees", CUTS, ""),
        ("no_pre_vote", {}, "deposed a healthy leader"),
    ],
)
def test_damage_of_a_bug_is_found_in_the_end(switch, weights, complaint):
    """Without looking at promises: only at what replicas commit, apply and whom they elect."""
    found = found_by(Faults(**{switch: True}), promises=False, **weights)
    assert found != "nothing was found"
    assert complaint in found


@pytest.mark.parametrize("weights", [SLOW_DISKS, CRASHES, CUTS], ids=["disks", "crashes", "cuts"])
def test_such_worlds_are_survived_without_the_bug(weights):
    for seed in range(30):
        Explorer(3, seed, **weights).run()
