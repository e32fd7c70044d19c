"""Stories of configurations half way: joint ones, truncated ones, those of snapshots, and leaders
that leave.
"""

import pytest
from raft_harness import Violated
from raft_stories import led

from raftq.ids import Index, ReplicaId
from raftq.limits import ELECTION_MICROS_MAX, HEARTBEAT_MICROS
from raftq.raft import Membership, Role, election
from raftq.raft.faults import Faults
from raftq.raft.messages import Append, TimeoutNow

JOINT = Membership((3, 4, 5), (), (1, 2, 3))


def half_lost(faults=Faults()):  # noqa: B008 - it is frozen.
    """A joint change to 3, 4, 5 has begun, and 4 and 5 hear nothing of it."""
    cluster = led(3, faults=faults, learners=(4, 5))
    cluster.isolate(4)
    cluster.isolate(5)
    index = cluster.change(1, (3, 4, 5))
    assert cluster.core(1).membership == JOINT
    cluster.advance(100_000)
    return cluster, index


def test_joint_change_waits_for_the_half_that_is_lost():
    cluster, index = half_lost()
    core = cluster.core(1)
    assert cluster.core(2).durable_index == cluster.core(3).durable_index == index
    assert core.commit_index < index
    # It cannot confirm a read either, and does not stay in office.
    core.read_index("r")
    cluster.pump(cluster[1])
    cluster.advance(ELECTION_MICROS_MAX + 2 * HEARTBEAT_MICROS)
    assert cluster[1].reads == {}
    assert core.role is not Role.LEADER
    # Nobody is elected by one half.
    cluster.advance(3_000_000)
    assert cluster.leader() is None
    cluster.heal()
    cluster.advance(3_000_000)
    assert cluster.leader() in {3, 4, 5}
    assert cluster.core(3).membership == Membership((3, 4, 5), retired=2)
    assert cluster.core(3).commit_index == cluster.core(3).last_index


def test_old_half_is_asked_too():
    cluster = led(3, learners=(4, 5, 6))
    cluster.split({1, 4, 5, 6}, {2, 3})
    index = cluster.change(1, (4, 5, 6))
    core = cluster.core(1)
    core.read_index("r")
    cluster.pump(cluster[1])
    cluster.advance(100_000)
    assert cluster.core(6).durable_index == index
    assert core.commit_index < index
    cluster.advance(ELECTION_MICROS_MAX + 2 * HEARTBEAT_MICROS)
    assert cluster[1].reads == {}
    assert core.role is not Role.LEADER
    cluster.advance(3_000_000)
    # The old voters alone have not heard of the change: they go on, and the change is truncated.
    assert cluster.leader() in {2, 3}
    cluster.heal()
    cluster.advance(2_000_000)
    assert cluster.core(1).membership == cluster.core(6).membership
    assert cluster.core(1).membership == Membership((1, 2, 3), (4, 5, 6))


def test_commit_counted_in_the_new_half_only_is_found():
    cluster = led(3, faults=Faults(new_half_counted=True), learners=(4, 5, 6))
    cluster.split({1, 4, 5, 6}, {2, 3})
    cluster.change(1, (4, 5, 6))
    cluster.advance(200_000)
    assert cluster.core(4).commit_index == cluster.core(4).last_index
    election.campaign(cluster.core(2))
    cluster.pump(cluster[2])
    with pytest.raises(Violated):
        cluster.advance(2_000_000)


def test_new_leader_finishes_a_joint_change():
    """The one who began it died before it was committed."""
    cluster = led(3, learners=(4, 5))
    cluster.drop = lambda m: not isinstance(m, Append) and m.to == 1
    cluster.change(1, (3, 4, 5))
    cluster.deliver()
    cluster.crash(1)
    cluster.drop = lambda m: False
    cluster.advance(3_000_000)
    leader = cluster.leader()
    assert leader in {3, 4, 5}
    assert cluster.core(leader).membership == Membership((3, 4, 5), retired=2)
    assert cluster.core(leader).commit_index == cluster.core(leader).last_index


def test_truncated_configuration_is_in_force_no_more():
    cluster = led(3, learners=(4,))
    cluster.split({1, 4}, {2, 3})
    cluster.change(1, (1, 2, 3, 4))
    cluster.deliver()
    assert cluster.core(4).membership.is_voter(ReplicaId(4))
    assert cluster.core(4).may_campaign
    election.campaign(cluster.core(2))
    cluster.pump(cluster[2])
    cluster.advance(100_000)
    cluster.heal()
    cluster.advance(500_000)
    for replica in (1, 4):
        core = cluster.core(replica)
        assert core.membership == Membership((1, 2, 3), (4,))
        assert core.log.membership_index == 0
        cluster.crash(replica)
        cluster.restart(replica)
        assert cluster.core(replica).membership == Membership((1, 2, 3), (4,))
    assert not cluster.core(4).may_campaign


def test_removal_that_is_truncated_leaves_a_voter():
    cluster = led()
    cluster.isolate(1)
    cluster.change(1, (2, 3))
    cluster.elect(2)
    cluster.heal()
    cluster.advance(500_000)
    assert cluster.core(1).membership == Membership((1, 2, 3))
    assert cluster.core(1).may_campaign
    assert not cluster.core(1).removed


def test_snapshot_voids_a_configuration_that_conflicts_with_it():
    """1 adds 4 in vain; what it gets later is a snapshot in which 4 was dropped instead."""
    cluster = led(3, learners=(4,))
    cluster.isolate(1)
    cluster.change(1, (1, 2, 3, 4))
    cluster.wire.clear()
    leader = cluster.elect(2)
    cluster.change(leader, (1, 2, 3))
    for number in range(5):
        cluster.propose(leader, b"%d" % number)
    cluster.advance(200_000)
    cluster.compact(leader)
    cluster.heal()
    cluster.advance(1_000_000)
    core = cluster.core(1)
    assert core.log.floor == cluster.core(leader).log.floor > 0
    assert core.membership == Membership((1, 2, 3), retired=4)
    cluster.crash(1)
    cluster.restart(1)
    assert cluster.core(1).membership == Membership((1, 2, 3), retired=4)


def test_configurations_behind_a_snapshot_come_with_the_log():
    """The snapshot is of a time when the newcomer was nobody; the entries make it a voter."""
    cluster = led()
    for number in range(5):
        cluster.propose(1, b"%d" % number)
    cluster.advance(200_000)
    cluster.compact(1)
    cluster.join(4)
    cluster.change(1, (1, 2, 3), (4,))
    cluster.advance(500_000)
    cluster.change(1, (1, 2, 3, 4))
    cluster.advance(200_000)
    core = cluster.core(4)
    assert core.log.floor == cluster.core(1).log.floor > 0
    assert core.log.membership_at(core.log.floor) == Membership((1, 2, 3))
    assert core.membership == Membership((1, 2, 3, 4))
    assert core.may_campaign


def test_snapshot_taken_half_way_is_of_a_joint_configuration():
    cluster, index = half_lost()
    cluster.heal()
    cluster.advance(300_000)
    core = cluster.core(3)
    assert core.membership_at(index) == JOINT
    cluster.compact(3, index)
    assert cluster[3].log.snapshot.membership == JOINT
    cluster.crash(3)
    cluster.restart(3)
    assert cluster.core(3).membership_at(Index(index)) == JOINT
    assert cluster.core(3).membership == Membership((3, 4, 5), retired=2)


def test_leader_that_removes_itself_leads_on_and_does_not_count():
    cluster = led()
    cluster.isolate(3)
    index = cluster.change(1, (2, 3))
    later = cluster.propose(1, b"x")
    cluster.advance(100_000)
    core = cluster.core(1)
    assert core.durable_index == cluster.core(2).durable_index == later
    # Two of three have it; of the two that count only one.
    assert core.role is Role.LEADER
    assert core.commit_index < index
    cluster.heal()
    begun = cluster.now
    while cluster.core(2).commit_index < later:
        cluster.advance(1_000)
    # What was asked of it is done, and its successor was told to stand at once.
    cluster.advance(50_000)
    assert cluster.leader() in {2, 3}
    assert cluster.now - begun < 200_000
    assert core.removed
    assert not core.may_campaign
    assert cluster[2].bodies == [b"x"]


def test_leader_that_removes_itself_hands_over_to_one_that_has_everything():
    cluster = led()
    cluster.drop = lambda m: isinstance(m, Append) and m.to == 3
    for number in range(5):
        cluster.propose(1, b"%d" % number)
    told = []
    cluster.advance(100_000)
    cluster.drop = lambda m: isinstance(m, TimeoutNow) and bool(told.append(m.to))
    cluster.change(1, (2, 3))
    cluster.advance(20_000)
    assert told
    assert set(told) == {2}


def test_retired_leader_without_a_successor_stops():
    """The one it chose cannot be told; after an election timeout the others are on their own."""
    cluster = led()
    cluster.drop = lambda m: isinstance(m, TimeoutNow)
    cluster.change(1, (2, 3))
    cluster.advance(100_000)
    assert cluster.core(1).role is Role.LEADER
    assert not cluster.core(1).can_propose()
    cluster.advance(ELECTION_MICROS_MAX + 2 * HEARTBEAT_MICROS)
    assert cluster.core(1).role is Role.FOLLOWER
    cluster.advance(2_000_000)
    assert cluster.leader() in {2, 3}


def test_leader_that_becomes_a_learner_goes_on_as_one():
    cluster = led()
    cluster.change(1, (2, 3), (1,))
    cluster.advance(300_000)
    leader = cluster.leader()
    assert leader in {2, 3}
    assert not cluster.core(1).removed
    index = cluster.propose(leader, b"x")
    cluster.advance(100_000)
    assert cluster.core(1).commit_index == index
    cluster.change(leader, (1, 2, 3))
    cluster.advance(100_000)
    assert cluster.core(1).membership == Membership((1, 2, 3))
