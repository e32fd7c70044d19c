"""Stories of disks: slow ones, lying ones, and replicas that forgot."""

from raft_harness import WALL
from raft_stories import deposed_with_tail, led

from raftq.ids import Index, Micros, ReplicaId, Term, WriteSeq
from raftq.limits import HEARTBEAT_MICROS
from raftq.raft import HardState, Raft, Role, election
from raftq.raft.messages import (
    Amnesiac,
    HeartbeatReply,
    VoteReply,
    VoteRequest,
)


def test_leader_counts_itself_only_after_its_own_sync():
    cluster = led()
    cluster[1].auto_sync = False
    cluster.isolate(3)
    index = cluster.propose(1, b"x")
    cluster.deliver()
    assert cluster[2].log.platter.last_index == index
    assert cluster.core(1).commit_index == index - 1
    cluster.sync(1)
    assert cluster.core(1).commit_index == index


def test_followers_commit_without_a_stalled_leader_disk():
    cluster = led()
    cluster[1].auto_sync = False
    index = cluster.propose(1, b"x")
    cluster.deliver()
    assert cluster.core(1).commit_index == index
    assert cluster.core(1).durable_index < index


def stand_without_sync():
    """1 is dead; 2 stands for election, and nothing it writes gets synced."""
    cluster = led()
    cluster.crash(1)
    cluster[2].auto_sync = False
    election.campaign(cluster.core(2))
    cluster.pump(cluster[2])
    return cluster, cluster.core(2)


def test_candidates_own_vote_counts_only_when_durable():
    cluster, core = stand_without_sync()
    cluster.step(
        VoteReply(ReplicaId(3), ReplicaId(2), core.term, granted=True, pre=False, wall=WALL)
    )
    assert core.role is Role.CANDIDATE
    cluster.sync(2)
    assert core.role is Role.LEADER


def test_vote_requests_wait_for_the_candidates_own_sync():
    cluster, _ = stand_without_sync()
    assert not any(isinstance(m, VoteRequest) for m in cluster.wire)
    cluster.sync(2)
    assert any(isinstance(m, VoteRequest) for m in cluster.wire)


def test_disk_stalls_across_two_elections():
    """A disk that hangs for ten seconds holds every promise, and completions come in order."""
    cluster = led()
    cluster[3].auto_sync = False
    cluster.crash(1)
    cluster.advance(10_000_000)
    # 2 cannot win without 3, and 3 cannot promise anything.
    assert cluster.leader() is None
    assert not any(cluster.leaders.get(term) for term in range(2, 100))
    while cluster[3].log.pending:
        cluster.sync(3, 1)
        cluster.advance(1_000)
    cluster[3].auto_sync = True
    cluster.advance(2_000_000)
    assert cluster.leader() in {2, 3}


def test_candidate_whose_disk_stalls_raises_the_term_once():
    """Ten seconds are twenty election timeouts; its requests of the first have not even left."""
    cluster, core = stand_without_sync()
    term = core.term
    cluster.advance(10_000_000)
    assert core.role is Role.CANDIDATE
    assert core.term == term
    # The disk goes on, and so does the candidacy.
    cluster.sync(2)
    cluster.advance(50_000)
    assert core.role is Role.LEADER
    assert core.term == term


def test_candidate_stands_again_after_its_disk_went_on():
    cluster, core = stand_without_sync()
    cluster.isolate(2)
    term = core.term
    cluster.advance(5_000_000)
    cluster[2].auto_sync = True
    cluster.sync(2)
    # Its requests get lost, so that candidacy is.
    cluster.advance(100_000)
    cluster.heal()
    cluster.advance(2_000_000)
    assert cluster.leader() in {2, 3}
    assert term < core.term <= term + 2


def test_voter_whose_disk_stalls_makes_no_candidate_raise_terms():
    """It would grant each pre-vote, and none of the votes that these are asked for."""
    cluster = led()
    cluster[3].auto_sync = False
    cluster.crash(1)
    term = cluster.core(2).term
    cluster.advance(10_000_000)
    assert cluster.core(2).term == term + 1
    cluster[3].auto_sync = True
    cluster.sync(3)
    cluster.advance(2_000_000)
    assert cluster.leader() in {2, 3}
    assert cluster.core(2).term <= term + 2


def test_two_stalled_disks_do_not_raise_each_others_terms():
    """Each learns the other's term from refusals; neither may go beyond it unsynced."""
    cluster, core = stand_without_sync()
    cluster[3].auto_sync = False
    term = core.term
    cluster.advance(10_000_000)
    assert max(core.term, cluster.core(3).term) <= term + 1


def test_candidate_whose_disk_stalls_for_ever_blocks_nobody():
    cluster, core = stand_without_sync()
    cluster.advance(2_000_000, deliver=False)
    cluster.wire.clear()
    cluster.restart(1)
    begun = cluster.now
    while cluster.leader() is None:
        cluster.advance(10_000)
    assert cluster.now - begun < 3_000_000
    leader, term = cluster.leader(), max(cluster.leaders)
    index = cluster.propose(leader, b"x")
    cluster.advance(10_000_000)
    assert cluster.core(leader).commit_index == index
    assert cluster.leader() == leader
    assert max(cluster.leaders) == term
    # It follows, as far as memory goes, and is synced to when the disk returns.
    assert core.role is Role.FOLLOWER
    cluster[2].auto_sync = True
    cluster.sync(2)
    cluster.advance(1_000_000)
    assert cluster.converged()


def test_election_won_in_words_is_held_when_the_disk_goes_on():
    """A term that was only heard of is not synced yet; the pre-vote round is not wasted."""
    cluster = led()
    cluster.crash(1)
    cluster[2].auto_sync = False
    core = cluster.core(2)
    core.become_follower(Term(core.term + 3), ReplicaId(0))
    cluster.pump(cluster[2])
    term = core.term
    while core.role is not Role.PRE_CANDIDATE or len(core.votes) < 2:
        cluster.advance(10_000)
    assert core.term == term
    cluster.sync(2)
    assert core.role is Role.CANDIDATE
    assert core.term == term + 1


def test_completion_of_a_write_that_was_truncated_meanwhile():
    """Index 3 is written, truncated and written again; the first completion is not the second's."""
    cluster = led()
    cluster[1].auto_sync = False
    deposed_with_tail(cluster)
    core = cluster.core(1)
    common = core.commit_index
    cluster.heal()
    cluster.core(2).link_up(ReplicaId(1))
    cluster.pump(cluster[2])
    cluster.advance(200_000)
    # The tail was replaced, and nothing of 1's is synced since it was cut off.
    assert core.log.last_chain == cluster.core(2).log.last_chain
    assert len(cluster[1].log.pending) >= 2
    assert core.durable_index == common
    cluster.sync(1, 1)
    assert core.durable_index == common, "the completion spoke of what is truncated now"
    cluster.sync(1)
    assert core.durable_index == core.last_index


def test_commit_index_from_disk_never_exceeds_the_log():
    """Otherwise entries yet to come would count as committed on arrival."""
    cluster = led()
    log = cluster[2].log
    state = HardState(Term(1), ReplicaId(1), Index(500), WriteSeq(9))
    core = Raft(
        replica=ReplicaId(2), state=state, log=log, draw=lambda n: 0,
        monotonic=Micros(0), wall=Micros(WALL),
    )  # fmt: skip
    assert core.commit_index == log.last_index


def test_amnesiac_follower_is_found_in_the_leaders_own_term():
    cluster = led()
    cluster.propose(1, b"PAID")
    cluster.advance(100_000)
    cluster.crash(2)
    cluster[2].log.wipe_tail(1)
    cluster.restart(2)
    told = []
    cluster.drop = lambda m: isinstance(m, Amnesiac) and bool(told.append(m)) and False
    cluster.advance(200_000)
    assert told
    assert not cluster.core(2).may_vote
    assert 2 not in cluster.core(1).matches
    # It follows as a copy, and is not counted.
    assert cluster.core(2).last_index == cluster.core(1).last_index
    cluster.isolate(3)
    index = cluster.propose(1, b"two copies, one vote")
    cluster.advance(100_000)
    assert cluster.core(2).last_index == index
    assert cluster.core(1).commit_index < index


def test_lawful_truncation_is_not_amnesia():
    """What was acknowledged to the leader of an older term may be truncated by a newer one."""
    cluster = led(5)
    cluster.split({1, 2}, {3, 4, 5})
    for number in range(5):
        cluster.propose(1, b"minority-%d" % number)
    cluster.advance(10_000)
    assert cluster.core(1).progress[2].match == cluster.core(1).last_index
    cluster.elect(3)
    cluster.heal()
    cluster.advance(500_000)
    assert cluster.converged()
    assert all(node.core.may_vote for node in cluster.nodes.values())
    assert not any(progress.amnesiac for progress in cluster.core(3).progress.values())


def test_overtaken_heartbeat_reply_is_not_amnesia():
    """A reply that speaks of an older state arrives after newer acknowledgements."""
    cluster = led()
    slow = []
    cluster.drop = lambda m: isinstance(m, HeartbeatReply) and not slow.append(m)
    cluster.advance(2 * HEARTBEAT_MICROS)
    cluster.drop = lambda m: False
    cluster.propose(1, b"x")
    cluster.advance(1_000)
    for message in slow:
        cluster.step(message)
    assert not any(progress.amnesiac for progress in cluster.core(1).progress.values())


def test_amnesiac_replica_neither_votes_nor_campaigns():
    cluster = led()
    cluster.crash(2)
    cluster.restart(2, may_vote=False)
    cluster.crash(1)
    cluster.advance(3_000_000)
    assert cluster.leader() is None
    assert cluster.core(2).role is Role.FOLLOWER
    assert cluster.core(3).role is not Role.LEADER


def test_restarted_amnesiac_is_not_counted():
    cluster = led()
    cluster.crash(2)
    cluster.restart(2, may_vote=False)
    cluster.advance(200_000)
    cluster.isolate(3)
    index = cluster.propose(1, b"x")
    cluster.advance(100_000)
    assert cluster.core(2).last_index == index
    assert cluster.core(1).commit_index < index
