"""Random worlds whose groups change: the core survives them, and mistakes in counting are found."""

from collections import Counter

import pytest
from raft_harness import Violated
from raft_membership_explorer import KINDS, ChangingExplorer

from raftq.raft import Reason
from raftq.raft.faults import NONE, Faults

SPLITS = {
    "kinds": ("join", "promote", "promote", "promote", "remove"),
    "crash_some": 0, "lose_message": 0, "cut_some": 0, "compact_some": 0, "transfer_some": 0,
    "read_some": 0, "break_link": 0, "repeat_message": 0, "cut_leader": 0, "split_some": 0,
    "split_change": 10, "change_some": 20, "heal_some": 1, "sync_some": 100, "pass_time": 60,
}  # fmt: skip
"""Calm but for splits: a leader changes the group while it hears only some of it."""


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_changing_groups_survive_random_worlds(size):
    for seed in range(30):
        ChangingExplorer(size, seed).run()


@pytest.mark.parametrize("size", [2, 3, 4])
def test_changing_groups_survive_splits(size):
    for seed in range(12):
        ChangingExplorer(size, seed, **SPLITS).run()


def test_worlds_change_in_every_way():
    runs = [ChangingExplorer(3, seed).run() for seed in range(500, 530)]
    changes = sum((run.changes for run in runs), Counter())
    refusals = sum((run.refusals for run in runs), Counter())
    assert set(changes) == set(KINDS) - {"reuse"}
    assert sum(changes.values()) > 150
    assert {
        Reason.NO_OP_PENDING, Reason.IN_PROGRESS, Reason.NOT_CAUGHT_UP, Reason.HANDING_OVER,
        Reason.ID_USED,
    } <= set(refusals)  # fmt: skip


def test_same_seed_same_changing_world():
    first, second = (ChangingExplorer(3, 7).run() for _ in range(2))
    assert first.committed == second.committed
    assert first.changes == second.changes


def found_by(switch, *, size, seeds, promises=True, **weights):
    """The complaint of the first seed that finds the mistake."""
    faults = Faults(**{switch: True})
    for seed in range(seeds):
        try:
            ChangingExplorer(size, seed, faults=faults, promises=promises, **weights).run()
        except Violated as violated:
            return str(violated)
    return "nothing was found"


@pytest.mark.parametrize(
    "switch", ["new_half_counted", "learners_counted", "membership_when_committed"]
)
def test_wrong_majorities_are_seen_as_they_are_counted(switch):
    assert found_by(switch, size=3, seeds=60) != "nothing was found"


@pytest.mark.parametrize(
    ("switch", "size", "weights"),
    [
        ("change_before_noop", 2, SPLITS),
        ("change_while_pending", 4, SPLITS),
        ("membership_when_committed", 3, {}),
    ],
)
def test_damage_of_wrong_majorities_is_found_in_the_end(switch, size, weights):
    """Without looking at platters: only at what replicas commit, and whether they go on at all."""
    found = found_by(switch, size=size, seeds=150, promises=False, **weights)
    assert found != "nothing was found"


def test_switches_are_off():
    assert Faults() == NONE
