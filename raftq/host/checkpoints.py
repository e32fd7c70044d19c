"""Machine snapshots and machine digests, taken beside the group's work.

Snapshots are taken at the same indexes on every replica, so that a replica which got a part of one
from a leader can get the rest of the very same from the next: at multiples of
`SNAPSHOT_EVERY_ENTRIES`, and wherever `SNAPSHOT_EVERY_BYTES` of entries were applied since the last
such place. If one is still being drawn there, that place is passed over.

A snapshot has one index: the machine yields it in slices, as it was when asked, and one slice is
drawn per pass of the loop, so that nothing waits longer than a slice takes (about 5 ms). It counts
only once it is durable; until then the older one and the log behind it are kept. One that fails (a
full disk, or a machine that cannot tell its state) is forgotten, counted and said; the next is taken
when as much has been applied again. Nothing promised depends on a snapshot, and all replicas of a
group would meet the same bug at the same index: so none of them is stopped by it.

A digest is taken at every multiple of `checkpoint_entries`; leaders send theirs in heartbeats, and a
replica whose digest differs at the same index has diverged.
"""

from asyncio import AbstractEventLoop
from collections.abc import Iterator
from typing import TYPE_CHECKING

from raftq.host.tuning import Tuning
from raftq.observability.logs import logger
from raftq.raft import Entry, SnapshotMeta
from raftq.storage.snapshots import SnapshotWriter

if TYPE_CHECKING:
    from raftq.host.group import Group

_log = logger("raftq.host")


class Snapshotter:
    """Decides when, and draws the slices."""

    def __init__(self, group: "Group", loop: AbstractEventLoop, tuning: Tuning) -> None:
        self._group = group
        self._tuning = tuning
        self._loop = loop
        self._bytes_since = 0
        self._is_wanted = False
        self._slices: Iterator[bytes] | None = None
        self._writer: SnapshotWriter | None = None
        self.failures = 0
        """Snapshots that came to nothing since the node started."""

    def applied(self, entry: Entry) -> None:
        """The machine has applied `entry`, and nothing after it."""
        group = self._group
        self._bytes_since += entry.size
        if entry.index % self._tuning.checkpoint_entries == 0:
            group.raft.checkpoint(entry.index, group.machine.digest())
        is_due = (
            entry.index % self._tuning.snapshot_entries == 0
            or self._bytes_since >= self._tuning.snapshot_bytes
        )
        if is_due:
            self._bytes_since = 0
        if self._slices is None and (is_due or self._is_wanted):
            self._begin(entry)

    def take_soon(self) -> None:
        """The newest snapshot is damaged: replace it with the next entry that is applied."""
        self._is_wanted = True

    def _begin(self, last: Entry) -> None:
        group = self._group
        membership = group.raft.membership_at(last.index)
        meta = SnapshotMeta(last.index, last.term, last.chain, last.log_time, membership)
        self._is_wanted = False
        try:
            self._slices = group.machine.snapshot()
        except Exception as error:
            self._bug(error)
            return
        self._writer = group.log.begin_snapshot(meta, self._over)
        self._loop.call_soon(self._draw)

    def _draw(self) -> None:
        assert self._slices is not None
        assert self._writer is not None
        if self._group.stopped:
            return
        try:
            piece = next(self._slices, None)
        except Exception as error:
            self._writer.abandon()
            self._slices = self._writer = None
            self._bug(error)
            return
        if piece is None:
            self._writer.finish()
            return
        self._writer.write(piece)
        self._loop.call_soon(self._draw)

    def _over(self) -> None:
        """The snapshot is durable, or came to nothing."""
        assert self._writer is not None
        problem = self._writer.problem
        self._slices = None
        self._writer = None
        if problem is not None:
            self._failed(problem)
        elif not self._group.stopped:
            self._group.raft.compacted()

    def _failed(self, reason: str) -> None:
        self.failures += 1
        _log.warning("snapshot failed", group=self._group.group, reason=reason)

    def _bug(self, error: Exception) -> None:
        self._failed(f"internal error: {error!r}")
        self._loop.call_exception_handler({"message": "a snapshot failed", "exception": error})
