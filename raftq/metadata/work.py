"""What there is to do, read off the table: for a node, and for whoever leads a group.

Everything here is derived, asked for anew after every change, and stays in the list until it has
been reported. Doing it twice, or by two nodes, is harmless: replicas and partitions know what they
are, versions ascend, and a report that comes twice or late is no news.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from raftq.ids import METADATA_GROUP, GroupId, NodeIncarnation, Partition, QueueId, ReplicaId
from raftq.metadata.records import Group, Queue, Replica
from raftq.metadata.tables import Tables


class ReplicaWork(NamedTuple):
    """A replica on the node that asks. `nodes` says where all that may be members are."""

    group: GroupId
    replica: ReplicaId
    nodes: dict[ReplicaId, str]
    joins: bool
    """It joins a group that exists; else `nodes` is the group's first list of members."""


class NodeWork(NamedTuple):
    """A node's share of all groups but group 0, by group."""

    create: tuple[ReplicaWork, ...]
    """Make and sync the directory if it is not there, then report `ReplicaCreated`. Do not run.

    A copy may lag, most of all after a start: it may still tell to make what has been reported, run
    and lost since. So a node makes nothing before its copy has reached a read index of group 0 that
    was asked for after the node started; or it would vote with an empty directory.
    """
    keep: tuple[ReplicaWork, ...]
    """Reported, not active yet: nobody votes. If there is no directory, report `ReplicaLost`."""
    run: tuple[ReplicaWork, ...]
    """Active: open and run it. If there is no directory, report `ReplicaLost`; make none.

    The same if it must not vote any more, once the group is led without it.
    """


class Configure(NamedTuple):
    """Open the partition, or change it, under this version; then report `PartitionReady`."""

    queue: QueueId
    partition: Partition
    config: dict[str, Any]
    version: int


class Seal(NamedTuple):
    """Configure it under this version so that it refuses publishes. Once that is applied, report

    `PartitionReady` if the partition is empty (nothing ready, in flight, delayed or dead in any
    subscription), else `PartitionRefused`.
    """

    queue: QueueId
    partition: Partition
    config: dict[str, Any]
    version: int


class Drop(NamedTuple):
    """Drop the partition for ever; then report `PartitionDropped`.

    Refused because it is not empty (without `force` only): report `PartitionRefused` with this
    version, and try again later.
    """

    queue: QueueId
    partition: Partition
    version: int
    force: bool


PartitionWork = Configure | Seal | Drop


def for_node(tables: Tables, name: str, incarnation: NodeIncarnation) -> NodeWork:
    create: list[ReplicaWork] = []
    keep: list[ReplicaWork] = []
    run: list[ReplicaWork] = []
    for number in sorted(tables.groups):
        group = tables.groups[number]
        replica = group.replica_on(name)
        if number == METADATA_GROUP or replica is None or replica.incarnation != incarnation:
            continue
        work = ReplicaWork(number, replica.replica, group.nodes, joins=_is_active(group))
        if replica.state == "pending":
            create.append(work)
        elif replica.state == "created":
            (run if _is_active(group) else keep).append(work)
    return NodeWork(tuple(create), tuple(keep), tuple(run))


def _is_active(group: Group) -> bool:
    return group.state == "active"


class MemberWork(NamedTuple):
    """Whose members are to be changed: not empty as long as a replica is leaving.

    Vote `joining` in as soon as they have caught up, each with those of its node out that are
    leaving; report `ReplicasLeft` when that is committed. One that cannot join, because a higher id
    was in the group before it: report `ReplicaLost`, and it gets another.
    """

    joining: tuple[Replica, ...]
    leaving: tuple[Replica, ...]


def for_members(tables: Tables, number: GroupId) -> MemberWork:
    group = tables.groups.get(number)
    if group is None:
        return MemberWork((), ())
    nodes = [replica.node for replica in group.leaving]
    joining = [r for r in group.replicas if r.node in nodes and r.state == "created"]
    return MemberWork(tuple(joining), group.leaving)


def for_group(tables: Tables, group: GroupId) -> tuple[PartitionWork, ...]:
    return tuple(
        work
        for number in sorted(tables.unfinished)
        for work in _of_queue(tables.queues[number], group)
    )


def _of_queue(queue: Queue, group: GroupId) -> Iterator[PartitionWork]:
    for number, (host, reported) in enumerate(zip(queue.groups, queue.reported, strict=True)):
        if host != group or reported == queue.version:
            continue
        partition = Partition(number)
        if queue.state == "deleting":
            yield Drop(queue.queue, partition, queue.version, queue.force)
        elif queue.state == "sealing":
            yield Seal(queue.queue, partition, queue.config, queue.version)
        else:
            yield Configure(queue.queue, partition, queue.config, queue.version)
