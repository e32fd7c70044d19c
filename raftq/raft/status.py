"""What people and dashboards see of a replica."""

from typing import NamedTuple

from raftq.ids import Index, ReplicaId, Term
from raftq.raft.changes import has_caught_up
from raftq.raft.membership import Membership
from raftq.raft.replica import Replica, Role


class Follower(NamedTuple):
    """What a leader knows of one other replica, or of one that was a member a moment ago."""

    replica: ReplicaId
    match_index: Index
    next_index: Index
    stage: str
    amnesiac: bool
    damaged: bool
    """Something of its log or machine is lost there, or it has not said yet that nothing is."""
    silent: int
    """Microseconds since it was last heard."""
    caught_up: bool
    """Whether it could become a voter now, if it is a learner."""


class Status(NamedTuple):
    """Of one replica."""

    replica: ReplicaId
    role: Role
    term: Term
    leader: ReplicaId
    last_index: Index
    durable_index: Index
    commit_index: Index
    applied_index: Index
    membership: Membership
    membership_index: Index
    """Where the membership stands in the log; it is committed if the commit index is not below."""
    removed: bool
    may_vote: bool
    diverged: str | None
    damaged_index: Index
    corrupt_messages: int
    transfer_to: ReplicaId
    followers: tuple[Follower, ...]


def describe(replica: Replica) -> Status:
    """The state as it is now."""
    log = replica.log
    return Status(
        replica.replica,
        replica.role,
        replica.term,
        replica.leader,
        log.last_index,
        replica.persistence.index,
        replica.commit_index,
        replica.applied_index,
        log.membership,
        log.membership_index,
        replica.removed,
        replica.may_vote,
        replica.diverged,
        log.damaged,
        replica.corrupt_messages,
        replica.transfer_to,
        tuple(
            Follower(
                progress.replica,
                progress.match,
                progress.next,
                progress.stage.value,
                progress.amnesiac,
                progress.damaged,
                replica.now - progress.heard,
                has_caught_up(replica, progress),
            )
            for progress in replica.progress.values()
        ),
    )
