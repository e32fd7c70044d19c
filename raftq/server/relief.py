"""A leader whose disk is full looks for a node that has room, and hands over to it.

Publishes are refused where the disk is full, so a group had better be led elsewhere; but not by a
node that is no better off. The others are therefore asked, over their links, and the first that has
room gets the group. If nobody has, the leader stays: it serves all but publishes as before.

Rule: a node says that it has room only well above the reserve, so that leaderships do not come back
in a moment, nor go round among nodes that are all about to be full.
"""

from typing import TYPE_CHECKING, Any, Final

from raftq.errors import RaftqError
from raftq.host import Group
from raftq.ids import NOBODY
from raftq.limits import DISK_RESERVE_BYTES
from raftq.machine import Buffer
from raftq.observability.logs import logger
from raftq.server.request import Request
from raftq.wire import cbor
from raftq.wire.frames import FrameKind

if TYPE_CHECKING:
    from raftq.server.node import Node

_log = logger("raftq.server")

ROOM_BYTES: Final = 2 * DISK_RESERVE_BYTES


class Relief:
    """One node's: asks, and answers."""

    def __init__(self, node: "Node") -> None:
        self._node = node

    def tell(self, request: Request, _wanted: dict[str, Any]) -> None:
        """The internal operation `has_room`: whether this node could lead what another cannot."""
        is_full = any(group.log.is_full for group in self._node.host.groups.values())
        free = self._node.environment.disk.free_bytes()
        request.answer_map({"room": not is_full and free >= ROOM_BYTES})

    def disk_full(self, group: Group) -> None:
        """Ask every node that could lead the group; whoever has room first gets it."""
        body = cbor.encode({"do": "has_room"})
        links = self._node.host.links
        for node in links.up():
            if node in group.nodes.values() and node != self._node.config.name:

                def answered(kind: int, reply: Buffer | RaftqError, node: str = node) -> None:
                    if kind == FrameKind.CONTROLLED and not isinstance(reply, RaftqError):
                        self._heard(group, node, cbor.decode(memoryview(reply)))

                links.link(node).request(FrameKind.CONTROL, 1, body, answered)

    def _heard(self, group: Group, node: str, reply: dict[str, Any]) -> None:
        is_wanted = group.log.is_full and group.raft.transfer_to == NOBODY
        if not reply.get("room") or not is_wanted or self._node.stopped:
            return
        if group.succession.hand_over(reachable=[node]):
            _log.warning("disk full, handing over", group=group.group, to=node)
