"""This node's replicas: made when group 0 says so, opened when it has activated them, never made
twice.

A queue group is created in three steps, so that a replica that comes back empty never votes:

    CreateGroup committed -> each node makes and syncs its directory -> Created reported by all
    -> the group is active in group 0 -> only now does anybody run it, and vote in it

A node that has reported Created, or is listed in an active group, and finds no directory has *lost*
that replica. It reports so and does not make another under the same replica id. A replica that knows
that it lost what it had promised is reported too, once the group is led without it. Group 0 gives
the node a new id, under which it makes a directory that joins: it knows of no voters, so it neither
campaigns nor counts before the group's leader has voted it in.

The node's copy of the metadata may lag, and still ask for a replica that was reported and activated
long ago, or replaced; so what was made is also remembered outside the group's directory (`made`).
A directory that counts no more is first moved aside, whole: damage deletes nothing.

Checksums are seeded with an incarnation. The first directory of a group has the node's; one that is
made in the place of another gets its own, so that no block which the disk gives back ever verifies.
"""

from typing import TYPE_CHECKING

from raftq.errors import ClusterMismatch
from raftq.host import Identity
from raftq.host.identity import group_directory
from raftq.ids import METADATA_GROUP, NOBODY, GroupId, ReplicaId
from raftq.machine import Machine
from raftq.metadata import MetadataMachine, ReplicaWork
from raftq.observability.logs import logger
from raftq.queue.machine import QueueMachine
from raftq.raft import Membership
from raftq.server import made as making
from raftq.server.made import NOTHING, Made
from raftq.storage import small_file
from raftq.storage.group_log import GroupLog

if TYPE_CHECKING:
    from raftq.server.node import Node

_log = logger("raftq.server")


def amnesia_path(group: GroupId) -> str:
    return f"{group_directory(group)}/amnesiac"


class Replicas:
    """Makes, opens and counts the replicas of this node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.lost: set[GroupId] = set()
        self.void: dict[GroupId, tuple[ReplicaId, ...]] = {}
        """Groups that were recovered here and have gone on with these replicas elsewhere."""
        self._made = making.load(node.environment.disk)

    def exists(self, group: GroupId) -> bool:
        """A creation that a crash has cut does not count: it is begun anew."""
        return GroupLog.exists(self._node.environment.disk, group_directory(group))

    def _make(self, group: GroupId, membership: Membership) -> None:
        environment, identity = self._node.environment, self._node.host.identity
        own = self._made.get(group, NOTHING).incarnation
        log = GroupLog.create(
            environment.disk,
            environment.clock,
            group_directory(group),
            incarnation=own or identity.incarnation,
            boot=identity.boot,
            membership=membership,
            sizes=self._node.config.tuning.sizes,
            faults=self._node.config.storage_faults,
        )
        log.close()

    def _open(self, group: GroupId) -> GroupLog:
        environment, identity = self._node.environment, self._node.host.identity
        own = self._made.get(group, NOTHING).incarnation
        return GroupLog.open(
            environment.disk,
            environment.clock,
            group_directory(group),
            incarnation=own or identity.incarnation,
            boot=identity.boot,
            sizes=self._node.config.tuning.sizes,
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
            may_vote=small_file.load(self._node.environment.disk, amnesia_path(group)) is None,
        )

    def note_amnesia(self, group: GroupId) -> None:
        """The replica lost what it had promised; its recovered log must not hide that later."""
        _log.error("replica is amnesiac: it does not vote any more", group=group)
        small_file.save(self._node.environment.disk, amnesia_path(group), b"amnesiac")

    # --- Group 0 ------------------------------------------------------------------------------

    def make_metadata(self, identity: Identity) -> None:
        """Group 0's directory, before this node becomes active. Made again only if unfinished.

        A founder's knows who votes; that of a node that is adopted knows nobody.
        """
        if not self.exists(METADATA_GROUP):
            voters = () if identity.replica else tuple(identity.metadata_replicas())
            self._make(METADATA_GROUP, Membership(voters))

    def open_metadata(self, identity: Identity) -> None:
        """Run group 0's replica.

        Raises: ClusterMismatch when its directory is gone.
        """
        if not self.exists(METADATA_GROUP):
            raise ClusterMismatch(
                "the directory group-0 of this active node is gone: it would vote without its "
                "memory; restore it, or start with an empty data directory and let that take this "
                f"node's place: raftq cluster replace {identity.name}"
            )
        machine = MetadataMachine(identity.first_cluster, identity.first_members())
        self._node.metadata.attach(machine)
        replica = identity.metadata_replica()
        self._run(METADATA_GROUP, replica, identity.metadata_replicas(), machine)

    # --- Queue groups -------------------------------------------------------------------------

    def make(self, work: ReplicaWork) -> bool | None:
        """Make this node's directory of a replica, unless a crash left it.

        False: it was made before and is gone. None: it belongs to the past, whatever the copy of
        the metadata says that asks for it.

        Raises: OSError.
        """
        group = work.group
        made = self._made.get(group, NOTHING)
        if work.replica < made.replica:
            return None
        if work.replica == made.replica and made.is_finished:
            if not self.exists(group):
                self._note_lost(group)
                return False
            return True
        if group in self._node.host.groups:
            # Its log may still be preparing a file. That is over when this is asked for again.
            self._node.host.remove_group(group)
            return None
        incarnation = 0
        if made.replica != NOBODY or not self.exists(group):
            if made.replica != NOBODY:
                incarnation = self._node.environment.entropy.bits(64)
            self._make_room(group, made)
            self._note_made(group, Made(work.replica, is_finished=False, incarnation=incarnation))
            voters = () if work.joins else tuple(sorted(work.nodes))
            self._make(group, Membership(voters))
        self._note_made(group, Made(work.replica, is_finished=True, incarnation=incarnation))
        self.lost.discard(group)
        return True

    def recovered(self) -> dict[GroupId, Made]:
        """The replicas here that were made the only voters of their groups, by group."""
        return {group: made for group, made in sorted(self._made.items()) if made.former}

    def _note_made(self, group: GroupId, made: Made) -> None:
        self._made[group] = made
        making.save(self._node.environment.disk, self._made)

    def _make_room(self, group: GroupId, before: Made) -> None:
        """What an earlier replica left is moved aside; what a creation that was cut left goes."""
        disk = self._node.environment.disk
        if before.is_finished and self.exists(group):
            incarnation = before.incarnation or self._node.host.identity.incarnation
            making.move_aside(disk, group, incarnation)
            _log.warning("directory moved aside", group=group, replica=before.replica)
        else:
            making.clear(disk, group_directory(group))

    def _note_lost(self, group: GroupId) -> None:
        if group not in self.lost:
            self.lost.add(group)
            _log.error("replica lost", group=group)

    def note_void(self, group: GroupId, others: tuple[ReplicaId, ...]) -> None:
        """The group has gone on elsewhere: what was recovered here never counts."""
        if group not in self.void:
            self.void[group] = others
            _log.error("recovery is void: the group has gone on", group=group, replicas=others)

    def run(self, work: ReplicaWork) -> bool:
        """Run an active group's replica; False if it is lost.

        Raises: OSError.
        """
        group = work.group
        made = self._made.get(group, NOTHING).replica or work.replica
        if work.replica < made:
            return True  # That was before; the one that was made since is asked for later.
        running = self._node.host.groups.get(group)
        if running is not None:
            # As long as nobody leads, the copy that it has may be what helps the group.
            return running.raft.may_vote or running.raft.leader == NOBODY
        if not self.exists(group) or work.replica != made:
            self._note_lost(group)
            return False
        machine = QueueMachine(self._node.config.queue_faults)
        self._run(group, work.replica, work.nodes, machine)
        return True
