"""Sentences of section 6 of the Raft paper and of chapter 4 of Ongaro's dissertation, each with a
test of what it says.
"""

import pytest
from raft_stories import led

from raftq.ids import Index, ReplicaId, Term
from raftq.limits import ELECTION_MICROS_MIN
from raftq.raft import ChangeRefused, Membership, Reason, Role, election
from raftq.raft.messages import Append, VoteReply, VoteRequest


def only_to(*replicas):
    """Appends reach nobody else."""
    return lambda message: isinstance(message, Append) and message.to not in replicas


def test_latest_configuration_in_the_log_is_used():
    """6: Once a given server adds the new configuration entry to its log, it uses that configuration
    for all future decisions (a server always uses the latest configuration in its log, regardless of
    whether the entry is committed).
    """
    cluster = led(3, learners=(4, 5))
    cluster.drop = only_to(2)
    index = cluster.change(1, (1, 2, 3, 4))
    cluster.deliver()
    assert cluster.core(1).commit_index < index
    assert cluster.core(1).membership.voters == (1, 2, 3, 4)
    assert cluster.core(2).membership.voters == (1, 2, 3, 4)
    assert cluster.core(3).membership.voters == (1, 2, 3)
    # Two of three have it, which is not three of four.
    cluster.advance(100_000)
    assert cluster.core(1).commit_index < index


def test_entries_go_to_both_configurations():
    """6: Log entries are replicated to all servers in both configurations."""
    cluster = led(3, learners=(4, 5))
    cluster.change(1, (3, 4, 5))
    index = cluster.propose(1, b"x")
    cluster.deliver(only=lambda m: isinstance(m, Append))
    assert all(cluster.core(replica).last_index == index for replica in (2, 3, 4, 5))


@pytest.mark.parametrize("leader", [2, 3, 4])
def test_server_of_either_configuration_may_lead(leader):
    """6: Any server from either configuration may serve as leader."""
    cluster = led(3, learners=(4, 5))
    cluster.drop = lambda m: not isinstance(m, Append) and m.to == 1
    cluster.change(1, (3, 4, 5))
    cluster.deliver()
    cluster.crash(1)
    cluster.drop = lambda m: False
    election.campaign(cluster.core(leader))
    cluster.pump(cluster[leader])
    cluster.advance(20_000)
    # It finishes the change, and hands over if it is not part of it.
    assert cluster.leaders[2] == leader
    assert cluster.core(3).membership == Membership((3, 4, 5), retired=2)


def test_agreement_requires_both_majorities():
    """6: Agreement (for elections and entry commitment) requires separate majorities from both the
    old and new configurations. Once C-old,new has been committed, neither can make decisions without
    approval of the other, and it is safe for the leader to create C-new.
    """
    cluster = led(3, learners=(4, 5, 6))
    for replica in (4, 5, 6):
        cluster.cut |= {(replica, 1)}
    index = cluster.change(1, (4, 5, 6))
    cluster.advance(200_000)
    assert cluster.core(1).membership == Membership((4, 5, 6), (), (1, 2, 3))
    assert cluster.core(1).commit_index < index
    cluster.heal()
    cluster.advance(200_000)
    assert cluster.core(1).membership == Membership((4, 5, 6), retired=3)
    cluster.advance(2_000_000)
    assert cluster.leader() in {4, 5, 6}


def test_new_servers_do_not_count_for_majorities():
    """6: New servers join the cluster as non-voting members: the leader replicates log entries to
    them, but they are not considered for majorities.
    """
    cluster = led()
    cluster.join(4)
    cluster.join(5)
    cluster.change(1, (1, 2, 3), (4, 5))
    cluster.advance(200_000)
    cluster.isolate(2)
    cluster.isolate(3)
    index = cluster.propose(1, b"x")
    cluster.advance(100_000)
    assert cluster.core(4).last_index == index
    assert cluster.core(1).commit_index < index
    cluster.crash(1)
    cluster.advance(3_000_000)
    assert cluster.core(4).role is Role.FOLLOWER


def test_reconfiguration_begins_once_the_new_servers_have_caught_up():
    """6: Once the new servers have caught up with the rest of the cluster, the reconfiguration can
    proceed. 4.2.1: the leader should wait until the new server's log is sufficiently caught up.
    (Here: it lacks nothing that the log held an election timeout ago, instead of ten rounds.)
    """
    cluster = led()
    cluster.join(4)
    cluster.change(1, (1, 2, 3), (4,))
    with pytest.raises(ChangeRefused) as refused:
        cluster.change(1, (1, 2, 3, 4))
    assert refused.value.reason is Reason.IN_PROGRESS
    cluster.drop = only_to(2, 3)
    cluster.advance(100_000)
    with pytest.raises(ChangeRefused) as refused:
        cluster.change(1, (1, 2, 3, 4))
    assert refused.value.reason is Reason.NOT_CAUGHT_UP
    cluster.drop = lambda m: False
    cluster.advance(100_000)
    cluster.change(1, (1, 2, 3, 4))


def test_leader_manages_a_cluster_without_itself():
    """6: There will be a period of time when the leader manages a cluster that does not include
    itself; it replicates log entries but does not count itself in majorities. It steps down once it
    has committed C-new. (Here: after it has handed over.)
    """
    cluster = led(3, learners=(4,))
    cluster.change(1, (2, 3, 4))
    # C-new reaches 2 alone.
    while cluster.core(1).membership.outgoing:
        cluster.step(cluster.wire.popleft())
    cluster.drop = only_to(2)
    cluster.pump(cluster[1])
    cluster.wire.clear()
    cluster.advance(200_000)
    core = cluster.core(1)
    assert core.membership.voters == cluster.core(2).membership.voters == (2, 3, 4)
    assert core.role is Role.LEADER
    assert core.commit_index < core.log.membership_index
    cluster.drop = lambda m: False
    cluster.advance(300_000)
    assert core.role is Role.FOLLOWER
    assert cluster.leader() in {2, 3, 4}


def test_removed_servers_disrupt_nobody():
    """6: Removed servers can disrupt the cluster: they will time out and start new elections with
    new term numbers. Servers disregard requests when they believe a current leader exists, that is
    within the minimum election timeout of hearing from it. (Here: pre-votes alone, as in 4.2.3.)
    """
    cluster = led()
    term = cluster.core(1).term
    for wait, granted in ((0, False), (ELECTION_MICROS_MIN + 1, True)):
        cluster.drop = lambda m: m.sender == 1
        cluster.advance(wait)
        cluster.wire.clear()
        cluster.drop = lambda m: False
        cluster.step(
            VoteRequest(ReplicaId(9), ReplicaId(2), Term(term + 1), Index(99), Term(9), pre=True)
        )
        (reply,) = [m for m in cluster.wire if isinstance(m, VoteReply)]
        assert reply.granted is granted
        assert cluster.core(2).term == term


def test_one_server_at_a_time_needs_no_joint_configuration():
    """4.1: When adding or removing a single server, any majority of the old cluster overlaps with
    any majority of the new one; so the cluster can switch directly.
    """
    cluster = led(3, learners=(4,))
    for voters in ((1, 2, 3, 4), (1, 2, 3)):
        index = cluster.change(1, voters, tuple({4} - set(voters)))
        assert cluster.core(1).membership.outgoing == ()
        cluster.advance(100_000)
        assert cluster.core(1).log.membership_index == index


def test_change_may_begin_when_the_one_before_is_committed():
    """4.1: A leader can start a new change only once the previous one has been committed."""
    cluster = led(3, learners=(4, 5))
    cluster.drop = lambda m: isinstance(m, Append)
    cluster.change(1, (1, 2, 3, 4), (5,))
    with pytest.raises(ChangeRefused) as refused:
        cluster.change(1, (1, 2, 3), (4, 5))
    assert refused.value.reason is Reason.IN_PROGRESS
    cluster.drop = lambda m: False
    cluster.advance(200_000)
    cluster.change(1, (1, 2, 3), (4, 5))


def test_leader_has_committed_in_its_term_before_it_changes_anything():
    """The correction of 4.1: a leader may not append a new configuration before it has committed an
    entry from its current term.
    """
    cluster = led(3, learners=(4,))
    cluster.drop = lambda m: isinstance(m, Append)
    election.campaign(cluster.core(2))
    cluster.pump(cluster[2])
    cluster.advance(20_000)
    assert cluster.core(2).role is Role.LEADER
    with pytest.raises(ChangeRefused) as refused:
        cluster.change(2, (1, 2, 3, 4))
    assert refused.value.reason is Reason.NO_OP_PENDING


def test_server_falls_back_to_the_configuration_before():
    """4.1: If the entry is removed from the log, the server must be prepared to fall back to the
    previous configuration in its log.
    """
    cluster = led(3, learners=(4,))
    cluster.isolate(1)
    cluster.change(1, (1, 2, 3, 4))
    cluster.wire.clear()
    cluster.elect(2)
    cluster.heal()
    cluster.advance(500_000)
    assert cluster.core(1).membership == Membership((1, 2, 3), (4,))


def test_votes_and_appends_of_strangers_are_accepted():
    """4.1: Servers use configurations of the callers: a server accepts AppendEntries from a leader,
    and grants its vote to a candidate, that are not part of its own latest configuration.
    """
    cluster = led()
    core = cluster.core(2)
    cluster.wire.clear()
    cluster.step(
        VoteRequest(
            ReplicaId(9), ReplicaId(2), Term(7), core.last_index, core.log.last_term, pre=False
        )
    )
    (reply,) = [m for m in cluster.wire if isinstance(m, VoteReply)]
    assert reply.granted
    cluster.step(
        Append(
            ReplicaId(9), ReplicaId(2), Term(7), core.last_index, core.log.last_term,
            core.log.last_chain, Index(0), (),
        )
    )  # fmt: skip
    assert core.leader == 9


def test_server_that_is_not_part_of_its_own_configuration_starts_elections():
    """4.2.2: A server that is not part of its own latest configuration should still start new
    elections, as it might still be needed until the C-new entry is committed. It does not count its
    own vote.
    """
    cluster = led()
    cluster.drop = lambda m: isinstance(m, Append)
    cluster.change(1, (2, 3))
    cluster.crash(1)
    cluster.restart(1)
    core = cluster.core(1)
    assert core.may_campaign
    # Votes are from now on those of 2 and 3.
    cluster.drop = lambda m: m.sender == 3
    election.campaign(core)
    cluster.pump(cluster[1])
    cluster.deliver()
    assert core.votes == {1: True, 2: True}
    assert core.role is Role.CANDIDATE
    cluster.drop = lambda m: False
    election.campaign(core)
    cluster.pump(cluster[1])
    cluster.advance(5_000)
    assert cluster.leaders[core.term] == 1
    cluster.advance(500_000)
    assert cluster.leader() in {2, 3}
    assert core.removed
