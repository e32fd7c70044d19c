"""Stories of groups that change: who is counted, who has caught up, who is gone."""

import pytest
from raft_harness import Cluster, NotLeader, Violated
from raft_stories import led

from raftq.ids import ReplicaId
from raftq.limits import ELECTION_MICROS_MAX, HEARTBEAT_MICROS
from raftq.raft import ChangeRefused, Membership, Reason, Role, election
from raftq.raft.entry import MEMBERSHIP
from raftq.raft.faults import Faults
from raftq.raft.messages import Append, TimeoutNow, VoteReply, VoteRequest


def refusal(cluster, leader, voters, learners=()):
    with pytest.raises(ChangeRefused) as refused:
        cluster.change(leader, voters, learners)
    return refused.value.reason


def two_changes_that_do_not_know_each_other(faults):
    """1 adds 5 and is cut off with it; 2, elected by 3 and 4, is about to remove 1."""
    cluster = led(4, faults=faults, learners=(5,))
    cluster.split({1, 5}, {2, 3, 4})
    cluster.change(1, (1, 2, 3, 4, 5))
    cluster.deliver()
    assert cluster.core(5).membership.voters == (1, 2, 3, 4, 5)
    election.campaign(cluster.core(2))
    cluster.pump(cluster[2])
    cluster.deliver(only=lambda m: isinstance(m, VoteRequest | VoteReply))
    cluster.wire.clear()
    assert cluster.core(2).role is Role.LEADER
    return cluster


def test_change_before_the_no_op_loses_what_was_committed():
    """The bug of single-server changes: majorities of {1,2,3,4,5} and {2,3,4} need not meet."""
    cluster = two_changes_that_do_not_know_each_other(Faults(change_before_noop=True))
    cluster.heal()
    cluster.split({2, 3}, {1, 4, 5})
    cluster.change(2, (2, 3, 4), (5,))
    cluster.advance(100_000)
    assert cluster.core(2).commit_index == cluster.core(2).last_index
    election.campaign(cluster.core(1))
    cluster.pump(cluster[1])
    with pytest.raises(Violated):
        cluster.advance(2_000_000)


def test_no_change_before_the_no_op_is_committed():
    """Once it is, a quorum of the old configuration refuses whoever has another change only."""
    cluster = two_changes_that_do_not_know_each_other(Faults())
    assert refusal(cluster, 2, (2, 3, 4), (5,)) is Reason.NO_OP_PENDING
    cluster.advance(100_000)
    cluster.change(2, (2, 3, 4), (5,))
    cluster.heal()
    cluster.split({2, 3}, {1, 4, 5})
    cluster.advance(3_000_000)
    assert cluster.core(1).role is not Role.LEADER
    cluster.heal()
    cluster.advance(2_000_000)
    assert cluster.core(1).removed
    assert cluster.core(5).membership == Membership((2, 3, 4), (5,), retired=1)


def test_second_change_before_the_first_is_committed_loses_what_was_committed():
    """With it, three of {1,...,5} and two of {1,2,3} need not meet."""
    cluster = led(3, faults=Faults(change_while_pending=True), learners=(4, 5))
    cluster.split({1, 4, 5}, {2, 3})
    cluster.change(1, (1, 2, 3, 4), (5,))
    cluster.change(1, (1, 2, 3, 4, 5))
    cluster.advance(100_000)
    election.campaign(cluster.core(2))
    cluster.pump(cluster[2])
    with pytest.raises(Violated):
        cluster.advance(1_000_000)


def test_learners_hold_entries_and_commit_none():
    cluster = led(3, learners=(4, 5))
    cluster.split({1, 4, 5}, {2, 3})
    index = cluster.propose(1, b"x")
    cluster.core(1).read_index("r")
    cluster.pump(cluster[1])
    cluster.advance(100_000)
    assert cluster.core(4).durable_index == cluster.core(5).durable_index == index
    assert cluster.core(1).commit_index < index
    assert cluster[1].reads == {}
    # Nor do they keep it in office, nor elect anybody.
    cluster.advance(3_000_000)
    assert cluster.leader() in {2, 3}
    assert cluster.core(4).role is cluster.core(5).role is Role.FOLLOWER


def test_learner_counted_in_a_quorum_is_seen():
    """The same with the mistake: what no voter but the leader has counts as committed."""
    cluster = led(3, faults=Faults(learners_counted=True), learners=(4, 5))
    cluster.split({1, 4, 5}, {2, 3})
    index = cluster.propose(1, b"x")
    cluster.advance(100_000)
    assert cluster.core(1).commit_index == index


def test_newcomer_votes_only_when_it_has_caught_up():
    cluster = led()
    for number in range(50):
        cluster.propose(1, b"%d" % number)
    cluster.join(4)
    cluster.isolate(4)
    cluster.change(1, (1, 2, 3), (4,))
    cluster.advance(100_000)
    assert refusal(cluster, 1, (1, 2, 3, 4)) is Reason.NOT_CAUGHT_UP
    assert [f.caught_up for f in cluster.core(1).status().followers] == [True, True, False]
    cluster.heal()
    cluster.advance(300_000)
    assert cluster.core(1).status().followers[2].caught_up
    cluster.change(1, (1, 2, 3, 4))
    cluster.advance(100_000)
    assert cluster.core(4).membership.voters == (1, 2, 3, 4)


def test_learner_behind_under_load_is_judged_by_what_it_lacks():
    """What came within the last election timeout may still be on its way."""
    cluster = led(3, learners=(4,))
    cluster.drop = lambda m: isinstance(m, Append) and m.to == 4
    cluster.propose(1, b"first")
    cluster.advance(100_000)
    assert cluster.core(1).progress[4].match < cluster.core(1).last_index
    assert cluster.core(1).status().followers[2].caught_up
    cluster.advance(400_000)
    assert refusal(cluster, 1, (1, 2, 3, 4)) is Reason.NOT_CAUGHT_UP


def test_silent_learner_is_not_promoted():
    cluster = led(3, learners=(4,))
    cluster.isolate(4)
    cluster.advance(400_000)
    assert refusal(cluster, 1, (1, 2, 3, 4)) is Reason.NOT_CAUGHT_UP


def test_amnesiac_learner_is_not_promoted():
    cluster = led(3, learners=(4,))
    cluster.crash(4)
    cluster.restart(4, may_vote=False)
    cluster.propose(1, b"x")
    cluster.advance(300_000)
    assert cluster.core(1).progress[4].amnesiac
    assert refusal(cluster, 1, (1, 2, 3, 4)) is Reason.NOT_CAUGHT_UP


def test_change_that_would_stop_the_group_is_refused():
    """3 is dead: without 2 the group would have to wait for it."""
    cluster = led()
    cluster.crash(3)
    cluster.advance(ELECTION_MICROS_MAX + HEARTBEAT_MICROS)
    assert refusal(cluster, 1, (1, 3)) is Reason.NO_QUORUM
    cluster.change(1, (1, 2))
    cluster.advance(100_000)
    assert cluster.core(1).commit_index == cluster.core(1).last_index


def test_dead_voter_is_replaced_in_one_change():
    cluster = led()
    cluster.propose(1, b"before")
    cluster.advance(100_000)
    cluster.crash(3)
    cluster.join(4)
    cluster.change(1, (1, 2, 3), (4,))
    cluster.advance(500_000)
    index = cluster.change(1, (1, 2, 4))
    assert cluster.core(1).membership == Membership((1, 2, 4), (), (1, 2, 3))
    cluster.advance(100_000)
    assert cluster.core(1).membership == Membership((1, 2, 4), retired=3)
    assert cluster.core(1).log.membership_index == index + 1
    assert cluster.core(1).commit_index == index + 1
    # Now the newcomer is as good as any other.
    cluster.crash(2)
    cluster.propose(1, b"after")
    cluster.advance(200_000)
    assert cluster[4].bodies == [b"before", b"after"]


def test_id_of_a_former_member_stays_refused():
    """In the log, after a restart, and when only a snapshot remembers it."""
    cluster = led(learners=(4,))
    cluster.change(1, (1, 2, 3))
    cluster.advance(100_000)
    assert refusal(cluster, 1, (1, 2, 3), (4,)) is Reason.ID_USED
    cluster.crash(1)
    cluster.restart(1)
    cluster.elect(1)
    assert refusal(cluster, 1, (1, 2, 3), (4,)) is Reason.ID_USED
    cluster.compact(1)
    cluster.crash(1)
    cluster.restart(1)
    cluster.elect(1)
    assert cluster.core(1).log.floor >= 3
    assert refusal(cluster, 1, (1, 2, 3), (4,)) is Reason.ID_USED
    cluster.join(5)
    cluster.change(1, (1, 2, 3), (5,))


def asking_for_votes(cluster, replica):
    asked = []
    cluster.drop = lambda m: (
        isinstance(m, VoteRequest) and m.sender == replica and bool(asked.append(m))
    )
    return asked


def test_removed_replica_hears_it_and_campaigns_no_more():
    cluster = led()
    cluster.change(1, (1, 2))
    cluster.advance(300_000)
    assert cluster.core(3).removed
    assert not cluster.core(3).may_campaign
    assert set(cluster.core(1).progress) == {2}
    asked = asking_for_votes(cluster, 3)
    cluster.advance(5_000_000)
    assert asked == []


def test_removed_replica_is_told_of_the_commit_too():
    """It has the entry long before that is committed, and must not be let go before it knows."""
    cluster = led()
    cluster.isolate(2)
    index = cluster.change(1, (1, 2))
    cluster.advance(300_000)
    assert cluster.core(3).durable_index == index
    assert cluster.core(3).may_campaign
    cluster.heal()
    cluster.advance(300_000)
    assert cluster.core(3).removed


def deaf_and_removed(faults):
    """3 is removed while it hears nothing, and comes back when nobody tells it any more."""
    cluster = led(faults=faults)
    cluster.propose(1, b"x")
    cluster.advance(100_000)
    cluster.isolate(3)
    cluster.change(1, (1, 2))
    cluster.advance(12_000_000)
    assert set(cluster.core(1).progress) == {2}
    assert not cluster.core(3).removed
    term = cluster.core(1).term
    cluster.heal()
    asked = asking_for_votes(cluster, 0)
    cluster.advance(5_000_000)
    assert asked == []
    return cluster, term


def test_removed_replica_that_heard_nothing_disturbs_nobody():
    """It asks for pre-votes now and then, and a live leader is enough to refuse them."""
    cluster, term = deaf_and_removed(Faults())
    assert cluster.leader() == 1
    assert cluster.core(1).term == term
    assert not cluster.core(3).removed
    # Nor is it elected when the leader dies: a majority of the others has the longer log.
    cluster.crash(1)
    cluster.advance(3_000_000)
    assert cluster.core(3).role is not Role.LEADER
    assert cluster.core(2).term <= term + 20


def test_removed_replica_disrupts_without_pre_votes():
    cluster, term = deaf_and_removed(Faults(no_pre_vote=True))
    assert cluster.core(2).term > term


def test_hand_over_is_for_voters_of_the_present_configuration():
    cluster = led(3, learners=(4, 5))
    core = cluster.core(1)
    assert not core.transfer_leadership(ReplicaId(4))
    assert not core.transfer_leadership(ReplicaId(9))
    assert not core.transfer_leadership(ReplicaId(1))
    assert core.transfer_to == 0
    cluster.drop = lambda m: isinstance(m, Append)
    cluster.change(1, (1, 4, 5))
    # An outgoing voter would have to leave soon.
    assert not core.transfer_leadership(ReplicaId(2))
    assert core.transfer_leadership(ReplicaId(4))
    assert refusal(cluster, 1, (1, 2)) is Reason.HANDING_OVER
    cluster.drop = lambda m: False
    cluster.advance(1_000_000)
    assert cluster.leader() == 4
    assert cluster.core(4).membership == Membership((1, 4, 5), retired=3)


def test_a_retired_leader_leaves_in_time_whatever_it_wishes():
    """Its successors never hear of it, and its shell asks for another one again and again."""
    cluster = led()
    cluster.drop = lambda m: isinstance(m, TimeoutNow)
    cluster.change(1, (2, 3))
    core = cluster.core(1)
    while core.transfer_to == 0:
        cluster.advance(1_000)
    retired_at = cluster.now
    while core.role is Role.LEADER:
        core.transfer_leadership(ReplicaId(2 + cluster.now // 100_000 % 2))
        cluster.advance(100_000)
        assert cluster.now - retired_at < ELECTION_MICROS_MAX + 4 * HEARTBEAT_MICROS


def test_follower_cannot_change_the_group():
    cluster = led()
    with pytest.raises(NotLeader):
        cluster.change(2, (1, 2))


def test_replica_that_knows_nobody_waits():
    """A newcomer before the leader's first word: neither a group of its own nor a candidate."""
    cluster = Cluster(1)
    cluster.join(2)
    cluster.advance(5_000_000)
    assert cluster.core(2).term == 0
    assert cluster.core(2).role is Role.FOLLOWER
    assert cluster.core(2).membership == Membership(())


def test_voters_are_counted_by_one_configuration_alone():
    """A configuration in force before its commit is what keeps two majorities from missing."""
    cluster = led(1, learners=(2, 3))
    cluster.isolate(1)
    index = cluster.change(1, (1, 2, 3))
    cluster.advance(100_000)
    assert cluster.core(1).commit_index < index
    entry = cluster.core(1).log.entries(index, index + 1, 1)[0]
    assert entry.kind == MEMBERSHIP
