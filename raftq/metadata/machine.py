"""Group 0's machine: dispatches commands to the table, and answers any node's local reads.

Every node has a copy, so the questions here are asked of the local one: they may be answered with a
slightly older state, and nothing unsafe may follow from that.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from xxhash import xxh3_128

from raftq.errors import RaftqError
from raftq.ids import (
    ClusterId,
    GroupId,
    Index,
    Micros,
    NodeIncarnation,
    Partition,
    QueueId,
    ReplicaId,
)
from raftq.machine import Admitted, Applied, Buffer, Meta, Verdict
from raftq.metadata import commands, groups, nodes, queues, recoveries, work
from raftq.metadata.records import Group, Node, Queue
from raftq.metadata.replies import Changed
from raftq.metadata.tables import Tables

_HANDLERS: Final[dict[type[Any], Callable[[Tables, Any], object]]] = {
    commands.RegisterNode: nodes.register,
    commands.CreateGroup: groups.create,
    commands.EnsureGroups: groups.ensure,
    commands.ReplicaCreated: groups.created,
    commands.ReplicaLost: groups.lost,
    commands.ReplaceNode: nodes.replace_node,
    commands.ReplicasLeft: groups.left,
    commands.GroupRecovered: recoveries.recovered,
    commands.CreateQueue: queues.create,
    commands.UpdateQueue: queues.update,
    commands.DeleteQueue: queues.delete,
    commands.PartitionReady: queues.ready,
    commands.PartitionRefused: queues.refused,
    commands.PartitionDropped: queues.dropped,
}


class MetadataAdmission:
    """Admits what can be decoded: nothing is stamped, so apply may refuse as it likes."""

    def admit(self, header: bytes, body: Buffer, index: Index, log_time: Micros) -> Verdict:  # noqa: ARG002 (the contract of machines)
        try:
            commands.decode(header, body)
        except RaftqError as error:
            return error
        return Admitted(header)

    def applied(self, index: Index) -> None:
        """There is no overlay."""


class MetadataMachine:
    """See the package's docstring. `founders` are the members that bootstrap agreed on."""

    def __init__(self, cluster: ClusterId, founders: Sequence[tuple[str, NodeIncarnation]]) -> None:
        self._tables = Tables(cluster, founders)
        self._digest: bytes | None = None

    # --- The contract of machines ---------------------------------------------------------------

    def apply(self, meta: Meta, header: bytes, body: Buffer) -> Applied:  # noqa: ARG002 (the contract of machines)
        tables = self._tables
        before = tables.version
        try:
            command = commands.decode(header, body)
            reply = _HANDLERS[type(command)](tables, command)
        except RaftqError as error:
            assert tables.version == before, "a refused command has changed the table"
            # The reply outlives this call; what it was doing then must not live as long.
            return Applied(error.with_traceback(None))
        if tables.version == before:
            return Applied(reply)
        self._digest = None
        return Applied(reply, (Changed(tables.version),))

    def admission(self) -> MetadataAdmission:
        return MetadataAdmission()

    def next_deadline(self) -> Micros | None:
        return None

    def tick_command(self) -> bytes:
        raise AssertionError("nothing here is ever due")

    def leader_changed(self, meta: Meta, gap: Micros) -> None:
        """Nothing here depends on who leads, or on time."""

    def snapshot(self) -> Iterator[bytes]:
        return self._tables.sections()

    def restore(self, slices: Iterator[bytes]) -> None:
        """Raises: Corrupted, ClusterMismatch; then nothing has changed."""
        self._tables.restore(slices)
        self._digest = None

    def digest(self) -> bytes:
        if self._digest is None:
            hasher = xxh3_128()
            for section in self._tables.sections():
                hasher.update(section)
            self._digest = hasher.digest()
        return self._digest

    # --- Questions ------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Counts the changes of the table."""
        return self._tables.version

    def nodes(self) -> tuple[Node, ...]:
        """All nodes, by name."""
        return tuple(self._tables.nodes[name] for name in sorted(self._tables.nodes))

    def node(self, name: str) -> Node | None:
        return self._tables.nodes.get(name)

    def groups(self) -> tuple[Group, ...]:
        """All groups by number, group 0 first."""
        return tuple(self._tables.groups[group] for group in sorted(self._tables.groups))

    def group(self, group: GroupId) -> Group | None:
        return self._tables.groups.get(group)

    def nodes_of(self, group: GroupId) -> tuple[str, ...]:
        """The nodes that host the group; none if it is not known."""
        known = self._tables.groups.get(group)
        return tuple(replica.node for replica in known.replicas) if known is not None else ()

    def queues(self) -> tuple[Queue, ...]:
        """All queues by id, also those that are being made or deleted."""
        return tuple(self._tables.queues[queue] for queue in sorted(self._tables.queues))

    def queue_by_name(self, name: str) -> Queue | None:
        return self._tables.queue_named(name)

    def queue_by_id(self, queue: QueueId) -> Queue | None:
        return self._tables.queues.get(queue)

    def was_deleted(self, queue: QueueId) -> bool:
        """Was there such a queue, and is it gone for ever? False for one not known here yet."""
        return queue < self._tables.next_queue and queue not in self._tables.queues

    def group_of(self, queue: QueueId, partition: Partition) -> GroupId | None:
        """The group that hosts the partition; None if there is no such partition."""
        known = self._tables.queues.get(queue)
        if known is None or not 0 <= partition < len(known.groups):
            return None
        return known.groups[partition]

    def work_for_node(self, name: str, incarnation: NodeIncarnation) -> work.NodeWork:
        """What the node has to do; nothing for another incarnation than the replicas belong to."""
        return work.for_node(self._tables, name, incarnation)

    def gone_on(self, group: GroupId, former: Sequence[ReplicaId]) -> tuple[ReplicaId, ...]:
        """Why a recovery of the group is void: replicas that exist and that its log did not know."""
        known = self._tables.groups.get(group)
        return recoveries.gone_on(known, former) if known is not None else ()

    def work_for_members(self, group: GroupId) -> work.MemberWork:
        """What the group's leader has to change about its members; nothing for most groups."""
        return work.for_members(self._tables, group)

    def work_for_group(self, group: GroupId) -> tuple[work.PartitionWork, ...]:
        """What the group's leader has to do, by queue and partition."""
        return work.for_group(self._tables, group)
