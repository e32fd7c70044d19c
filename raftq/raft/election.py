"""Time without a leader: when to campaign, and whom to vote for.

    FOLLOWER --- timeout, or link lost + delay ---> PRE_CANDIDATE --- quorum would ---> CANDIDATE
        ^                                                |                                  |
        +------ a frame of the leader, a refusal, or a higher term -------------------------+---> leader

Rules:

1. A pre-vote changes no durable state and waits for no disk. It is granted only by a voter that had
   no contact to a leader of its term for the smallest election timeout, or lost that leader's link.
   A leader asked for one answers with a heartbeat too, which ends the campaign.
2. A real vote is judged by term, vote and log alone, and leaves when it is durable. The candidate's
   requests and its vote for itself wait for the same sync.
3. Nobody stands for a new term while its own term and vote are not durable, nor says that it would
   vote: a disk that stalls would let terms run, one per timeout, and depose whoever can lead. A
   candidate whose disk stalls waits in its term; its requests have not left, so it lost nothing.
4. Votes are counted by voter, and only those of voters of the candidate's configuration. Whoever is
   asked answers, even a learner: it may have become a voter by an entry that it does not have yet,
   and without its vote the group would stand still for ever.
5. Fast failover: the loss of a link over which the present leader was heard makes a voter campaign
   after 5 ms + 30 ms * rank + 0..10 ms. The rank is its place among the other voters, rotated by
   the term, so that two do not ask at the same time. Granting somebody else's pre-vote puts it off
   by 50 ms. Defeat is followed by another such delay, for one smallest election timeout in all;
   after that ordinary timeouts hold, so a voter that alone lost the leader does not ask for ever.
"""

from raftq.ids import NOBODY, Micros, ReplicaId, Term
from raftq.limits import (
    ELECTION_MICROS_MIN,
    FAST_ELECTION_BASE_MICROS,
    FAST_ELECTION_JITTER_MICROS,
    FAST_ELECTION_RANK_MICROS,
    PREVOTE_GRANTED_PAUSE_MICROS,
)
from raftq.raft import replication
from raftq.raft.messages import Message, TimeoutNow, VoteReply, VoteRequest
from raftq.raft.replica import LONG_AGO, NEVER, Replica, Role


def start(voter: Replica) -> None:
    """From recovery. The only voter of a group has nobody to wait for."""
    voter.draw_election_timeout()
    if voter.may_campaign and voter.electorate.has_quorum({voter.replica: True}):
        voter.election_deadline = voter.now


def tick(voter: Replica) -> None:
    now = voter.now
    if now >= voter.fast_deadline:
        pre_campaign(voter)
    elif now >= voter.election_deadline:
        voter.fast_until = LONG_AGO
        pre_campaign(voter)


def other_voters(voter: Replica) -> list[ReplicaId]:
    membership = voter.electorate
    return [peer for peer in voter.membership_others if membership.is_voter(peer)]


def pre_campaign(voter: Replica) -> None:
    """Ask whether an election could be won."""
    voter.fast_deadline = NEVER
    voter.draw_election_timeout()
    if voter.role is Role.CANDIDATE and not _is_durable(voter):
        return
    voter.leader = NOBODY
    if not voter.may_campaign:
        return
    if voter.faults.no_pre_vote:
        campaign(voter)
        return
    voter.role = Role.PRE_CANDIDATE
    voter.votes = {voter.replica: True}
    _request_votes(voter, Term(voter.term + 1), pre=True)
    if voter.electorate.has_quorum(voter.votes):
        campaign(voter)


def campaign(voter: Replica) -> None:
    """Stand for a new term. One's own vote counts when it is durable, like everybody's.

    Does nothing as long as the present term and vote are not durable.
    """
    if not _is_durable(voter):
        return
    fast_until = voter.fast_until
    voter.become_follower(Term(voter.term + 1), NOBODY)
    voter.fast_until = fast_until
    voter.draw_election_timeout()
    voter.role = Role.CANDIDATE
    voter.vote = voter.replica
    voter.votes = {}
    _request_votes(voter, voter.term, pre=False)
    if voter.faults.vote_unsynced:
        _count(voter, voter.replica, granted=True)


def _is_durable(voter: Replica) -> bool:
    """Whether the disk has kept up with the term and the vote."""
    persistence = voter.persistence
    return voter.faults.vote_unsynced or (
        persistence.term == voter.term and persistence.vote == voter.vote
    )


def _request_votes(voter: Replica, term: Term, *, pre: bool) -> None:
    log = voter.log
    now = pre or voter.faults.vote_unsynced
    out = voter.send_now if now else voter.send_after
    for peer in other_voters(voter):
        out.append(
            VoteRequest(
                voter.replica,
                peer,
                term,
                log.last_index,
                log.last_term,
                pre,
                voter.fast_until > voter.now,
            )
        )


def on_vote_request(voter: Replica, message: VoteRequest) -> None:
    if message.pre:
        _on_pre_vote_request(voter, message)
        return
    if message.term > voter.term:
        voter.become_follower(message.term, NOBODY)
    granted = (
        message.term == voter.term
        and voter.vote in {NOBODY, message.sender}
        and _may_grant(voter, message)
    )
    if granted:
        voter.vote = message.sender
        voter.election_deadline = Micros(voter.now + voter.election_timeout)
        voter.fast_deadline = NEVER
        voter.fast_until = LONG_AGO
    unsynced = voter.faults.vote_unsynced
    out = voter.send_now if unsynced or message.term < voter.term else voter.send_after
    _reply(voter, message, voter.term, granted=granted, out=out)


def _on_pre_vote_request(voter: Replica, message: VoteRequest) -> None:
    term = message.term
    granted = (
        voter.role is not Role.LEADER
        and (term > voter.term or (term == voter.term and voter.vote in {NOBODY, message.sender}))
        and voter.now - voter.contact >= ELECTION_MICROS_MIN
        and _is_durable(voter)
        and _may_grant(voter, message)
    )
    if granted:
        later = Micros(voter.now + PREVOTE_GRANTED_PAUSE_MICROS)
        voter.fast_deadline = max(voter.fast_deadline, later)
        voter.election_deadline = max(voter.election_deadline, later)
    elif voter.role is Role.LEADER:
        progress = voter.progress.get(message.sender)
        if progress is not None:
            replication.send_heartbeat(voter, progress)
    _reply(voter, message, term if granted else voter.term, granted=granted, out=voter.send_now)


def _may_grant(voter: Replica, message: VoteRequest) -> bool:
    log = voter.log
    return voter.may_vote and (message.last_term, message.last_index) >= (
        log.last_term,
        log.last_index,
    )


def _reply(
    voter: Replica, message: VoteRequest, term: Term, *, granted: bool, out: list[Message]
) -> None:
    out.append(VoteReply(voter.replica, message.sender, term, granted, message.pre, voter.wall))


def on_vote_reply(voter: Replica, message: VoteReply) -> None:
    voter.clocks.hear_delayed(message.sender, message.wall - voter.now)
    if message.term > voter.term and not (message.pre and message.granted):
        voter.become_follower(message.term, NOBODY)
        _try_again(voter)
        return
    if message.pre:
        counts = voter.role is Role.PRE_CANDIDATE and (
            message.term == voter.term + 1 if message.granted else message.term <= voter.term
        )
    else:
        counts = voter.role is Role.CANDIDATE and message.term == voter.term
    if counts:
        _count(voter, message.sender, granted=message.granted)


def persisted(voter: Replica) -> None:
    """Some write completed: it may be what a candidacy, begun or wanted, was waiting for."""
    if voter.role is Role.FOLLOWER or not _is_durable(voter):
        return
    if voter.role is Role.CANDIDATE and not voter.votes.get(voter.replica):
        # The requests leave only now, and the answers need time.
        voter.draw_election_timeout()
        _count(voter, voter.replica, granted=True)
    elif voter.role is Role.PRE_CANDIDATE and voter.electorate.has_quorum(voter.votes):
        campaign(voter)


def _count(voter: Replica, sender: ReplicaId, *, granted: bool) -> None:
    votes = voter.votes
    # A late refusal of an earlier question does not take a vote back.
    votes[sender] = granted or votes.get(sender, False)
    membership = voter.electorate
    if membership.has_quorum(votes):
        if voter.role is Role.PRE_CANDIDATE:
            campaign(voter)
        else:
            replication.lead(voter)
        return
    expected = dict(votes)
    if voter.lost_leader and voter.fast_until > voter.now:
        expected.setdefault(voter.lost_leader, False)
    if membership.is_lost(expected):
        voter.become_follower(voter.term, NOBODY)
        _try_again(voter)


def _try_again(voter: Replica) -> None:
    """After a defeat in fast failover."""
    if voter.fast_until > voter.now and voter.may_campaign:
        voter.fast_deadline = Micros(voter.now + _fast_delay(voter))


def _fast_delay(voter: Replica) -> int:
    runners = [voter.replica, *other_voters(voter)]
    runners = sorted(peer for peer in runners if peer != voter.lost_leader)
    rank = (runners.index(voter.replica) - voter.term) % len(runners)
    return (
        FAST_ELECTION_BASE_MICROS
        + FAST_ELECTION_RANK_MICROS * rank
        + voter.draw(FAST_ELECTION_JITTER_MICROS)
    )


def leader_link_lost(voter: Replica, replica: ReplicaId) -> None:
    """Fires once per contact: it takes a frame of the leader to arm it again."""
    if voter.role is not Role.FOLLOWER or voter.leader != replica or not voter.link_carried:
        return
    voter.link_carried = False
    voter.contact = LONG_AGO
    voter.lost_leader = replica
    if voter.may_campaign:
        voter.fast_until = Micros(voter.now + ELECTION_MICROS_MIN)
        voter.fast_deadline = Micros(voter.now + _fast_delay(voter))


def leader_link_up(voter: Replica, replica: ReplicaId) -> None:
    """The old leader can be reached again, so its vote is worth waiting for."""
    if voter.lost_leader == replica:
        voter.lost_leader = NOBODY


def on_timeout_now(voter: Replica, message: TimeoutNow) -> None:
    """The leader hands over; it has seen to it that this log is complete."""
    if message.sender == voter.leader and message.term == voter.term and voter.may_campaign:
        campaign(voter)
