"""Commands about groups and their replicas.

A group is made in three steps, so that an empty directory never votes: ids are allocated here; each
node reports its synced directory; the last report activates the group. A report counts only if it
names a replica of the group and comes from the incarnation that was given it: another directory
under the same node name proves nothing about this one.

A replica that was lost stays so, and its id with it. In an active group another one takes its
place, on the same node, under a new id and with an empty directory: it joins as a learner, and the
lost one leaves when the group's leader has voted the new one in. Until then both are listed, and a
group may lose the new one too. A group that loses replicas before it is active begins without them
if most have reported: the nodes have made their directories with the first list of members, which
is why that list does not change before.

Group 0 tells the others what to make, and cannot tell a node that has lost its own part of it. So
its new replicas count as created from the start; such a node makes its directory when it is adopted,
and never runs without it.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from raftq.errors import Busy, ClusterMismatch, InvalidArgument
from raftq.ids import METADATA_GROUP, GroupId, NodeIncarnation, ReplicaId
from raftq.metadata.commands import (
    MAX_GROUPS,
    CreateGroup,
    EnsureGroups,
    ReplicaCreated,
    ReplicaLost,
    ReplicasLeft,
)
from raftq.metadata.records import Group, Replica
from raftq.metadata.replies import GroupReply, GroupsReply
from raftq.metadata.tables import Tables
from raftq.placement import Candidate, choose_nodes


def create(tables: Tables, command: CreateGroup) -> GroupReply:
    """Raises: InvalidArgument, Busy."""
    known = tables.groups.get(command.group) if command.group is not None else None
    if known is not None:
        if tuple(replica.node for replica in known.replicas) != command.nodes:
            raise InvalidArgument(f"group {known.group} exists, on other nodes")
        return reply(tables, known)
    if command.group is not None and command.group != tables.next_group:
        raise InvalidArgument(f"the next group is {tables.next_group}, not {command.group}")
    if len(dict.fromkeys(command.nodes)) != len(command.nodes):
        raise InvalidArgument("a group has at most one replica on a node")
    for name in command.nodes:
        if name not in tables.nodes:
            raise InvalidArgument(f"no node {name!r} is known")
    _check_room(tables, 1)
    return reply(tables, _allocate(tables, command.nodes))


def ensure(tables: Tables, command: EnsureGroups) -> GroupsReply:
    """Raises: Busy."""
    missing = command.count - (len(tables.groups) - 1)
    _check_room(tables, missing)
    founders = [node for node in tables.nodes.values() if node.is_founder]
    hosted = dict.fromkeys(tables.nodes, 0)
    for group in tables.groups.values():
        for replica in group.replicas:
            hosted[replica.node] += 1
    for _ in range(missing):
        candidates = [
            Candidate(node.name, node.labels.get("rack", ""), hosted[node.name])
            for node in founders
        ]
        count = min(command.replicas, len(candidates))
        chosen = choose_nodes(tables.next_group, candidates, count)
        _allocate(tables, chosen)
        for name in chosen:
            hosted[name] += 1
    groups = tuple(sorted(group for group in tables.groups if group != METADATA_GROUP))
    return GroupsReply(groups, tables.version)


def created(tables: Tables, command: ReplicaCreated) -> GroupReply:
    """Raises: InvalidArgument, ClusterMismatch."""
    group, replica = _reported(tables, command)
    if replica.state == "lost":
        raise InvalidArgument(
            f"replica {replica.replica} of group {group.group} was lost and cannot come back"
        )
    if replica.state == "pending":
        group = put(tables, _with(group, replace(replica, state="created")))
    return reply(tables, group)


def lost(tables: Tables, command: ReplicaLost) -> GroupReply:
    """Raises: InvalidArgument, ClusterMismatch."""
    group, replica = _reported(tables, command)
    if replica.state == "pending":
        raise InvalidArgument(
            f"replica {replica.replica} of group {group.group} was not reported yet: make it"
        )
    if replica.state == "created":
        group = put(tables, _with(group, replace(replica, state="lost")))
    return reply(tables, group)


def left(tables: Tables, command: ReplicasLeft) -> GroupReply:
    """Raises: InvalidArgument."""
    group = tables.groups.get(command.group)
    if group is None:
        raise InvalidArgument(f"there is no group {command.group}")
    if present := [r.replica for r in group.replicas if r.replica in command.replicas]:
        raise InvalidArgument(f"replicas {present} of group {group.group} shall stay")
    leaving = tuple(r for r in group.leaving if r.replica not in command.replicas)
    if leaving != group.leaving:
        group = replace(group, leaving=leaving)
        tables.put_group(group)
    return reply(tables, group)


def lose_replicas_of(tables: Tables, name: str, incarnation: NodeIncarnation) -> None:
    """The node's data directory is gone, and all replicas in it."""
    for number in sorted(tables.groups):
        group = tables.groups[number]
        replica = group.replica_on(name)
        if replica is not None and replica.incarnation == incarnation and replica.state != "lost":
            put(tables, _with(group, replace(replica, state="lost")))


def _check_room(tables: Tables, more: int) -> None:
    if len(tables.groups) - 1 + more > MAX_GROUPS:
        raise Busy(f"a cluster has at most {MAX_GROUPS} groups")


def _allocate(tables: Tables, nodes: Sequence[str]) -> Group:
    replicas = tuple(
        Replica(
            ReplicaId(tables.next_replica + position),
            name,
            tables.nodes[name].incarnation,
            "pending",
        )
        for position, name in enumerate(nodes)
    )
    group = Group(tables.next_group, "creating", replicas)
    tables.next_replica = ReplicaId(tables.next_replica + len(replicas))
    tables.next_group = GroupId(tables.next_group + 1)
    tables.put_group(group)
    return group


def put(tables: Tables, group: Group) -> Group:
    """Store the group, after what follows by itself from how its replicas are."""
    states = [replica.state for replica in group.replicas]
    is_whole = "pending" not in states and 2 * states.count("created") > len(states)
    if is_whole and group.state == "creating":
        group = replace(group, state="active")
    if group.state == "active":
        group = _with_successors(tables, group)
    tables.put_group(group)
    return group


def _with_successors(tables: Tables, group: Group) -> Group:
    """The group with a new replica in the place of each that is lost."""
    replicas = []
    for replica in group.replicas:
        if replica.state == "lost":
            replicas.append(
                Replica(
                    tables.next_replica,
                    replica.node,
                    tables.nodes[replica.node].incarnation,
                    "created" if group.group == METADATA_GROUP else "pending",
                )
            )
            tables.next_replica = ReplicaId(tables.next_replica + 1)
        else:
            replicas.append(replica)
    gone = tuple(replica for replica in group.replicas if replica.state == "lost")
    return replace(group, replicas=tuple(replicas), leaving=group.leaving + gone)


def _reported(tables: Tables, command: ReplicaCreated | ReplicaLost) -> tuple[Group, Replica]:
    group = tables.groups.get(command.group)
    replica = None
    if group is not None:
        known = (*group.replicas, *group.leaving)
        replica = next((r for r in known if r.replica == command.replica), None)
    if group is None or replica is None:
        raise InvalidArgument(f"group {command.group} has no replica {command.replica}")
    if replica.incarnation != command.incarnation:
        raise ClusterMismatch(
            f"replica {replica.replica} of group {group.group} belongs to another data directory "
            f"of node {replica.node!r}"
        )
    return group, replica


def _with(group: Group, changed: Replica) -> Group:
    replicas = tuple(changed if r.replica == changed.replica else r for r in group.replicas)
    return replace(group, replicas=replicas)


def reply(tables: Tables, group: Group) -> GroupReply:
    return GroupReply(group.group, group.state, tables.version)
