"""A leader's own log: what enters it, at what log time, and how far it is committed.

Rules:

1. Only entries of the leader's own term are committed by counting (`index >= term_start`); the
   no-op that begins the term makes sure that there soon is one.
2. The leader counts like everybody else: as far as its own disk has synced.
3. A joint configuration is left as soon as it is committed, by whoever leads then. A leader that is
   no voter of a committed configuration has retired.
4. Who is a member no more is sent the configuration that says so, and its commit, for a few seconds:
   a replica that knows that it is gone campaigns no more. It counts for nothing.
"""

from collections.abc import Sequence
from typing import Final

from raftq.ids import Index, Micros
from raftq.limits import ELECTION_MICROS_MAX
from raftq.raft import handover
from raftq.raft import membership as memberships
from raftq.raft.entry import MEMBERSHIP, Command, build
from raftq.raft.membership import Membership
from raftq.raft.progress import Progress
from raftq.raft.replica import Departure, Replica

DEPARTURE_MICROS_MAX: Final = 10 * ELECTION_MICROS_MAX
"""How long a leader goes on telling a former member; it may be dead."""


def log_time(leader: Replica) -> Micros:
    passed = leader.clocks.passed(leader.electorate, leader.now)
    last = leader.log.last_log_time
    return max(last, passed)


def append(leader: Replica, kind: int, commands: Sequence[Command], stamp: Micros) -> Index:
    """One new entry at the end of the leader's log."""
    log = leader.log
    assert stamp >= log.last_log_time
    index = Index(log.last_index + 1)
    log.append(
        build(
            previous_chain=log.last_chain,
            index=index,
            term=leader.term,
            kind=kind,
            log_time=stamp,
            commands=commands,
        )
    )
    if leader.faults.ack_before_fsync:
        leader.matches[leader.replica] = index
        advance_commit(leader)
    return index


def append_membership(leader: Replica, membership: Membership, stamp: Micros) -> Index:
    """In force from now on, for this leader; for the others when they have the entry."""
    command = Command(memberships.encode(membership))
    index = append(leader, MEMBERSHIP, (command,), stamp)
    join_members(leader, index)
    return index


def join_members(leader: Replica, following: Index) -> None:
    """Make progress and membership agree; who is new is sent entries from `following` on."""
    others = leader.membership_others
    until = Micros(leader.now + DEPARTURE_MICROS_MAX)
    for former in leader.progress:
        if former not in others and former not in leader.departing:
            leader.departing[former] = Departure(following, until)
    for member in others:
        if member not in leader.progress:
            leader.progress[member] = Progress(member, following, leader.now)


def advance_commit(leader: Replica) -> None:
    index = leader.electorate.committed(leader.matches)
    if index <= leader.commit_index or index < leader.term_start:
        return
    leader.commit_to(Index(index))
    membership = leader.log.membership
    if index < leader.log.membership_index:
        return
    if membership.outgoing:
        # The joint configuration is committed: leave it for the new one.
        following = memberships.after(membership, membership.voters, membership.learners)
        append_membership(leader, following, log_time(leader))
    elif not membership.is_voter(leader.replica):
        handover.retire(leader)
