"""PUBLISH: one batch becomes one command.

The batch stays as it came. Its checksum, columns and limits are judged here, once; the order, the
offset and whether it is a duplicate are the admission's business.
"""

from typing import TYPE_CHECKING

from raftq import batch
from raftq.errors import InvalidArgument, MessageTooLarge, QueueNotFound
from raftq.host import Place
from raftq.ids import GroupId, Micros, Offset, Partition, QueueId
from raftq.queue.replies import Published
from raftq.server.answering import answer_with
from raftq.server.request import Request
from raftq.wire import requests
from raftq.wire.frames import FrameKind

if TYPE_CHECKING:
    from raftq.server.node import Node

_COPY_BELOW_BYTES = 4 * 1024
"""Smaller batches are copied: kept as slices they would pin the receive chunk."""


class Publishing:
    """Handles PUBLISH."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        node.router.serve(FrameKind.PUBLISH, self.handle)

    def handle(self, request: Request) -> None:
        wanted = requests.decode_publish(request.body)
        if wanted.acks != requests.ACKS_QUORUM:
            raise InvalidArgument('acks other than "quorum" are not available in this version')
        data = memoryview(wanted.batch)
        header = batch.read_header(data)
        queue, partition = QueueId(header.queue), Partition(header.partition)
        group_id = self._node.metadata.group_of(queue, partition)
        if group_id is None:
            raise QueueNotFound(
                f"no partition {partition} of queue {queue} is known here: the queue was deleted, "
                "or never created"
            )
        group = self._node.router.leading(group_id)
        if group is None:
            self._node.router.forward(request, group_id)
            return
        batch.verify(data)
        limit = self._node.metadata.max_message_bytes(queue)
        if header.body_bytes > limit:
            largest = batch.Batch(data, header).largest_body()
            if largest > limit:
                raise MessageTooLarge(
                    f"a message of {largest} bytes; queue {queue} takes {limit} "
                    "(max_message_bytes); store it elsewhere and send a reference"
                )
        body = bytes(data) if len(data) < _COPY_BELOW_BYTES else data
        stamp = batch.encode_stamp(queue, partition, Offset(0), header.count)

        def published(reply: object, place: Place) -> None:
            assert isinstance(reply, Published)
            answer(request, group_id, partition, reply, place)

        timeout = Micros(wanted.timeout_ms * 1_000) if wanted.timeout_ms else None
        group.propose(stamp, body, answer_with(request, published), timeout=timeout)


def answer(
    request: Request, group: GroupId, partition: Partition, reply: Published, place: Place
) -> None:
    request.answer(
        FrameKind.PUBLISHED,
        *requests.encode_published(
            requests.Published(
                group=group,
                partition=partition,
                base_offset=reply.base_offset,
                count=reply.count,
                acks=requests.ACKS_QUORUM,
                duplicate=reply.duplicate,
                term=place.term,
                index=place.index,
                chain=place.chain,
            )
        ),
    )
