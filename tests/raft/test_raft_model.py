"""Small groups explored whole: every state is sound, and mistakes are found by a shortest way.

The numbers of states are exact. When one changes, the core has come to do something else, or the
model has: look which, before the number is written anew. Larger bounds: tools/explore.
"""

from dataclasses import replace

import pytest
from raft_model import World
from raft_model_configs import ELECTION, PROMOTION, REMOVALS, REPLACEMENT, REPLICATION, SMALL

STATES = {
    "election": (96_263, 549_457, 22),
    "replication": (27_552, 140_490, 22),
    "promotion": (44_300, 142_969, 23),
    "snapshot": (20_122, 56_079, 27),
}
"""Of each configuration: states, transitions, depth."""


EVENTFUL = {
    "election": lambda world: any(len(ghost.leaders) == 2 for ghost in world.ghosts),
    "replication": lambda world: any(len(ghost.committed) == 3 for ghost in world.ghosts),
    "promotion": lambda world: any(seen.membership.voters == (1, 2, 3, 4) for seen in world.views),
    "snapshot": lambda world: any(getattr(sent, "installed", False) for sent in world.messages),
}
"""What is meant to happen somewhere: without it, finding nothing would say nothing."""


@pytest.mark.parametrize("config", SMALL, ids=lambda config: config.name)
def test_every_state_is_sound(config):
    world = World(config)
    report = world.explore()
    assert report.violation == "", report.trace
    assert report.complete
    assert (report.states, report.transitions, report.depth) == STATES[config.name]
    assert EVENTFUL[config.name](world)


@pytest.mark.parametrize(
    ("config", "fault", "promises", "complaint", "events"),
    [
        (replace(ELECTION, slow_disks=(2,)), "vote_unsynced", False, "both lead term 1", 6),
        (replace(REPLICATION, slow_disks=(2,)), "ack_before_fsync", False, "lacks 2", 8),
        (REPLACEMENT, "new_half_counted", True, "2 is committed on [1, 4] alone", 3),
        (REMOVALS, "change_before_noop", True, "decide alone", 7),
        (PROMOTION, "change_while_pending", True, "two uncommitted configurations", 6),
    ],
)
def test_a_mistake_is_found_by_a_shortest_way(config, fault, promises, complaint, events):
    """What was changed in the core shows in that many events, and in no fewer."""
    report = World(replace(config, fault=fault, promises=promises)).explore()
    assert complaint in report.violation
    assert len(report.trace) == report.depth == events, report.trace


def test_the_way_to_two_leaders_is_told():
    config = replace(ELECTION, slow_disks=(2,), fault="vote_unsynced", promises=False)
    told = World(config).explore().trace
    assert "2: crash" in told
    assert told[-1].startswith("1: VoteReply from 2 arrives (term 1, granted True")


def test_same_bounds_same_states():
    first, second = (World(SMALL[-1]).explore()._replace(seconds=0) for _ in range(2))
    assert first == second


def test_forgetting_answers_leaves_out_nothing(monkeypatch):
    """The reduction that counts most, against exploration without it: the same is reached."""

    def reached():
        world = World(replace(ELECTION, slow_disks=(2,), may_campaign=(1, 2), may_crash=(2,)))
        assert world.explore().complete
        views, ghosts = world.views, world.ghosts
        return {
            (*(views[state] for state in states), ghosts[ghost])
            for *states, _, ghost, _ in world.order
        }

    reduced = reached()
    monkeypatch.setattr("raft_model.is_void", lambda _standing, _message: False)
    assert reached() == reduced
