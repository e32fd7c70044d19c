"""Stories of elections: lost links, split votes, partitions, restarts."""

import pytest
from raft_harness import WALL, Cluster
from raft_stories import deposed_with_tail, led

from raftq.ids import Index, Micros, ReplicaId, Term
from raftq.limits import ELECTION_MICROS_MAX, ELECTION_MICROS_MIN, HEARTBEAT_MICROS
from raftq.raft import Membership, Role, election
from raftq.raft.messages import (
    Append,
    Heartbeat,
    HeartbeatReply,
    VoteReply,
    VoteRequest,
)


def test_duplicate_vote_counts_once():
    cluster = Cluster(5)
    core = cluster.core(1)
    core.election_deadline = Micros(cluster.now)
    cluster.tick()
    granted = VoteReply(ReplicaId(2), ReplicaId(1), Term(1), granted=True, pre=True, wall=WALL)
    for _ in range(5):
        core.step(granted)
    assert core.role is Role.PRE_CANDIDATE


def test_votes_of_strangers_do_not_count():
    cluster = Cluster(3)
    core = cluster.core(1)
    core.election_deadline = Micros(cluster.now)
    cluster.tick()
    for stranger in (7, 8, 9):
        core.step(
            VoteReply(ReplicaId(stranger), ReplicaId(1), Term(1), granted=True, pre=True, wall=WALL)
        )
    assert core.role is Role.PRE_CANDIDATE


def lose_leader(cluster, sync_micros=0):
    """Kill 1; its links break for all at once. Gives the time until there is another leader."""
    begun = cluster.now
    cluster.crash(1)
    for replica, node in cluster.nodes.items():
        if node.alive:
            node.auto_sync = not sync_micros
            cluster.core(replica).link_lost(ReplicaId(1))
    due = {}
    while cluster.leader() is None:
        cluster.advance(500)
        for replica, node in cluster.nodes.items():
            if node.alive and node.log.pending:
                due.setdefault(replica, cluster.now + sync_micros)
                if cluster.now >= due[replica]:
                    del due[replica]
                    cluster.sync(replica)
        assert cluster.now - begun < 3_000_000
    return cluster.now - begun


def test_fast_failover_does_not_split_its_vote():
    """With syncs of 20 ms and 40 seeds, two candidates of one term stay rare and cost little."""
    times, terms = [], []
    for seed in range(40):
        cluster = led(seed=seed)
        before = cluster.core(1).term
        times.append(lose_leader(cluster, sync_micros=20_000))
        terms.append(max(node.core.term for node in cluster.nodes.values()) - before)
    assert sorted(times)[len(times) // 2] < 120_000
    assert max(times) < 400_000
    assert sum(terms) <= 44


def test_lost_fast_election_is_retried_soon():
    """Both candidates stand in the same term; nobody waits for an ordinary timeout."""
    cluster = led()
    cluster.crash(1)
    for replica in (2, 3):
        cluster.core(replica).link_lost(ReplicaId(1))
    for replica in (2, 3):
        cluster.core(replica).fast_deadline = Micros(cluster.now + 5_000)
    begun = cluster.now
    while cluster.leader() is None:
        cluster.advance(1_000)
    assert cluster.now - begun < 150_000


def test_listener_restart_cancels_the_campaign():
    """Links are back in 3 ms: a frame of the leader ends what their loss began."""
    cluster = led()
    term = cluster.core(1).term
    for replica in (2, 3):
        cluster.core(replica).link_lost(ReplicaId(1))
        cluster.core(1).link_lost(ReplicaId(replica))
    cluster.advance(3_000)
    for replica in (2, 3):
        cluster.core(1).link_up(ReplicaId(replica))
        cluster.pump(cluster[1])
    cluster.advance(1_000_000)
    assert cluster.core(1).role is Role.LEADER
    assert cluster.core(1).term == term


def test_link_loss_fires_once_per_contact():
    """A refused reconnect is not another lost link: no storm of campaigns."""
    cluster = led()
    cluster.isolate(1)
    core = cluster.core(2)
    core.link_lost(ReplicaId(1))
    first = core.fast_deadline
    cluster.advance(1_000)
    core.link_lost(ReplicaId(1))
    assert core.fast_deadline == first


def test_loss_of_a_followers_link_starts_nothing():
    cluster = led()
    cluster.core(2).link_lost(ReplicaId(3))
    cluster.advance(200_000)
    assert cluster.leader() == 1


def test_single_lost_link_in_five_changes_nothing():
    """One voter lost the leader, the others hear it: its pre-votes stay refused, and it tires."""
    cluster = led(5)
    cluster.cut |= {(1, 2), (2, 1)}
    cluster.core(2).link_lost(ReplicaId(1))
    asked = []
    cluster.drop = lambda m: isinstance(m, VoteRequest) and bool(asked.append(m)) and False
    term = cluster.core(1).term
    cluster.advance(5_000_000)
    assert cluster.leader() == 1
    assert cluster.core(1).term == term
    assert len(asked) < 4 * 40


def test_three_lost_links_in_five_replace_the_leader():
    cluster = led(5)
    for replica in (2, 3, 4):
        cluster.cut |= {(1, replica), (replica, 1)}
        cluster.core(replica).link_lost(ReplicaId(1))
        cluster.core(1).link_lost(ReplicaId(replica))
    cluster.advance(300_000)
    assert cluster.leader() in {2, 3, 4}


@pytest.mark.parametrize("begins", [None, 1, 2, 3, 4, 5])
def test_partial_partition_of_five_gets_a_stable_leader(begins):
    """4 hears only 2, 5 hears only 3, of those outside; within two seconds one leads, and stays."""
    cluster = Cluster(5) if begins is None else led(5, begins)
    for one, other in ((4, 1), (4, 3), (4, 5), (5, 1), (5, 2)):
        cluster.cut |= {(one, other), (other, one)}
    cluster.advance(2_000_000)
    leader, term = cluster.leader(), max(cluster.leaders)
    assert leader is not None
    cluster.advance(5_000_000)
    assert cluster.leader() == leader
    assert max(cluster.leaders) == term


def test_returning_replica_disturbs_nobody():
    """Cut off for seconds, it comes back with the same term and follows."""
    cluster = led()
    term = cluster.core(1).term
    cluster.isolate(3)
    cluster.advance(5_000_000)
    assert cluster.core(3).term == term
    cluster.heal()
    cluster.advance(1_000_000)
    assert cluster.leader() == 1
    assert cluster.core(1).term == term


def test_leader_that_hears_no_quorum_steps_down():
    cluster = led()
    cluster.isolate(1)
    cluster.advance(ELECTION_MICROS_MAX + 2 * HEARTBEAT_MICROS)
    assert cluster.core(1).role is not Role.LEADER
    assert cluster.core(1).leader == 0


def test_deposed_leader_is_told():
    """A leader of an older term gets an answer, so that it does not believe in itself for long."""
    cluster = led()
    deposed_with_tail(cluster)
    cluster.heal()
    cluster.step(
        Heartbeat(
            ReplicaId(1), ReplicaId(3), Term(1), 1_000, Index(1), bytes(16), Index(0), bytes(16)
        )
    )
    cluster.deliver(only=lambda m: isinstance(m, HeartbeatReply) and m.to == 1)
    assert cluster.core(1).term == cluster.core(2).term
    assert cluster.core(1).role is Role.FOLLOWER


def test_restarted_voter_waits_before_it_grants():
    """It may just have acknowledged a live leader; that contact is forgotten, the rule is not."""
    cluster = led()
    cluster.crash(3)
    cluster.restart(3)
    core = cluster.core(3)
    ask = VoteRequest(
        ReplicaId(2), ReplicaId(3), Term(9), Index(99), Term(8), pre=True, link_lost=True
    )
    cluster.wire.clear()
    cluster.step(ask)
    assert cluster.wire.pop().granted is False
    cluster.now += ELECTION_MICROS_MIN
    core.tick(Micros(cluster.now), Micros(WALL))
    cluster.wire.clear()
    cluster.step(ask)
    assert any(isinstance(m, VoteReply) and m.granted for m in cluster.wire)


def test_real_vote_is_judged_without_stickiness():
    """What a granted pre-vote is worth: the vote itself asks for term and log only."""
    cluster = led()
    core = cluster.core(3)
    cluster.wire.clear()
    cluster.step(
        VoteRequest(
            ReplicaId(2), ReplicaId(3), Term(9), core.last_index, core.log.last_term, pre=False
        )
    )
    (reply,) = [m for m in cluster.wire if isinstance(m, VoteReply)]
    assert reply.granted
    # Lost on its way, it is repeated to the same candidate and refused to another.
    for candidate, granted in ((2, True), (1, False)):
        cluster.wire.clear()
        cluster.step(
            VoteRequest(
                ReplicaId(candidate), ReplicaId(3), Term(9), core.last_index, core.log.last_term,
                pre=False,
            )
        )  # fmt: skip
        (reply,) = [m for m in cluster.wire if isinstance(m, VoteReply)]
        assert reply.granted is granted


def test_learner_grants_its_vote():
    """It may have become a voter by an entry that it does not have yet."""
    cluster = led(3, learners=(4,))
    cluster.wire.clear()
    cluster.step(VoteRequest(ReplicaId(2), ReplicaId(4), Term(9), Index(99), Term(8), pre=False))
    (reply,) = [m for m in cluster.wire if isinstance(m, VoteReply)]
    assert reply.granted
    # Nobody who does not count it among the voters is elected by it.
    core = cluster.core(2)
    election.campaign(core)
    core.step(reply._replace(to=ReplicaId(2), term=core.term))
    assert core.role is Role.CANDIDATE


def test_lost_leaders_vote_is_waited_for_in_an_ordinary_election():
    """Of two voters both are needed, also after the link between them was lost once."""
    cluster = led(2)
    cluster.isolate(1)
    cluster.core(2).link_lost(ReplicaId(1))
    cluster.advance(2_000_000)
    cluster.heal()
    cluster.advance(2_000_000)
    assert cluster.leader() is not None


def test_voter_removed_by_an_uncommitted_change_still_campaigns():
    """Nobody else has the change; without it the group would stand still for ever."""
    cluster = led()
    cluster.drop = lambda m: isinstance(m, Append)
    cluster.core(1).propose_membership(Membership((ReplicaId(2), ReplicaId(3))))
    cluster.pump(cluster[1])
    cluster.crash(1)
    cluster.restart(1)
    assert cluster.core(1).may_campaign
    cluster.drop = lambda m: False
    election.campaign(cluster.core(1))
    cluster.pump(cluster[1])
    cluster.advance(300_000)
    # It led until the change was committed, and not for longer.
    assert cluster.leaders[2] == 1
    assert not cluster.core(1).may_campaign
    assert cluster.core(1).role is Role.FOLLOWER
