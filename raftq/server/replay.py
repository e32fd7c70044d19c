"""READ: batches of one partition from an offset on, consuming nothing.

Only applied, hence committed, offsets are served. A reader at the end waits as a watch on the
partition; it is woken by the next publish that is applied.
"""

from asyncio import TimerHandle
from typing import TYPE_CHECKING

from raftq.errors import QueueNotFound, RaftqError, ReplicaDamaged
from raftq.host import Group
from raftq.ids import GroupId, Offset
from raftq.limits import MAX_RECEIVE_BYTES, MAX_WAIT_MICROS
from raftq.queue.machine import QueueMachine
from raftq.server.request import Request
from raftq.wire import requests
from raftq.wire.frames import FrameKind

if TYPE_CHECKING:
    from raftq.server.node import Node


class Replay:
    """Handles READ, and keeps the readers that wait at the end."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._waiting: dict[GroupId, dict[Request, tuple[requests.Read, TimerHandle]]] = {}
        node.router.serve(FrameKind.READ, self.handle)

    def handle(self, request: Request) -> None:
        wanted = requests.decode_read(request.body)
        group_id = self._node.metadata.group_of(wanted.queue, wanted.partition)
        if group_id is None:
            raise QueueNotFound(f"no partition {wanted.partition} of queue {wanted.queue} is known")
        group = self._node.router.leading(group_id)
        if group is None:
            self._node.router.forward(request, group_id)
            return
        if not self._serve(group, request, wanted, at_end=wanted.wait_us <= 0):
            self._wait(group, request, wanted)

    def _wait(self, group: Group, request: Request, wanted: requests.Read) -> None:
        def give_up() -> None:
            readers = self._waiting.get(group.group, {})
            if request in readers:
                readers.pop(request)[1].cancel()
            try:
                self._serve(group, request, wanted, at_end=True)
            except RaftqError as error:
                request.fail(error)

        seconds = min(wanted.wait_us, MAX_WAIT_MICROS) / 1_000_000
        timer = self._node.loop.call_later(seconds, give_up)
        request.on_cancel = give_up
        self._waiting.setdefault(group.group, {})[request] = (wanted, timer)

    def applied(self, group: Group) -> None:
        """Something was applied: readers that waited at the end look again."""
        readers = self._waiting.get(group.group)
        if not readers:
            return
        for request, (wanted, timer) in list(readers.items()):
            try:
                served = self._serve(group, request, wanted, at_end=False)
            except RaftqError as error:
                request.fail(error)
                served = True
            if served:
                timer.cancel()
                del readers[request]

    def deposed(self, group: Group) -> None:
        for request, (_, timer) in self._waiting.pop(group.group, {}).items():
            timer.cancel()
            request.fail(group.redirect())

    def stop(self) -> None:
        """Nobody waits any more; the connections end."""
        for readers in self._waiting.values():
            for _, timer in readers.values():
                timer.cancel()
        self._waiting.clear()

    def _serve(
        self, group: Group, request: Request, wanted: requests.Read, *, at_end: bool
    ) -> bool:
        """Answer if there is something to give, or if `at_end` (then perhaps with nothing)."""
        machine = group.machine
        assert isinstance(machine, QueueMachine)
        next_offset = machine.next_offset(wanted.queue, wanted.partition)
        if next_offset is None:
            raise QueueNotFound(f"partition {wanted.partition} is not open in its group yet")
        end = Offset(next_offset)
        held = group.log.offsets(wanted.queue, wanted.partition)
        first = min(held[0], end) if held is not None else end
        first = max(first, Offset(machine.readable_from(wanted.queue, wanted.partition)))
        if wanted.offset >= end:
            if not at_end and wanted.offset == end:
                return False
            found = []
        else:
            limit = min(max(wanted.max_bytes, 1), MAX_RECEIVE_BYTES)
            start = max(wanted.offset, first)
            try:
                found = group.log.batches(wanted.queue, wanted.partition, start, end, limit)
            except (RaftqError, OSError) as error:
                raise ReplicaDamaged(f"offset {start} cannot be read here: {error}") from error
        batches = tuple(
            requests.StoredBatch(wanted.partition, each.base_offset, each.log_time, each.data)
            for each in found
        )
        reply = requests.Batches(first, end, batches)
        request.answer(FrameKind.BATCHES, *requests.encode_batches(reply))
        return True
