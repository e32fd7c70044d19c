"""Stories of reads, hand-over and log time, and of groups that begin."""

from raft_harness import WALL, Cluster, roles
from raft_stories import deposed_with_tail, led

from raftq.ids import Index, ReplicaId, Term
from raftq.limits import ELECTION_MICROS_MAX, HEARTBEAT_MICROS
from raftq.raft import Membership, Role, election
from raftq.raft.messages import (
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
)


def test_read_waits_for_a_round_begun_after_it():
    cluster = led()
    rounds = []
    cluster.drop = lambda m: isinstance(m, HeartbeatReply) and not rounds.append(m)
    cluster.advance(HEARTBEAT_MICROS)
    cluster.drop = lambda m: False
    cluster.core(1).read_index("r")
    cluster.pump(cluster[1])
    for reply in rounds:
        cluster.step(reply)
    assert cluster[1].reads == {}, "replies to earlier rounds prove nothing"
    cluster.deliver()
    assert cluster[1].reads == {"r": cluster.core(1).commit_index}


def test_deposed_leader_answers_no_read():
    cluster = led()
    deposed_with_tail(cluster)
    assert cluster.core(1).role is Role.LEADER or cluster.core(1).leader == 0
    if cluster.core(1).role is Role.LEADER:
        cluster.core(1).read_index("stale")
        cluster.pump(cluster[1])
        cluster.deliver()
    cluster.heal()
    cluster.advance(500_000)
    assert "stale" not in cluster[1].reads


def test_read_of_a_new_leader_waits_for_its_no_op():
    cluster = led()
    cluster.propose(1, b"x")
    cluster.advance(100_000)
    cluster.drop = lambda m: isinstance(m, Append)
    cluster.crash(1)
    election.campaign(cluster.core(2))
    cluster.pump(cluster[2])
    cluster.advance(10_000)
    assert cluster.core(2).role is Role.LEADER
    cluster.core(2).read_index("r")
    cluster.advance(100_000)
    assert cluster[2].reads == {}
    cluster.drop = lambda m: False
    cluster.advance(200_000)
    assert cluster[2].reads["r"] >= cluster.core(2).term_start


def test_leadership_is_handed_over_without_a_gap():
    cluster = led()
    cluster.propose(1, b"x")
    cluster.core(1).transfer_leadership(ReplicaId(3))
    assert not cluster.core(1).can_propose()
    cluster.pump(cluster[1])
    cluster.advance(20_000)
    assert cluster.leader() == 3
    assert roles(cluster)[1] == "follower"


def test_hand_over_to_the_dead_is_given_up():
    cluster = led()
    cluster.crash(3)
    cluster.propose(1, b"x")
    cluster.core(1).transfer_leadership(ReplicaId(3))
    cluster.advance(ELECTION_MICROS_MAX + 2 * HEARTBEAT_MICROS)
    assert cluster.leader() == 1


def test_a_hand_over_is_given_up_however_often_it_is_wished():
    """Each wish names another successor; none can have everything, and none wins time."""
    cluster = led()
    cluster.propose(1, b"x")
    cluster.drop = lambda m: isinstance(m, AppendReply)
    core = cluster.core(1)
    begun = cluster.now
    assert core.transfer_leadership(ReplicaId(3))
    deadline = core.transfer_deadline
    assert deadline == begun + ELECTION_MICROS_MAX
    while cluster.now < deadline - HEARTBEAT_MICROS:
        assert core.transfer_leadership(ReplicaId(2 + cluster.now // 10_000 % 2))
        cluster.advance(10_000)
    assert core.transfer_deadline == deadline
    cluster.advance(2 * HEARTBEAT_MICROS)
    assert core.transfer_to == 0
    assert cluster.leader() == 1
    assert core.transfer_leadership(ReplicaId(3))
    assert core.transfer_deadline > deadline, "a wish after that is a new one"


def test_a_leader_takes_proposals_until_its_successor_has_what_was_committed():
    cluster = led()
    cluster.isolate(3)
    for number in range(5):
        cluster.propose(1, b"%d" % number)
    cluster.advance(20_000)
    core = cluster.core(1)
    assert core.transfer_leadership(ReplicaId(3))
    assert core.can_propose()
    cluster.propose(1, b"meanwhile")
    cluster.advance(20_000)
    assert core.can_propose()
    cluster.heal()
    was_closed = False
    for _ in range(200):
        was_closed |= core.role is Role.LEADER and not core.can_propose()
        cluster.advance(500)
    assert was_closed
    assert cluster.leader() == 3
    assert b"meanwhile" in cluster[3].bodies


def test_who_is_handed_over_to_is_expected_to_lead():
    cluster = led()
    core = cluster.core(1)
    assert core.transfer_leadership(ReplicaId(3))
    assert core.expected_leader == 1
    heard = []

    def drop(message):
        heard.append(core.expected_leader)
        return isinstance(message, Append | Heartbeat)

    cluster.drop = drop
    cluster.pump(cluster[1])
    cluster.advance(20_000)
    assert core.leader == 0
    assert core.expected_leader == 3
    cluster.isolate(1)
    core.become_follower(Term(core.term + 1), ReplicaId(0))
    assert core.expected_leader == 0, "an election later nobody can tell"


def offsets(*values):
    """A group led by 1 whose voters' wall clocks differ from true time by `values`."""
    cluster = Cluster(len(values))
    for replica, value in enumerate(values, 1):
        cluster[replica].wall_offset = value
        cluster.restart(replica)
    return cluster


YEARS = 10 * 365 * 24 * 3_600 * 1_000_000


def test_one_clock_far_ahead_and_one_silent_do_not_move_log_time():
    """{leader now, A ten years ahead, B never heard}: the time a quorum has passed is the leader's."""
    cluster = offsets(0, YEARS, 0)
    cluster.isolate(3)
    cluster.elect(1)
    cluster.advance(200_000)
    assert abs(cluster.core(1).log_time() - (WALL + cluster.now)) < 1_000_000


def test_two_bad_clocks_of_five_with_two_silent_do_not_move_log_time():
    cluster = offsets(0, YEARS, YEARS, 0, 0)
    cluster.isolate(4)
    cluster.elect(1)
    cluster.isolate(5)
    cluster.advance(200_000)
    assert abs(cluster.core(1).log_time() - (WALL + cluster.now)) < 1_000_000


def test_silent_voter_keeps_running():
    """Log time goes on while a voter that was heard once is silent."""
    cluster = offsets(0, 0, 0)
    cluster.elect(1)
    cluster.advance(100_000)
    cluster.isolate(3)
    cluster[2].wall_offset = -YEARS
    before = cluster.core(1).log_time()
    cluster.advance(10_000_000)
    passed = cluster.core(1).log_time() - before
    assert 9_900_000 <= passed <= 10_000_000


def test_log_time_never_falls():
    """Also across leaders: the no-op of a leader with an early clock has the last entry's time."""
    cluster = offsets(YEARS, YEARS, 0)
    cluster.elect(1)
    cluster.propose(1, b"late")
    cluster.advance(100_000)
    late = cluster.core(1).log.last_log_time
    for replica in (1, 2):
        cluster[replica].wall_offset = 0
    cluster.elect(3)
    assert cluster.core(3).log.last_log_time >= late
    assert cluster.core(3).log_time() == cluster.core(3).log.last_log_time


def test_no_op_is_stamped_from_the_votes():
    """A new leader has no heartbeat replies yet; votes carry clocks too."""
    cluster = offsets(0, 0, 0)
    cluster.elect(1)
    entry = cluster[1].log.entries(Index(1), Index(2), 1)[0]
    assert entry.log_time > WALL


def test_heartbeats_leave_together():
    """At multiples of the heartbeat interval, so that groups share a frame."""
    cluster = led()
    sent = []
    cluster.drop = lambda m: isinstance(m, Heartbeat) and bool(sent.append(cluster.now)) and False
    cluster.advance(500_000)
    assert sent
    assert all(time % HEARTBEAT_MICROS == 0 for time in sent)


def test_heartbeats_do_not_wait_for_the_disk():
    cluster = led()
    for node in cluster.nodes.values():
        node.auto_sync = False
    term = cluster.core(1).term
    cluster.propose(1, b"x")
    cluster.advance(10_000_000)
    assert cluster.core(1).role is Role.LEADER
    assert cluster.core(1).term == term


def test_no_proposal_before_the_no_op_is_applied():
    cluster = Cluster(3)
    cluster.drop = lambda m: isinstance(m, AppendReply)
    election.campaign(cluster.core(1))
    cluster.pump(cluster[1])
    cluster.advance(10_000)
    assert cluster.core(1).role is Role.LEADER
    assert not cluster.core(1).can_propose()
    cluster.drop = lambda m: False
    cluster.advance(200_000)
    assert cluster.core(1).can_propose()


def test_group_of_one_commits_after_its_own_sync():
    cluster = Cluster(1, auto_sync=False)
    cluster.tick()
    assert cluster.core(1).role is Role.CANDIDATE
    cluster.sync(1)
    assert cluster.core(1).role is Role.LEADER
    assert cluster.core(1).commit_index == 0
    cluster.sync(1)
    assert cluster.core(1).can_propose()
    cluster.core(1).read_index("r")
    cluster.pump(cluster[1])
    assert cluster[1].reads == {"r": 1}


def test_membership_after_restart_is_that_of_the_log():
    """A configuration in the log is in force before it is applied again."""
    cluster = led(3, learners=(4,))
    index = cluster.core(1).propose_membership(
        Membership(tuple(ReplicaId(i) for i in (1, 2, 3, 4)))
    )
    cluster.pump(cluster[1])
    cluster.advance(200_000)
    assert cluster.core(2).commit_index >= index
    cluster.crash(2)
    cluster.restart(2)
    assert cluster.core(2).membership.voters == (1, 2, 3, 4)
