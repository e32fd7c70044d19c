"""Brings a request to the replica that leads its group: here, or one hop further.

A node that does not lead passes the request on over the peer link, untouched, to the node that it
believes leads; the answer comes back the same way. Two hops are the most: then the asker is told
whom we believe in, and asks again. If no leader is known, or none that can be reached, the request
waits for the next one, but not long (`vacancies.py`): the asker knows how long it wants to try. A
node that is about to stop passes no client's request on; it says where to go.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from raftq.errors import Busy, InvalidArgument, ProtocolError, QueueNotFound, RaftqError
from raftq.host import Group
from raftq.host.link import Link
from raftq.ids import METADATA_GROUP, GroupId
from raftq.machine import Buffer
from raftq.observability.logs import logger
from raftq.server.request import Request
from raftq.server.vacancies import Vacancies
from raftq.wire import forwarding
from raftq.wire.connection import CANCELLABLE
from raftq.wire.errors import NotLeader
from raftq.wire.frames import FrameKind

if TYPE_CHECKING:
    from raftq.server.node import Node

_log = logger("raftq.server")

Handler = Callable[[Request], None]


class Router:
    """Dispatches requests by kind; knows where groups are led."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._handlers: dict[int, Handler] = {}
        self._forwarded: dict[tuple[str, int], Request] = {}
        self.vacancies = Vacancies(node, self.handle)

    def serve(self, kind: int, handler: Handler) -> None:
        self._handlers[kind] = handler

    def handle(self, request: Request) -> None:
        """Answer the request, now or later. Never raises."""
        try:
            handler = self._handlers.get(request.kind)
            if handler is None:
                raise ProtocolError(f"frame kind {request.kind} is no request")
            handler(request)
        except QueueNotFound as error:
            # This node's copy of the metadata may lag: the leader of group 0 knows.
            if self.leading(METADATA_GROUP) is None and request.hops < forwarding.HOPS_MAX:
                self.forward(request, METADATA_GROUP)
            elif not request.is_answered:
                is_certain = self.leading(METADATA_GROUP) is not None
                request.fail(error if is_certain else Busy(f"{error}, as far as this node knows"))
        except RaftqError as error:
            if not request.is_answered:
                request.fail(error)
        except Exception as error:
            _log.exception("request failed", kind=request.kind)
            if not request.is_answered:
                request.fail(error)

    def leading(self, group: GroupId) -> Group | None:
        """Our replica of the group, if it leads."""
        replica = self._node.host.groups.get(group)
        return replica if replica is not None and replica.leading else None

    def queue_group(self, group: int) -> GroupId:
        """A group that a client named, if it is one that may host queues.

        Raises: InvalidArgument.
        """
        if group == METADATA_GROUP:
            raise InvalidArgument("group 0 holds the metadata and hosts no queues")
        return GroupId(group)

    def leader_node(self, group: GroupId) -> str | None:
        """The node that leads the group, as far as this node knows."""
        replica = self._node.host.groups.get(group)
        if replica is not None and replica.quarantined is None:
            return replica.leader_node
        nodes = self._node.metadata.nodes_of(group)
        links = self._node.host.links
        own = self._node.config.name
        return next((node for node in nodes if node != own and links.link(node).is_up), None)

    def is_reachable(self, group: GroupId) -> bool:
        """Whether a request to the group would not have to wait."""
        return self.leading(group) is not None or self._way_to(group) is not None

    def _way_to(self, group: GroupId) -> Link | None:
        """The link to the group's leader, if that is another node that can be reached."""
        node = self.leader_node(group)
        if node is None or node == self._node.config.name:
            return None
        link = self._node.host.links.link(node)
        return link if link.is_up else None

    def forward(self, request: Request, group: GroupId) -> None:
        """Pass the request on to the leader of its group."""
        link = self._way_to(group)
        if link is None or self.vacancies.has(group):
            if not self.vacancies.wait(request, group):
                # Another node may reach it; to name it would send the asker to a machine that is gone.
                request.fail(NotLeader(None))
            return
        is_client = request.hops == 0 and not request.is_internal
        if request.hops >= forwarding.HOPS_MAX or (is_client and self._node.leaving.has_begun):
            request.fail(NotLeader(link.node))
            return

        def answered(kind: int, body: Buffer | RaftqError) -> None:
            if isinstance(body, RaftqError):
                request.fail(body)
            else:
                request.answer(kind, body)

        stream = link.request(request.kind, request.hops + 1, request.body, answered)
        if not request.is_answered:
            request.on_cancel = lambda: link.cancel(stream)

    def from_peer(self, link: Link, stream: int, body: memoryview) -> None:
        """A FORWARD frame arrived over a peer link."""
        inner = forwarding.decode_forward(body)
        key = (link.node, stream)
        if inner.kind == FrameKind.CANCEL:
            waiting = self._forwarded.get(key)
            if waiting is not None:
                waiting.cancel()
            return

        epoch = link.epoch

        def answer(kind: int, parts: tuple[Buffer, ...]) -> None:
            if link.epoch != epoch:
                return  # Another process may be there now, and have a request under this number.
            self._forwarded.pop(key, None)
            out = forwarding.encode_forward(kind, *parts)
            link.send(FrameKind.FORWARDED, *out, stream=stream)

        request = Request(inner.kind, memoryview(inner.body), answer, hops=max(inner.hops, 1))
        self._forwarded[key] = request
        self.handle(request)

    def is_busy(self) -> bool:
        """Whether another node's client waits for an answer that should come soon."""
        return any(each.kind not in CANCELLABLE for each in self._forwarded.values())

    def link_lost(self, node: str) -> None:
        """Whoever waited here for that node's clients does not wait any more."""
        for key in [key for key in self._forwarded if key[0] == node]:
            request = self._forwarded.pop(key, None)
            if request is not None:
                request.cancel()
