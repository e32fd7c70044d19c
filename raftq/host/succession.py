"""To whom a leader hands over, and when it does so by itself.

A leader whose disk stalls longer than an election takes hands over to one that keeps up; one whose
disk is full says so, and whoever knows the other nodes' disks (the server) finds one that has room.
Such a wish is uttered once in a while only: the next leader may be no better off.
"""

from collections.abc import Container
from typing import TYPE_CHECKING, Final

from raftq.ids import Micros, ReplicaId
from raftq.limits import ELECTION_MICROS_MAX, ELECTION_MICROS_MIN, SECOND
from raftq.observability.logs import logger
from raftq.raft import Raft, Role

if TYPE_CHECKING:
    from raftq.host.group import Group
    from raftq.host.observer import Observer

_log = logger("raftq.host")

FULL_AGAIN_MICROS: Final = 2 * SECOND
"""Nobody may have room: the others are asked again after so long."""


def successor(
    leader: Raft, *, turn: int = 0, among: Container[ReplicaId] | None = None
) -> ReplicaId | None:
    """Of the voters that were heard a moment ago and lost nothing, one that lacks nothing that is
    committed, or else the one that has most. `turn` chooses where several are as good: many groups
    spread by it.
    """
    voters = leader.membership.voters
    followers = [
        each
        for each in leader.status().followers
        if each.replica in voters
        and each.silent < ELECTION_MICROS_MIN
        and not (each.amnesiac or each.damaged)
        and (among is None or each.replica in among)
    ]
    complete = [each for each in followers if each.match_index >= leader.commit_index]
    if complete:
        return complete[turn % len(complete)].replica
    best = max(followers, key=lambda follower: follower.match_index, default=None)
    return best.replica if best is not None else None


class Succession:
    """One replica's."""

    def __init__(self, group: "Group", observer: "Observer") -> None:
        self._group = group
        self._observer = observer
        self._stalled_again_at = Micros(0)
        self._full_again_at = Micros(0)

    def hand_over(self, *, reachable: Container[str]) -> bool:
        """Begin to hand over to whoever on those nodes is fit. False if nobody is, or nothing is led."""
        group = self._group
        if group.raft.role is not Role.LEADER:
            return False
        among = {replica for replica, node in group.nodes.items() if node in reachable}
        best = successor(group.raft, turn=group.group, among=among)
        if best is None:
            return False
        group.transfer(group.nodes[best])
        return True

    def mind_the_disk(self, now: Micros) -> None:
        """Called by a leader in every turn."""
        group = self._group
        if group.log.is_full and now >= self._full_again_at:
            self._full_again_at = Micros(now + FULL_AGAIN_MICROS)
            self._observer.disk_full(group)
        if group.log.sync_age(now) < ELECTION_MICROS_MIN or now < self._stalled_again_at:
            return
        best = successor(group.raft, turn=group.group)
        if best in group.nodes:
            self._stalled_again_at = Micros(now + ELECTION_MICROS_MAX)
            _log.warning("disk stalls, handing over", group=group.group, to=best)
            group.transfer(group.nodes[best])
