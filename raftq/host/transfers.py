"""Machine snapshots on their way between replicas: pieces out on request, pieces in until whole.

The core decides who gets which piece and which pieces belong together; here they are read from a
snapshot file of this replica, or written into a new one. A received snapshot counts only once it is
whole, verified and durable; then the core installs it, and the machine begins anew from it.

A piece leaves when the node's budget for replicas that catch up allows it. The file that pieces are
read from is kept while it is asked for, also when newer ones are taken meanwhile; who has not asked
for half a minute has what it needs, or is gone.
"""

from typing import TYPE_CHECKING

from raftq.errors import Corrupted
from raftq.host.catch_up import CatchUpShare
from raftq.ids import Index, Micros, ReplicaId
from raftq.limits import SNAPSHOT_CHUNK_BYTES, SNAPSHOT_KEPT_MICROS
from raftq.observability.logs import logger
from raftq.raft import Ready, SnapshotMeta
from raftq.raft.membership import decode
from raftq.raft.messages import SnapshotChunk
from raftq.raft.ready import SnapshotRequest
from raftq.raft.replica import NEVER
from raftq.storage.snapshots import SnapshotWriter

if TYPE_CHECKING:
    from raftq.host.group import Group

_log = logger("raftq.host")


class Transfers:
    """One group's transfers, both ways."""

    def __init__(self, group: "Group", share: CatchUpShare) -> None:
        self._group = group
        self._share = share
        self._requests: dict[ReplicaId, SnapshotRequest] = {}
        """What has not been answered yet, the newest of each."""
        self._asked_for: dict[Index, Micros] = {}
        """The snapshots that are kept, and until when."""
        self._writer: SnapshotWriter | None = None
        self._index = Index(0)

    @property
    def deadline(self) -> Micros:
        return min(self._share.deadline, min(self._asked_for.values(), default=NEVER))

    def serve(self, ready: Ready, now: Micros) -> None:
        """Do what a Ready asks for."""
        for request in ready.snapshot_send:
            self._requests[request.to] = request
            self._keep(request.index, now)
        self._answer()
        for chunk in ready.snapshot_receive:
            self._receive(chunk)

    def tick(self, now: Micros) -> None:
        """Called once a turn: sends what had to wait, and lets go of what nobody wants any more."""
        if self._share.wake(now):
            self._answer()
        for index in [index for index, until in self._asked_for.items() if until <= now]:
            del self._asked_for[index]
            self._group.log.snapshots.let_go(index)

    def _keep(self, index: Index, now: Micros) -> None:
        self._asked_for[index] = Micros(now + SNAPSHOT_KEPT_MICROS)
        self._group.log.snapshots.keep(index)

    def _answer(self) -> None:
        while self._requests and self._share.may_spend():
            to = next(iter(self._requests))
            self._share.spent(self._send(self._requests.pop(to)))

    def _send(self, request: SnapshotRequest) -> int:
        group = self._group
        to, index, position = request
        try:
            meta = group.log.snapshots.meta(index)
            data, done = group.log.snapshots.read_bytes(index, position, SNAPSHOT_CHUNK_BYTES)
        except (LookupError, Corrupted, OSError) as error:
            _log.warning("snapshot cannot be sent", group=group.group, reason=str(error))
            group.raft.snapshot_gone(to, index)
            return 0
        group.raft.snapshot_chunk(to, meta, position, data, done)
        return len(data)

    def _receive(self, chunk: SnapshotChunk) -> None:
        if chunk.position == 0:
            self._begin(chunk)
        if self._writer is None or chunk.index != self._index:
            return
        self._writer.write_raw(chunk.data)
        if chunk.done:
            self._writer.finish()

    def _begin(self, chunk: SnapshotChunk) -> None:
        if self._writer is not None:
            self._writer.abandon()
        self._index = chunk.index
        meta = SnapshotMeta(
            chunk.index,
            chunk.snapshot_term,
            chunk.chain,
            chunk.log_time,
            decode(chunk.membership),
        )
        index = chunk.index
        self._writer = self._group.log.begin_snapshot(meta, lambda: self._whole(index))

    def _whole(self, index: Index) -> None:
        """The snapshot is durable, or came to nothing."""
        group = self._group
        if index != self._index or group.stopped:
            return
        if self._writer is not None and self._writer.problem is not None:
            reason = self._writer.problem
            _log.warning("snapshot not received", group=group.group, reason=reason)
        self._writer = None
        group.raft.snapshot_received(index, valid=group.log.snapshot.index == index)
        group.want_turn()
