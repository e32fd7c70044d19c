"""Snapshots to followers that need what the leader's log does not hold any more.

One piece is on the way at a time; it is asked of the shell, which has the bytes. Pieces say of which
snapshot they are, so the receiver joins no others; when the leader's snapshot moves, a transfer
begins anew. The receiver's side is in `following.py`.
"""

from raftq.ids import Index, ReplicaId
from raftq.raft import membership as memberships
from raftq.raft.commit import advance_commit
from raftq.raft.messages import SnapshotChunk, SnapshotReply
from raftq.raft.progress import Progress
from raftq.raft.ready import SnapshotRequest
from raftq.raft.replica import Replica, Role


def begin_snapshot(leader: Replica, progress: Progress) -> None:
    progress.begin_snapshot(leader.log.snapshot)
    ask_for_chunk(leader, progress)


def ask_for_chunk(leader: Replica, progress: Progress) -> None:
    """Of the shell, which has the bytes."""
    snapshot = progress.snapshot
    assert snapshot is not None
    progress.snapshot_asked = True
    leader.snapshot_requests.append(
        SnapshotRequest(progress.replica, snapshot.index, progress.snapshot_position)
    )


def restart_snapshots(leader: Replica) -> None:
    """The own snapshot moved: pieces of the old one are of no use any more."""
    newest = leader.log.snapshot
    for progress in leader.progress.values():
        if progress.snapshot is not None and progress.snapshot.index != newest.index:
            begin_snapshot(leader, progress)


def send_chunk(leader: Replica, *, to: ReplicaId, position: int, data: bytes, done: bool) -> None:
    """The piece that was asked for; one that is out of date is dropped."""
    progress = leader.progress.get(to)
    if progress is None or progress.snapshot is None or progress.snapshot_position != position:
        return
    snapshot = progress.snapshot
    progress.snapshot_asked = False
    leader.send_now.append(
        SnapshotChunk(
            leader.replica,
            to,
            leader.term,
            snapshot.index,
            snapshot.term,
            snapshot.chain,
            snapshot.log_time,
            memberships.encode(snapshot.membership),
            position,
            data,
            done,
        )
    )


def on_snapshot_reply(leader: Replica, message: SnapshotReply) -> None:
    if leader.role is not Role.LEADER or message.term != leader.term:
        return
    progress = leader.progress.get(message.sender)
    if progress is None:
        return
    progress.heard = leader.now
    snapshot = progress.snapshot
    if snapshot is None or message.index != snapshot.index:
        return
    if message.installed:
        progress.acknowledged(snapshot.index)
        if not progress.amnesiac:
            leader.matches[message.sender] = progress.match
            advance_commit(leader)
        progress.begin_probe(Index(progress.match + 1))
    elif message.received != progress.snapshot_position:
        progress.snapshot_position = message.received
        ask_for_chunk(leader, progress)
