"""Sentences of the Raft paper (extended version), each with a test of what it says.

Where this core departs on purpose (a heartbeat is not an empty AppendEntries, a leader's own disk
may lag), the test says what holds instead. Section 6 is in `test_raft_paper_membership.py`.
"""

import pytest
from raft_harness import WALL, Cluster, NotLeader

from raftq.ids import Index, Micros, ReplicaId, Term
from raftq.limits import ELECTION_MICROS_MAX, ELECTION_MICROS_MIN, HEARTBEAT_MICROS
from raftq.raft import Role, election
from raftq.raft.messages import Append, AppendReply, Heartbeat, VoteReply, VoteRequest


def led(size=3, **options):
    cluster = Cluster(size, **options)
    cluster.elect(1)
    cluster.advance(200_000)
    return cluster


def sent_by(cluster, action, kind):
    """Messages of one kind that `action` makes."""
    cluster.wire.clear()
    action()
    return [message for message in cluster.wire if isinstance(message, kind)]


def ask(core, *, sender=2, term=9, last=(0, 0), pre=False):
    last_term, last_index = last
    return VoteRequest(
        ReplicaId(sender), core.replica, Term(term), Index(last_index), Term(last_term), pre=pre
    )


@pytest.mark.parametrize("role", ["follower", "candidate", "leader"])
def test_newer_term_is_adopted_and_deposes(role):
    """5.1: If one server's current term is smaller than the other's, then it updates its current
    term to the larger value. If a candidate or leader discovers that its term is out of date, it
    immediately reverts to follower state.
    """
    cluster = led()
    core = cluster.core(1 if role == "leader" else 2)
    if role == "candidate":
        election.campaign(core)
    assert core.role.value == role
    core.step(
        Heartbeat(ReplicaId(3), core.replica, Term(20), 1, Index(0), bytes(16), Index(0), bytes(16))
    )
    assert core.role is Role.FOLLOWER
    assert core.term == 20
    assert core.leader == 3


def test_stale_term_is_rejected():
    """5.1: If a server receives a request with a stale term number, it rejects the request."""
    cluster = led()
    core = cluster.core(2)
    stale = Append(
        ReplicaId(3), ReplicaId(2), Term(core.term - 1), Index(0), Term(0), bytes(16), Index(0), ()
    )
    (reply,) = sent_by(cluster, lambda: cluster.step(stale), AppendReply)
    assert not reply.success
    assert reply.term == core.term
    assert core.leader == 1


def test_servers_begin_as_followers():
    """5.2: When servers start up, they begin as followers."""
    assert all(node.core.role is Role.FOLLOWER for node in Cluster(3).nodes.values())


def test_leader_sends_heartbeats_to_all():
    """5.2: Leaders send periodic heartbeats to all followers in order to maintain their authority."""
    cluster = led()
    beats = sent_by(cluster, lambda: cluster.advance(HEARTBEAT_MICROS, deliver=False), Heartbeat)
    assert sorted(beat.to for beat in beats) == [2, 3]


def test_silence_starts_an_election():
    """5.2: If a follower receives no communication over a period of time called the election
    timeout, then it assumes there is no viable leader and begins an election. To begin an election,
    a follower increments its current term and transitions to candidate state. It then votes for
    itself and issues RequestVote RPCs in parallel to each of the other servers.
    """
    cluster = led()
    cluster.crash(1)
    cluster.core(3).election_deadline = Micros(cluster.now + 10 * ELECTION_MICROS_MAX)
    term = cluster.core(2).term
    cluster.advance(ELECTION_MICROS_MAX)
    assert cluster.core(2).term == term + 1
    assert cluster.core(2).vote == 2
    assert cluster.core(2).role is Role.LEADER


def test_majority_of_votes_wins():
    """5.2: A candidate wins an election if it receives votes from a majority of the servers in the
    full cluster for the same term.
    """
    for granted, role in ((1, Role.CANDIDATE), (2, Role.LEADER)):
        cluster = Cluster(5)
        core = cluster.core(1)
        election.campaign(core)
        cluster.pump(cluster[1])
        for voter in range(2, 2 + granted):
            core.step(
                VoteReply(
                    ReplicaId(voter), ReplicaId(1), core.term, granted=True, pre=False, wall=WALL
                )
            )
        assert core.role is role


def test_one_vote_per_term():
    """5.2: Each server will vote for at most one candidate in a given term, on a
    first-come-first-served basis.
    """
    cluster = Cluster(3)
    core = cluster.core(1)
    answers = []
    for candidate in (2, 3, 2):
        replies = sent_by(
            cluster, lambda c=candidate: cluster.step(ask(core, sender=c, term=1)), VoteReply
        )
        answers += [reply.granted for reply in replies]
    assert answers == [True, False, True]


def test_candidate_recognises_a_leader_of_its_term():
    """5.2: If the leader's term is at least as large as the candidate's current term, then the
    candidate recognizes the leader as legitimate and returns to follower state.
    """
    cluster = Cluster(3)
    core = cluster.core(1)
    election.campaign(core)
    core.step(
        Append(ReplicaId(2), ReplicaId(1), core.term, Index(0), Term(0), bytes(16), Index(0), ())
    )
    assert core.role is Role.FOLLOWER
    assert core.leader == 2


def test_election_timeouts_are_random():
    """5.2: Raft uses randomized election timeouts to ensure that split votes are rare."""
    timeouts = set()
    for seed in range(50):
        timeout = Cluster(3, seed=seed).core(1).election_timeout
        assert ELECTION_MICROS_MIN <= timeout < ELECTION_MICROS_MAX
        timeouts.add(timeout)
    assert len(timeouts) > 40


def test_leader_appends_then_replicates_in_parallel():
    """5.3: The leader appends the command to its log as a new entry, then issues AppendEntries RPCs
    in parallel to each of the other servers. (Here: without waiting for its own disk.)
    """
    cluster = led()
    cluster[1].auto_sync = False
    appends = sent_by(cluster, lambda: cluster.propose(1, b"x"), Append)
    assert [(m.to, [e.index for e in m.entries]) for m in appends] == [(2, [2]), (3, [2])]
    assert cluster.core(1).durable_index == 1


def test_committed_when_a_majority_has_it():
    """5.3: A log entry is committed once the leader that created the entry has replicated it on a
    majority of the servers. This also commits all preceding entries in the leader's log.
    """
    cluster = led(5)
    cluster.cut |= {(1, 4), (1, 5)}
    first = cluster.propose(1, b"a")
    cluster.cut |= {(1, 3)}
    cluster.deliver()
    assert cluster.core(1).commit_index == first - 1
    cluster.cut -= {(1, 3)}
    last = cluster.propose(1, b"b")
    cluster.advance(200_000)
    assert cluster.core(1).commit_index == last
    assert cluster[1].bodies == [b"a", b"b"]


def test_followers_learn_what_is_committed_and_apply_in_order():
    """5.3: Once a follower learns that a log entry is committed, it applies the entry to its local
    state machine (in log order).
    """
    cluster = led()
    for number in range(10):
        cluster.propose(1, b"%d" % number)
    cluster.advance(100_000)
    assert all(
        node.bodies == [b"%d" % number for number in range(10)] for node in cluster.nodes.values()
    )


def test_append_is_refused_where_the_log_does_not_match():
    """5.3: If the follower does not find an entry in its log with the same index and term, then it
    refuses the new entries. (Here: with the same chain, which says more.)
    """
    cluster = led()
    core = cluster.core(2)
    index = Index(core.last_index + 5)
    message = Append(
        ReplicaId(1), ReplicaId(2), core.term, index, core.term, bytes(16), Index(0), ()
    )
    (reply,) = sent_by(cluster, lambda: cluster.step(message), AppendReply)
    assert not reply.success
    assert reply.refused_index == index
    assert reply.hint_index == core.last_index


@pytest.mark.parametrize("tail", [0, 1, 2, 5])
def test_followers_logs_are_made_equal_to_the_leaders(tail):
    """5.3 and figure 7: conflicting entries in follower logs will be overwritten with entries from
    the leader's log; a follower may be missing entries, may have extra ones, or both.
    """
    cluster = led()
    cluster.isolate(1)
    for number in range(tail):
        cluster.propose(1, b"extra-%d" % number)
    cluster.wire.clear()
    cluster.elect(2)
    cluster.propose(2, b"kept")
    cluster.elect(3)
    cluster.heal()
    cluster.advance(500_000)
    assert cluster.converged()
    assert cluster[1].log_bodies() == [b"kept"]


def test_leader_never_overwrites_its_own_log():
    """5.3: A leader never overwrites or deletes entries in its own log (append-only)."""
    cluster = led()
    ends = []
    for number in range(10):
        cluster.propose(1, b"%d" % number)
        cluster.advance(20_000)
        ends.append(cluster.core(1).last_index)
    assert ends == sorted(ends)


@pytest.mark.parametrize(
    ("last", "granted"),
    [((2, 1), True), ((1, 2), True), ((1, 3), True), ((1, 1), False), ((0, 9), False)],
)
def test_vote_goes_to_an_up_to_date_log_only(last, granted):
    """5.4.1: The voter denies its vote if its own log is more up-to-date than that of the candidate:
    the log with the later term, or with the same term the longer one, is more up-to-date.
    """
    cluster = led()
    cluster.propose(1, b"x")
    cluster.advance(100_000)
    core = cluster.core(2)
    assert (core.log.last_term, core.last_index) == (1, 2)
    (reply,) = sent_by(cluster, lambda: cluster.step(ask(core, sender=3, last=last)), VoteReply)
    assert reply.granted is granted


def test_entries_of_older_terms_are_not_committed_by_counting():
    """5.4.2 and figure 8: Only log entries from the leader's current term are committed by counting
    replicas; once one is, all prior entries are committed indirectly.
    """
    cluster = led()
    cluster.drop = lambda m: isinstance(m, AppendReply)
    index = cluster.propose(1, b"old")
    cluster.deliver()
    cluster.crash(1)
    election.campaign(cluster.core(2))
    cluster.pump(cluster[2])
    cluster.advance(5_000)
    core = cluster.core(2)
    assert core.role is Role.LEADER
    core.step(
        AppendReply(
            ReplicaId(3), ReplicaId(2), core.term, True, index, Index(0), Index(0), Term(0),
            index, WALL, whole=True,
        )
    )  # fmt: skip
    assert core.progress[3].match == index
    assert core.commit_index < index
    cluster.drop = lambda m: False
    cluster.advance(200_000)
    assert core.commit_index == core.term_start
    assert cluster[2].bodies == [b"old"]


def test_appends_may_arrive_twice():
    """5.5: Raft RPCs are idempotent: a follower ignores entries that are already in its log."""
    cluster = led()
    cluster.propose(1, b"x")
    twice = [m for m in cluster.wire if isinstance(m, Append) and m.to == 2]
    cluster.deliver()
    for message in twice * 2:
        cluster.step(message)
    cluster.advance(100_000)
    assert cluster[2].bodies == [b"x"]


def test_term_and_vote_survive_a_crash():
    """Figure 2: currentTerm and votedFor are updated on stable storage before responding to RPCs."""
    cluster = Cluster(3)
    cluster.step(ask(cluster.core(1), sender=2, term=7))
    cluster.crash(1)
    cluster.restart(1)
    core = cluster.core(1)
    assert (core.term, core.vote) == (7, 2)
    (reply,) = sent_by(
        cluster, lambda: cluster.step(ask(core, sender=3, term=7, last=(6, 9))), VoteReply
    )
    assert not reply.granted


def test_snapshot_replaces_the_log_only_if_it_says_more():
    """7: If the follower receives a snapshot that describes a prefix of its log, entries covered by
    the snapshot are kept here and entries following it are valid and must be retained.
    """
    cluster = led()
    for number in range(4):
        cluster.propose(1, b"%d" % number)
    cluster.advance(100_000)
    end = cluster.core(2).last_index
    cluster.compact(1, Index(3))
    meta = cluster[1].log.snapshot
    cluster.core(1).progress[2].begin_snapshot(meta.index, meta.chain)
    cluster.advance(500_000)
    assert cluster.core(2).last_index == end
    assert cluster.core(2).log.floor == 0
    assert cluster.converged()


def test_reads_ask_a_quorum():
    """8: A leader must check whether it has been deposed before processing a read-only request, by
    exchanging heartbeat messages with a majority of the cluster.
    """
    cluster = led()
    cluster.isolate(1)
    cluster.core(1).read_index("r")
    cluster.pump(cluster[1])
    cluster.deliver()
    assert cluster[1].reads == {}
    cluster.advance(2 * ELECTION_MICROS_MAX)
    with pytest.raises(NotLeader):
        cluster.core(1).read_index("r")
