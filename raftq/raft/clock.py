"""Log time: the only clock a replicated machine sees, made by the leader.

    log time = max(log time of the last entry,
                   the highest time that a quorum of all voters' clocks has passed)

A single clock that is wrong, early or late, therefore moves nothing. A voter's clock is kept as the
difference between its wall clock and this replica's monotonic clock, so that it goes on running
here while the voter is silent. A voter never heard of has passed nothing.

Replies that waited for a disk show a wall clock that is too old, never one that is too new: they
may raise the difference. Heartbeat replies do not wait; they may lower it too, and that is how a
clock that was set back is followed.
"""

from raftq.ids import Micros, ReplicaId
from raftq.raft.membership import Membership


class VoterClocks:
    """Every voter's wall clock as an offset to the own monotonic clock."""

    __slots__ = ("_membership", "_offset", "_offsets")

    def __init__(self) -> None:
        self._offsets: dict[ReplicaId, int] = {}
        self._membership: Membership | None = None
        """For which `_offset` holds; None when a clock has changed since."""
        self._offset: int | None = None

    def hear(self, replica: ReplicaId, offset: int) -> None:
        """From a message that was sent when it was made."""
        if self._offsets.get(replica) != offset:
            self._offsets[replica] = offset
            self._membership = None

    def hear_delayed(self, replica: ReplicaId, offset: int) -> None:
        """From a message that may have waited for a sync."""
        known = self._offsets.get(replica)
        if known is None or offset > known:
            self.hear(replica, offset)

    def passed(self, membership: Membership, now: Micros) -> Micros:
        """The highest time that a quorum of all voters' clocks has passed, 0 if there is none."""
        if self._membership is not membership:
            self._membership = membership
            self._offset = self._quorum_offset(membership)
        return Micros(0) if self._offset is None else Micros(now + self._offset)

    def _quorum_offset(self, membership: Membership) -> int | None:
        """The highest offset that a quorum of voters has; None if too few were heard."""
        # Offsets may be negative, and an absent voter counts as 0: so they are counted from the
        # lowest one, which gets 1.
        lowest = min(self._offsets.values(), default=0)
        ranks = {voter: offset - lowest + 1 for voter, offset in self._offsets.items()}
        highest = membership.committed(ranks)
        return highest - 1 + lowest if highest else None
