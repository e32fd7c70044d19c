"""Whom this node counts as members, and what it does, where it leads, to change them.

The metadata say which directory is behind each node's name, and which replicas a group shall have.
Every node follows: it lets the right directory link to it, and routes to new replicas. That is done
before the leader of a group takes a new replica in, because it speaks to it at once; what another
node routes later is lost, and sent again.

A copy of the metadata may lag, most of all after a start: it tells of who has been replaced long
ago. Ids of replicas ascend, so a copy that knows no id of group 0 as high as the one that this node
has kept is of an earlier time, and not followed.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from raftq.host import Group
from raftq.host.changes import advance, route
from raftq.ids import METADATA_GROUP
from raftq.metadata import Command, MetadataMachine, ReplicaLost, ReplicasLeft

if TYPE_CHECKING:
    from raftq.server.node import Node

Report = Callable[[object, Command], None]


class Members:
    """Part of the reconciler."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def follow(self, machine: MetadataMachine) -> None:
        """Link and route as the metadata say.

        Raises: OSError.
        """
        host = self._node.host
        self._follow_nodes(machine)
        up = host.links.up()
        for number, group in host.groups.items():
            known = machine.group(number)
            if known is not None:
                route(group, known.nodes, up)

    def _follow_nodes(self, machine: MetadataMachine) -> None:
        host = self._node.host
        identity = host.identity
        metadata = machine.group(METADATA_GROUP)
        assert metadata is not None
        replicas = dict(sorted(metadata.nodes.items()))
        kept = identity.metadata_replicas()
        if max(replicas) < max(kept) or replicas == kept:
            return
        incarnations = {node.name: node.incarnation for node in machine.nodes()}
        members = tuple(
            replace(member, incarnation=incarnations[member.name]) for member in identity.members
        )
        host.change_members(identity.with_members(members, tuple(replicas.items())))

    def change(self, machine: MetadataMachine, group: Group, report: Report) -> bool:
        """Carry the change of a group that this node leads one step on; whether there is one."""
        work = machine.work_for_members(group.group)
        if not work.leaving:
            return False
        progress = advance(
            group,
            joining={replica.replica: replica.node for replica in work.joining},
            leaving={replica.replica: replica.node for replica in work.leaving},
        )
        for replica in work.joining:
            if replica.replica in progress.unusable:
                lost = ReplicaLost(
                    group=group.group, replica=replica.replica, incarnation=replica.incarnation
                )
                report(("lost", group.group, replica.replica), lost)
        if progress.left:
            left = ReplicasLeft(group=group.group, replicas=progress.left)
            report(("left", group.group, progress.left), left)
        return True
