"""Stories of replicas that are far behind: what they get and when, and what they may not do yet."""

import pytest
from raft_stories import led

from raftq.ids import Index, ReplicaId
from raftq.limits import CATCH_UP_INFLIGHT_BYTES, CATCH_UP_PIECE_BYTES
from raftq.raft import ChangeRefused, Reason, Role
from raftq.raft.messages import Append, TimeoutNow

BODY = bytes(100_000)


class Purse:
    """An allowance that a test fills."""

    def __init__(self, pieces):
        self.pieces = pieces
        self.refusals = 0
        self.sizes = []

    def may_spend(self):
        if not self.pieces:
            self.refusals += 1
            return False
        return True

    def spent(self, size):
        self.pieces -= 1
        self.sizes.append(size)


def far_behind(*, pieces=0):
    """3 missed what 1 does not keep in memory any more, but has in its log."""
    cluster = led()
    cluster.isolate(3)
    for _ in range(80):
        cluster.propose(1, BODY)
        cluster.deliver_once()
        cluster.deliver_once()
    cluster.advance(400_000)
    cluster.evict(1)
    core = cluster.core(1)
    assert not core.log.is_recent(Index(2))
    core.allowance = Purse(pieces)
    cluster.heal()
    cluster.advance(100_000)
    return cluster, core.allowance


def tell(cluster, replica, purse, pieces):
    purse.pieces = pieces
    cluster.pump(cluster[replica])


def test_who_is_far_behind_gets_small_pieces_and_only_what_is_allowed():
    cluster, purse = far_behind()
    assert purse.refusals
    behind = cluster.core(3).last_index
    cluster.advance(500_000)
    assert cluster.core(3).last_index == behind, "nothing leaves that is not allowed"
    tell(cluster, 1, purse, 3)
    cluster.advance(100_000)
    assert purse.pieces == 0
    assert len(purse.sizes) == 3
    assert max(purse.sizes) <= CATCH_UP_PIECE_BYTES
    assert behind < cluster.core(3).last_index < cluster.core(1).last_index
    tell(cluster, 1, purse, 1_000)
    cluster.advance(500_000)
    assert cluster.converged()


def test_the_group_goes_on_while_one_waits_for_its_allowance():
    cluster, _ = far_behind()
    index = cluster.propose(1, b"more")
    cluster.advance(100_000)
    assert cluster.core(1).commit_index == index
    assert cluster.core(3).role is Role.FOLLOWER
    assert cluster.leader() == 1


def test_not_much_is_on_the_way_to_who_is_far_behind():
    cluster, purse = far_behind()
    on_the_way = []
    cluster.drop = lambda m: isinstance(m, Append) and m.to == 3 and not on_the_way.append(m)
    tell(cluster, 1, purse, 1_000)
    size = sum(entry.size for append in on_the_way for entry in append.entries)
    assert size <= CATCH_UP_INFLIGHT_BYTES + CATCH_UP_PIECE_BYTES
    cluster.drop = lambda _: False
    cluster.advance(500_000)
    assert cluster.converged()


def test_one_that_is_needed_for_a_quorum_is_not_held_back():
    cluster, purse = far_behind()
    cluster.isolate(2)
    index = cluster.propose(1, b"more")
    cluster.advance(900_000)
    assert cluster.core(1).commit_index == index
    assert purse.sizes == [], "it costs the allowance nothing"


def test_one_that_is_near_is_not_held_back():
    cluster = led()
    cluster.core(1).allowance = Purse(0)
    cluster.isolate(3)
    cluster.propose(1, b"x")
    cluster.advance(100_000)
    cluster.heal()
    cluster.advance(200_000)
    assert cluster.converged()
    assert cluster.core(1).allowance.refusals == 0


# --- What is lost somewhere -------------------------------------------------------------------------


def refusal(cluster, voters):
    with pytest.raises(ChangeRefused) as refused:
        cluster.change(1, voters)
    return refused.value.reason


def test_a_learner_with_holes_does_not_become_a_voter():
    """It has the newest entries, and may lack those before: it could not lead, nor apply."""
    cluster = led(3, learners=(4,))
    cluster.core(4).log.note_damage(Index(1))
    cluster.propose(1, b"x")
    cluster.advance(500_000)
    assert cluster.core(1).progress[4].match == cluster.core(1).last_index
    assert not cluster.core(1).status().followers[2].caught_up
    assert refusal(cluster, (1, 2, 3, 4)) is Reason.NOT_CAUGHT_UP
    cluster.core(4).repaired()
    cluster.advance(100_000)
    cluster.change(1, (1, 2, 3, 4))
    cluster.advance(100_000)
    assert cluster.core(4).membership.voters == (1, 2, 3, 4)


def test_a_learner_whose_machine_waits_does_not_become_a_voter():
    cluster = led(3, learners=(4,))
    cluster.core(4).unreadable = cluster.core(4).apply_next
    cluster.advance(500_000)
    assert refusal(cluster, (1, 2, 3, 4)) is Reason.NOT_CAUGHT_UP


def test_what_a_new_leader_was_not_told_it_does_not_assume():
    cluster = led(3, learners=(4,))
    cluster.core(4).log.note_damage(Index(1))
    cluster.drop = lambda m: m.sender == 4
    cluster.elect(2)
    assert cluster.core(2).progress[4].damaged
    cluster.drop = lambda _: False
    cluster.propose(2, b"x")
    cluster.advance(500_000)
    assert cluster.core(2).progress[4].damaged


def test_a_snapshot_makes_nobody_whole():
    """Below it the receiver may lack what lives on: only what it says afterwards counts."""
    cluster = led()
    cluster.isolate(3)
    for number in range(5):
        cluster.propose(1, b"%d" % number)
    cluster.advance(100_000)
    cluster.compact(1)
    cluster.heal()
    install = cluster.core(3).log.install

    def install_with_holes(meta):
        install(meta)
        cluster.core(3).log.note_damage(Index(1))

    cluster.core(3).log = Spoiled(cluster.core(3).log, install_with_holes)
    cluster.advance(500_000)
    assert cluster.core(3).log.floor == cluster[1].log.snapshot.index
    assert cluster.core(1).progress[3].damaged
    cluster.core(3).repaired()
    cluster.advance(100_000)
    assert not cluster.core(1).progress[3].damaged


class Spoiled:
    """A log whose installation of a snapshot goes another way."""

    def __init__(self, log, install):
        object.__setattr__(self, "_log", log)
        object.__setattr__(self, "install", install)

    def __getattr__(self, name):
        return getattr(self._log, name)

    def __setattr__(self, name, value):
        setattr(self._log, name, value)


def test_leadership_is_not_handed_to_one_with_holes():
    cluster = led()
    cluster.core(2).log.note_damage(Index(1))
    cluster.advance(100_000)
    sent = []
    cluster.drop = lambda m: isinstance(m, TimeoutNow) and bool(sent.append(m))
    assert not cluster.core(1).transfer_leadership(ReplicaId(2))
    assert cluster.core(1).can_propose()
    assert cluster.core(1).transfer_leadership(ReplicaId(3))
    cluster.pump(cluster[1])
    cluster.advance(300_000)
    assert {message.to for message in sent} == {3}
    assert cluster.leader() == 3


def test_a_leader_that_leaves_prefers_a_successor_that_is_whole():
    cluster = led()
    cluster.core(2).log.note_damage(Index(1))
    cluster.advance(100_000)
    cluster.change(1, (2, 3))
    cluster.advance(500_000)
    assert cluster.leader() == 3
