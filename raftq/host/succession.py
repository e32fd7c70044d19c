"""To whom a leader hands over that cannot go on as it should."""

from raftq.ids import ReplicaId
from raftq.limits import ELECTION_MICROS_MIN
from raftq.raft import Raft


def successor(leader: Raft) -> ReplicaId | None:
    """The voter that has most of the log, of those heard a moment ago that lost nothing of it."""
    voters = leader.membership.voters
    heard = [f for f in leader.status().followers if f.silent < ELECTION_MICROS_MIN]
    followers = [each for each in heard if each.replica in voters and not each.damaged]
    best = max(followers, key=lambda follower: follower.match_index, default=None)
    return best.replica if best is not None else None
