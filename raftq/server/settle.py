"""SETTLE: ack, nack and extend, by ranges of deliveries."""

from typing import TYPE_CHECKING

from raftq.host import Place
from raftq.ids import Offset
from raftq.queue import commands
from raftq.queue.replies import Settled
from raftq.server.answering import answer_with
from raftq.server.request import Request
from raftq.wire import requests
from raftq.wire.frames import FrameKind

if TYPE_CHECKING:
    from raftq.server.node import Node


class Settling:
    """Handles SETTLE. What is settled frees space: it may use the disk's reserve."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        node.router.serve(FrameKind.SETTLE, self.handle)

    def handle(self, request: Request) -> None:
        settle = requests.decode_settle(request.body)
        group = self._node.router.leading(self._node.router.queue_group(settle.group))
        if group is None:
            self._node.router.forward(request, settle.group)
            return

        def settled(reply: object, _place: Place) -> None:
            assert isinstance(reply, Settled)
            stale = tuple(
                requests.Item(partition, delivery, Offset(start), Offset(stop))
                for _, partition, delivery, start, stop in reply.stale
            )
            request.answer(FrameKind.SETTLED, *requests.encode_settled(requests.Settled(stale)))

        group.propose(command_of(settle), b"", answer_with(request, settled), reserve=True)


def command_of(settle: requests.Settle) -> bytes:
    """The queue machine's command for a client's SETTLE.

    Raises: InvalidArgument.
    """
    by = (settle.session, settle.attachment, settle.number, settle.wanted)
    items = [
        (settle.queue, partition, settle.subscription, delivery, start, stop)
        for partition, delivery, start, stop in settle.items
    ]
    if settle.action == requests.ACK:
        return commands.encode_ack(*by, items)
    if settle.action == requests.NACK:
        return commands.encode_nack(
            *by,
            items,
            delay_us=settle.time_us,
            reason=settle.reason,
            count=settle.count,
            reject=settle.reject,
        )
    return commands.encode_extend(*by, items, visibility_us=settle.time_us)
