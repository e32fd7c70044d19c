"""Machine snapshots on their way between replicas: pieces out on request, pieces in until whole.

The core decides who gets which piece and which pieces belong together; here they are read from the
snapshot file of this replica, or written into a new one. A received snapshot counts only once it is
whole, verified and durable; then the core installs it, and the machine begins anew from it.
"""

from typing import TYPE_CHECKING

from raftq.errors import Corrupted
from raftq.ids import Index
from raftq.limits import SNAPSHOT_CHUNK_BYTES
from raftq.observability.logs import logger
from raftq.raft import Ready, SnapshotMeta
from raftq.raft.membership import decode
from raftq.raft.messages import SnapshotChunk
from raftq.storage.snapshots import SnapshotWriter

if TYPE_CHECKING:
    from raftq.host.group import Group

_log = logger("raftq.host")


class Transfers:
    """One group's transfers, both ways."""

    def __init__(self, group: "Group") -> None:
        self._group = group
        self._writer: SnapshotWriter | None = None
        self._index = Index(0)

    def serve(self, ready: Ready) -> None:
        """Do what a Ready asks for."""
        for request in ready.snapshot_send:
            self._send(request.to, request.index, request.position)
        for chunk in ready.snapshot_receive:
            self._receive(chunk)

    def _send(self, to: int, index: Index, position: int) -> None:
        group = self._group
        try:
            data, done = group.log.read_snapshot_bytes(index, position, SNAPSHOT_CHUNK_BYTES)
        except (LookupError, Corrupted, OSError) as error:
            _log.warning("snapshot cannot be sent", group=group.group, reason=str(error))
            return
        for replica in group.nodes:
            if replica == to:
                group.raft.snapshot_chunk(replica, position, data, done)

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
