"""Snapshots to followers that need what the leader's log does not hold any more.

One piece is on the way at a time; it is asked of the shell, which has the bytes and may take its
time. The receiver's side is in `following.py`.

Rules:

1. Pieces say of which snapshot they are, so the receiver joins no others.
2. A transfer goes on with the snapshot that it began with, also when the leader takes newer ones:
   else one that takes longer than that would never end. The shell keeps it meanwhile.
3. Where the receiver has a part of another snapshot, from an earlier leader, it gets the rest of
   that one if the shell holds it; otherwise it is told to begin anew with this leader's newest.
"""

from raftq.ids import Index, ReplicaId
from raftq.raft import membership as memberships
from raftq.raft.commit import advance_commit
from raftq.raft.messages import SnapshotChunk, SnapshotReply
from raftq.raft.progress import Progress, Stage
from raftq.raft.ready import SnapshotMeta, SnapshotRequest
from raftq.raft.replica import Replica, Role


def begin_snapshot(leader: Replica, progress: Progress) -> None:
    newest = leader.log.snapshot
    progress.begin_snapshot(newest.index, newest.chain)
    ask_for_chunk(leader, progress)


def ask_for_chunk(leader: Replica, progress: Progress) -> None:
    """Of the shell, which has the bytes."""
    assert progress.stage is Stage.SNAPSHOT
    progress.snapshot_asked = True
    leader.snapshot_requests.append(
        SnapshotRequest(progress.replica, progress.snapshot_index, progress.snapshot_position)
    )


def send_chunk(
    leader: Replica, *, to: ReplicaId, meta: SnapshotMeta, position: int, data: bytes, done: bool
) -> None:
    """The piece that was asked for; one that is out of date is dropped."""
    progress = _gets(leader, to, meta.index)
    if progress is None or progress.snapshot_position != position:
        return
    if progress.snapshot_chain != meta.chain:
        snapshot_gone(leader, to=to, index=meta.index)
        return
    progress.snapshot_asked = False
    leader.send_now.append(
        SnapshotChunk(
            leader.replica,
            to,
            leader.term,
            meta.index,
            meta.term,
            meta.chain,
            meta.log_time,
            memberships.encode(meta.membership),
            position,
            data,
            done,
            progress.snapshot_anew and not position,
        )
    )


def _gets(leader: Replica, to: ReplicaId, index: Index) -> Progress | None:
    """Of a replica that gets the snapshot at `index` now."""
    progress = leader.progress.get(to)
    if progress is None or progress.stage is not Stage.SNAPSHOT:
        return None
    return progress if progress.snapshot_index == index else None


def snapshot_gone(leader: Replica, *, to: ReplicaId, index: Index) -> None:
    """The shell does not hold that snapshot: the newest takes its place, from its beginning."""
    progress = _gets(leader, to, index)
    if progress is None:
        return
    newest = leader.log.snapshot
    if (index, progress.snapshot_chain) == (newest.index, newest.chain):
        # It cannot be read now. It is asked for again, or another one is taken in its place.
        return
    progress.begin_snapshot(newest.index, newest.chain, anew=True)
    ask_for_chunk(leader, progress)


def on_snapshot_reply(leader: Replica, message: SnapshotReply) -> None:
    if leader.role is not Role.LEADER or message.term != leader.term:
        return
    progress = leader.progress.get(message.sender)
    if progress is None:
        return
    progress.heard = leader.now
    if progress.stage is not Stage.SNAPSHOT:
        return
    what = (message.index, message.chain)
    if what != (progress.snapshot_index, progress.snapshot_chain):
        if message.received and not progress.snapshot_position and not progress.snapshot_anew:
            progress.begin_snapshot(*what, position=message.received)
            ask_for_chunk(leader, progress)
        return
    if message.installed:
        progress.acknowledged(message.index)
        if not progress.amnesiac:
            leader.matches[message.sender] = progress.match
            advance_commit(leader)
        progress.installed(leader.round)
        progress.begin_probe(Index(progress.match + 1))
    elif message.received != progress.snapshot_position:
        progress.snapshot_position = message.received
        ask_for_chunk(leader, progress)
