"""Membership changes: what may follow what, and when.

    (voters, learners, -)  --learners only, or one voter more or less-->  (voters', learners', -)
    (voters, learners, -)  --joint-->  (voters', learners', outgoing = voters)
    (voters', learners', outgoing)  --by the leader itself, once committed-->  (voters', learners', -)

Rules:

1. A configuration is in force from the moment its entry is in the log.
2. One change at a time: the next only after the one before is committed, and none before the
   leader's no-op is (until then a change of an earlier term may be half way).
3. One step changes at most one voter, or goes through a joint configuration.
4. Who becomes a voter has been a learner, so that a newcomer with an empty log does not count.
"""

from raftq.errors import Busy, InvalidArgument
from raftq.ids import Index
from raftq.raft import commit
from raftq.raft.membership import Membership
from raftq.raft.replica import Replica


def propose(leader: Replica, membership: Membership) -> Index:
    """Append the change.

    Raises: InvalidArgument, Busy.
    """
    if leader.log.membership_index > leader.commit_index:
        raise Busy("another membership change is not committed yet")
    if leader.commit_index < leader.term_start:
        raise Busy("this leader has not committed anything in its term yet")
    refusal = why_not(leader.log.membership, membership)
    if refusal:
        raise InvalidArgument(refusal)
    return commit.append_membership(leader, membership, commit.log_time(leader))


def why_not(present: Membership, following: Membership) -> str:
    """Why `following` may not come right after `present`; empty if it may."""
    voters, learners, outgoing = following
    if not voters:
        return "a group needs a voter"
    for ids in following:
        if list(ids) != sorted(set(ids)):
            return "replica ids must be sorted and distinct"
    if set(learners) & {*voters, *outgoing}:
        return "a learner is not a voter"
    if present.outgoing:
        return "a joint configuration is left by the leader itself"
    strangers = [voter for voter in voters if voter not in present.members()]
    if strangers:
        return f"replicas {strangers} must be learners before they vote"
    if outgoing:
        return "" if outgoing == present.voters else "the outgoing voters are the present ones"
    if len(set(voters) ^ set(present.voters)) > 1:
        return "more than one voter changes; go through a joint configuration"
    return ""
