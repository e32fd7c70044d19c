"""Membership changes: what may follow what, and when.

A change is wanted as the configuration to arrive at, voters and learners; the way there is the
core's business:

    learners, and at most one voter, differ    one entry, (voters', learners')
    more voters differ                         (voters', learners', outgoing = voters), and, by the
                                               leader itself once that is committed, the new one

Rules:

1. A configuration is in force from the moment its entry is in the log, and no longer when that entry
   is truncated.
2. One change at a time: the next only after the one before is committed, and none before the
   leader's no-op is: until then a change of an earlier term may be half way, and two changes that
   do not know each other have majorities that do not meet.
3. Who becomes a voter has been a learner and has caught up: what the log held an election timeout
   ago is durable there, and it says itself that nothing of its log and machine is lost. A newcomer
   that counts with an empty log would hold up every commit; one with holes could not lead.
4. No change is begun to voters of whom no quorum is heard: the group would stand still at once.
5. Replica ids ascend and are never reused. A replica that came back empty under its old id would be
   believed to hold what it acknowledged.
"""

from enum import Enum

from raftq.ids import NOBODY, Index
from raftq.limits import ELECTION_MICROS_MIN
from raftq.raft import commit
from raftq.raft.membership import Membership, after
from raftq.raft.progress import Progress
from raftq.raft.replica import Replica
from raftq.raft.replication import hears_quorum_of


class Reason(Enum):
    """Why a change is refused."""

    NO_OP_PENDING = "this leader has not committed anything in its term yet"
    IN_PROGRESS = "another membership change is not finished"
    HANDING_OVER = "leadership is being handed over"
    NOT_CAUGHT_UP = "a voter to be has not caught up"
    NO_QUORUM = "too few of the voters to be are heard"
    ID_USED = "replica ids ascend and are never reused"
    NOT_A_LEARNER = "a voter to be is no learner yet"
    INVALID = "not a configuration"


_FOR_NOW = frozenset(
    {
        Reason.NO_OP_PENDING,
        Reason.IN_PROGRESS,
        Reason.HANDING_OVER,
        Reason.NOT_CAUGHT_UP,
        Reason.NO_QUORUM,
    }
)


class ChangeRefused(Exception):
    """The change was not begun; nothing happened."""

    def __init__(self, reason: Reason, details: str) -> None:
        super().__init__(f"{reason.value}: {details}" if details else reason.value)
        self.reason = reason

    @property
    def may_succeed_later(self) -> bool:
        """Whether the same change may be accepted later."""
        return self.reason in _FOR_NOW


def propose(leader: Replica, wanted: Membership) -> Index:
    """Append the first step to the configuration wanted.

    Raises: ChangeRefused.
    """
    _check_time(leader)
    following = first_step(leader.log.membership, wanted)
    _check_voters(leader, following)
    return commit.append_membership(leader, following, commit.log_time(leader))


def _check_time(leader: Replica) -> None:
    """Whether any change may begin now.

    Raises: ChangeRefused.
    """
    log, faults = leader.log, leader.faults
    if leader.transfer_to != NOBODY:
        raise ChangeRefused(Reason.HANDING_OVER, f"to replica {leader.transfer_to}")
    if leader.commit_index < leader.term_start and not faults.change_before_noop:
        raise ChangeRefused(Reason.NO_OP_PENDING, f"term {leader.term}")
    pending = log.membership_index > leader.commit_index and not (
        faults.change_while_pending
        or (faults.change_before_noop and log.membership_index < leader.term_start)
    )
    if pending or log.membership.outgoing or not log.membership.is_voter(leader.replica):
        raise ChangeRefused(Reason.IN_PROGRESS, f"at index {log.membership_index}")


def first_step(present: Membership, wanted: Membership) -> Membership:
    """The configuration that may come right after `present` on the way to the one wanted.

    Raises: ChangeRefused.
    """
    voters, learners, outgoing, _ = wanted
    for ids in (voters, learners, outgoing):
        if list(ids) != sorted(set(ids)):
            raise ChangeRefused(Reason.INVALID, "replica ids must be sorted and distinct")
    if not voters:
        raise ChangeRefused(Reason.INVALID, "a group needs a voter")
    if set(learners) & set(voters):
        raise ChangeRefused(Reason.INVALID, "a learner is not a voter")
    if outgoing and outgoing != present.voters:
        raise ChangeRefused(Reason.INVALID, "the outgoing voters are the present ones")
    members = present.members()
    newest = max(*members, present.retired)
    if used := [new for new in (*voters, *learners) if new not in members and new <= newest]:
        raise ChangeRefused(Reason.ID_USED, f"{used}, and {newest} is taken")
    if strangers := [voter for voter in voters if voter not in members]:
        raise ChangeRefused(Reason.NOT_A_LEARNER, str(strangers))
    if not outgoing and len(set(voters) ^ set(present.voters)) <= 1:
        return after(present, voters, learners)
    if set(learners) & set(present.voters):
        raise ChangeRefused(Reason.INVALID, "only one voter at a time can become a learner")
    return after(present, voters, learners, present.voters)


def _check_voters(leader: Replica, following: Membership) -> None:
    """Whether the new voters can carry the group from the first moment on.

    Raises: ChangeRefused.
    """
    behind = [
        voter
        for voter in following.voters
        if voter not in leader.log.membership.voters
        and not has_caught_up(leader, leader.progress[voter])
    ]
    if behind:
        raise ChangeRefused(Reason.NOT_CAUGHT_UP, str(behind))
    if not hears_quorum_of(leader, following):
        raise ChangeRefused(Reason.NO_QUORUM, str(following.voters))


def has_caught_up(leader: Replica, progress: Progress) -> bool:
    """Whether a member lags by no more than an election timeout, and lacks nothing below."""
    return (
        not progress.amnesiac
        and not progress.damaged
        and leader.now - progress.heard <= ELECTION_MICROS_MIN
        and progress.match >= leader.recent_ends[0]
    )
