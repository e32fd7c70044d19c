"""A group that goes on although its majority is lost: what a person decided, offline, for one replica.

The decision stands in that replica's log already: it is the only voter, under an id that nobody had.
Here the table follows: the replica's node hosts it under the new id, and all others are lost, so that
each gets a successor which joins like any other; they take part when their nodes were replaced, or
are there and hear of it. What the lost ones hold counts for nothing from then on.

Rule: a group that has gone on without the decision is not overruled by it. That shows by a replica
that exists and was no member as far as the log of the recovered one goes. Group 0 needs no such proof:
that its log holds this command is one.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from raftq.errors import ClusterMismatch, InvalidArgument
from raftq.ids import METADATA_GROUP, ReplicaId
from raftq.metadata import groups
from raftq.metadata.commands import GroupRecovered
from raftq.metadata.records import Group, Replica
from raftq.metadata.replies import GroupReply
from raftq.metadata.tables import Tables


def gone_on(group: Group, former: Sequence[ReplicaId]) -> tuple[ReplicaId, ...]:
    """Replicas that prove that the group did not need the recovery."""
    if group.group == METADATA_GROUP:
        return ()
    return tuple(replica for replica in group.created if replica not in former)


def recovered(tables: Tables, command: GroupRecovered) -> GroupReply:
    """Raises: InvalidArgument, ClusterMismatch."""
    group = tables.groups.get(command.group)
    if group is None:
        raise InvalidArgument(f"there is no group {command.group}")
    node = tables.nodes.get(command.node)
    if node is None or node.incarnation != command.incarnation:
        raise ClusterMismatch(
            f"group {group.group} was recovered in another data directory than that of node "
            f"{command.node!r}"
        )
    own = group.replica_on(command.node)
    if own is None:
        raise InvalidArgument(f"group {group.group} has no replica on node {command.node!r}")
    if own.replica == command.replica:
        return groups.reply(tables, group)
    if others := gone_on(group, command.former):
        raise InvalidArgument(
            f"group {group.group} has gone on with replicas {list(others)}: it was not lost, or "
            "another replica of it was recovered; what was recovered here is void"
        )
    if command.replica <= max(group.nodes):
        raise InvalidArgument(f"replica {max(group.nodes)} of group {group.group} is newer")
    if any(command.replica in other.nodes for other in tables.groups.values()):
        raise InvalidArgument(f"replica {command.replica} is of another group")
    highest = max(command.replica, command.highest)
    tables.next_replica = max(tables.next_replica, ReplicaId(highest + 1))
    return groups.reply(tables, groups.put(tables, _alone(group, own, command)))


def _alone(group: Group, own: Replica, command: GroupRecovered) -> Group:
    """The group with the recovered replica, and with all others lost."""
    chosen = Replica(command.replica, command.node, command.incarnation, "created")
    replicas = tuple(
        chosen if replica is own else replace(replica, state="lost") for replica in group.replicas
    )
    former = replace(own, state="lost")
    return replace(group, state="active", replicas=replicas, leaving=(*group.leaving, former))
