"""This node's replicas: made when group 0 says so, opened when it has activated them, never made
twice.

A queue group is created in three steps, so that a replica that comes back empty never votes:

    CreateGroup committed -> each node makes and syncs its directory -> Created reported by all
    -> the group is active in group 0 -> only now does anybody run it, and vote in it

A node that has reported Created, or is listed in an active group, and finds no directory has *lost*
that replica. It reports so and does not make another under the same replica id. Its own copy of the
metadata may lag, and still ask for a replica that was reported and activated long ago; so what was
made is also remembered outside the group's directory, in the small file `replicas`: written after
the directory is durable and before the report.
"""

from typing import TYPE_CHECKING

import cbor2

from raftq.errors import ClusterMismatch
from raftq.host import Identity
from raftq.host.identity import group_directory
from raftq.ids import METADATA_GROUP, GroupId, ReplicaId
from raftq.machine import Machine
from raftq.metadata import MetadataMachine
from raftq.observability.logs import logger
from raftq.queue.machine import QueueMachine
from raftq.raft import Membership
from raftq.storage import small_file
from raftq.storage.group_log import GroupLog

if TYPE_CHECKING:
    from raftq.server.node import Node

_log = logger("raftq.server")

_MADE_PATH = "replicas"


def _amnesia_path(group: GroupId) -> str:
    return f"{group_directory(group)}/amnesiac"


class Replicas:
    """Makes, opens and counts the replicas of this node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.lost: set[GroupId] = set()
        stored = small_file.load(node.environment.disk, _MADE_PATH)
        self._made: list[GroupId] = cbor2.loads(stored) if stored is not None else []

    def exists(self, group: GroupId) -> bool:
        """A creation that a crash has cut does not count: it is begun anew."""
        return GroupLog.exists(self._node.environment.disk, group_directory(group))

    def _make(self, group: GroupId, membership: Membership) -> None:
        environment, identity = self._node.environment, self._node.host.identity
        log = GroupLog.create(
            environment.disk,
            environment.clock,
            group_directory(group),
            incarnation=identity.incarnation,
            boot=identity.boot,
            membership=membership,
            faults=self._node.config.storage_faults,
        )
        log.close()

    def _open(self, group: GroupId) -> GroupLog:
        environment, identity = self._node.environment, self._node.host.identity
        return GroupLog.open(
            environment.disk,
            environment.clock,
            group_directory(group),
            incarnation=identity.incarnation,
            boot=identity.boot,
            faults=self._node.config.storage_faults,
        )

    def _run(
        self, group: GroupId, replica: ReplicaId, nodes: dict[ReplicaId, str], machine: Machine
    ) -> None:
        log = self._open(group)
        _log.info(
            "replica opened",
            group=group,
            replica=replica,
            condition=log.condition.name,
            last_index=log.last_index,
            commit_index=log.state.commit_index,
            tail_cut=log.tail_cut,
        )
        self._node.host.add_group(
            group,
            replica=replica,
            nodes=nodes,
            log=log,
            machine=machine,
            observer=self._node,
            may_vote=small_file.load(self._node.environment.disk, _amnesia_path(group)) is None,
        )

    def note_amnesia(self, group: GroupId) -> None:
        """The replica lost what it had promised; its recovered log must not hide that later."""
        _log.error("replica is amnesiac: it does not vote any more", group=group)
        small_file.save(self._node.environment.disk, _amnesia_path(group), b"amnesiac")

    # --- Group 0 ------------------------------------------------------------------------------

    def make_metadata(self, identity: Identity) -> None:
        """Group 0's directory, before this node becomes active. Made again only if unfinished."""
        if not self.exists(METADATA_GROUP):
            self._make(METADATA_GROUP, Membership(tuple(identity.metadata_replicas())))

    def open_metadata(self, identity: Identity) -> None:
        """Run group 0's replica.

        Raises: ClusterMismatch when its directory is gone.
        """
        if not self.exists(METADATA_GROUP):
            raise ClusterMismatch(
                "the directory group-0 of this active node is gone: it would vote without its "
                "memory; restore it, or start with an empty data directory as a new node"
            )
        nodes = identity.metadata_replicas()
        replica = next(r for r, name in nodes.items() if name == identity.name)
        machine = MetadataMachine(
            identity.cluster,
            [(member.name, member.incarnation) for member in identity.members],
        )
        self._node.metadata.attach(machine)
        self._run(METADATA_GROUP, replica, nodes, machine)

    # --- Queue groups -------------------------------------------------------------------------

    def make(self, group: GroupId, nodes: dict[ReplicaId, str]) -> bool:
        """Make this node's directory of a group that is being created, unless a crash left it.

        False: it was made before and is gone.
        """
        if not self.exists(group):
            if group in self._made:
                self._note_lost(group)
                return False
            self._make(group, Membership(tuple(sorted(nodes))))
        if group not in self._made:
            self._made.append(group)
            small_file.save(self._node.environment.disk, _MADE_PATH, cbor2.dumps(self._made))
        return True

    def _note_lost(self, group: GroupId) -> None:
        if group not in self.lost:
            self.lost.add(group)
            _log.error("replica lost", group=group)

    def run(self, group: GroupId, replica: ReplicaId, nodes: dict[ReplicaId, str]) -> bool:
        """Run an active group's replica; False if its directory is lost."""
        if group in self._node.host.groups:
            return True
        if not self.exists(group):
            self._note_lost(group)
            return False
        self._run(group, replica, nodes, QueueMachine(self._node.config.queue_faults))
        return True
