"""Who counts: the voters and learners of a group, and what a quorum of them is.

A configuration has `voters` and `learners`; during a joint change also `outgoing` voters, and then
a quorum is a majority of both sets. Nothing else in the core counts anything: elections, commits,
reads, log time and the leader's check of its own office all ask `committed` or what rests on it,
through `Replica.electorate`.

Replica ids ascend and are never reused, so one number remembers all that are gone: `retired`, the
highest of them. Who is not above it and above all members cannot join.

The bytes, as they stand in membership entries, snapshots and the prepared bootstrap list:

    u8 version = 1 | u8 gone | u16 voters | u16 learners | u16 outgoing | u64 ids in that order
    | u64 retired, if gone = 1
"""

from collections.abc import Mapping
from struct import Struct
from typing import NamedTuple

from raftq.errors import Corrupted
from raftq.ids import NOBODY, ReplicaId

_HEADER = Struct("<BBHHH")


class Membership(NamedTuple):
    """Replica ids, each tuple sorted ascending; the sets are disjoint but for outgoing/voters.

    Without voters it is that of a replica which has not heard yet of the group it joins.
    """

    voters: tuple[ReplicaId, ...]
    learners: tuple[ReplicaId, ...] = ()
    outgoing: tuple[ReplicaId, ...] = ()
    retired: ReplicaId = NOBODY
    """The highest id that was a member's once and is none's now."""

    def members(self) -> tuple[ReplicaId, ...]:
        """Everybody who gets appends, sorted, each once."""
        return tuple(sorted({*self.voters, *self.learners, *self.outgoing}))

    def is_voter(self, replica: ReplicaId) -> bool:
        return replica in self.voters or replica in self.outgoing

    def has_removed(self, replica: ReplicaId) -> bool:
        """Whether the replica is none of the members and can never be."""
        return replica <= self.retired and replica not in self.members()

    def committed(self, match: Mapping[ReplicaId, int]) -> int:
        """The highest value that a quorum has reached; an absent replica has reached 0."""
        highest = quorum_value(self.voters, match)
        return min(highest, quorum_value(self.outgoing, match)) if self.outgoing else highest

    def has_quorum(self, granted: Mapping[ReplicaId, bool]) -> bool:
        """Whether those mapped to True are a quorum."""
        return self.committed({replica: int(yes) for replica, yes in granted.items()}) >= 1

    def is_lost(self, granted: Mapping[ReplicaId, bool]) -> bool:
        """Whether those mapped to False make a quorum impossible."""
        return self.committed({r: int(granted.get(r, True)) for r in self.members()}) < 1


def after(
    present: Membership,
    voters: tuple[ReplicaId, ...],
    learners: tuple[ReplicaId, ...],
    outgoing: tuple[ReplicaId, ...] = (),
) -> Membership:
    """A configuration that follows `present`, and remembers who is gone."""
    following = Membership(voters, learners, outgoing)
    gone = set(present.members()) - set(following.members())
    return following._replace(retired=max(gone | {present.retired}))


def quorum_value(voters: tuple[ReplicaId, ...], values: Mapping[ReplicaId, int]) -> int:
    """The highest value that a majority of `voters` has reached (0 where nobody reported)."""
    ordered = [values.get(voter, 0) for voter in voters]
    ordered.sort()
    return ordered[(len(ordered) - 1) // 2] if ordered else 0


def encode(membership: Membership) -> bytes:
    voters, learners, outgoing, retired = membership
    gone = (retired,) if retired else ()
    ids = (*voters, *learners, *outgoing, *gone)
    return _HEADER.pack(1, len(gone), len(voters), len(learners), len(outgoing)) + Struct(
        f"<{len(ids)}Q"
    ).pack(*ids)


def decode(data: bytes | memoryview) -> Membership:
    """The inverse of `encode`.

    Raises: Corrupted.
    """
    if len(data) < _HEADER.size:
        raise Corrupted("a membership needs 8 bytes")
    version, gone, voters, learners, outgoing = _HEADER.unpack_from(data)
    members = voters + learners + outgoing
    count = members + gone
    if version != 1 or gone > 1 or len(data) != _HEADER.size + 8 * count:
        raise Corrupted(f"membership of version {version} with {len(data)} bytes")
    if members and not voters:
        raise Corrupted("a membership without voters has other members")
    ids = Struct(f"<{count}Q").unpack_from(data, _HEADER.size)
    return Membership(
        ids[:voters],
        ids[voters : voters + learners],
        ids[voters + learners : members],
        ids[members] if gone else NOBODY,
    )
