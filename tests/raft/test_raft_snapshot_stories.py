"""Stories of snapshots: who gets one, who must not, and what never commits."""

from raft_stories import deposed_with_tail, led

from raftq.ids import Index, ReplicaId, Term
from raftq.raft.membership import encode
from raftq.raft.messages import (
    SnapshotChunk,
    SnapshotReply,
)


def far_behind():
    """3 missed what 1 has compacted since."""
    cluster = led()
    cluster.isolate(3)
    for number in range(5):
        cluster.propose(1, b"%d" % number)
    cluster.advance(100_000)
    cluster.compact(1)
    cluster.heal()
    return cluster


def test_follower_behind_the_log_gets_the_snapshot_then_the_log():
    cluster = far_behind()
    cluster.advance(500_000)
    assert cluster.core(3).log.floor == cluster[1].log.snapshot.index
    index = cluster.propose(1, b"after")
    cluster.advance(100_000)
    assert cluster.converged()
    assert cluster.core(3).applied_index == index
    assert cluster[3].bodies == [b"after"]


def test_first_piece_of_a_snapshot_commits_nothing():
    """The receiver's own unverified tail stays unverified, whatever the snapshot says."""
    cluster = led()
    deposed_with_tail(cluster)
    cluster.compact(2)
    cluster.heal()
    committed = cluster.core(1).commit_index
    cluster.wire.clear()
    meta = cluster[2].log.snapshot
    cluster.step(
        SnapshotChunk(
            ReplicaId(2), ReplicaId(1), cluster.core(2).term, meta.index, meta.term, meta.chain,
            meta.log_time, encode(meta.membership), 0, b"st", done=False,
        )
    )  # fmt: skip
    assert cluster.core(1).commit_index == committed
    assert b"LOST-1" not in cluster[1].bodies
    cluster.advance(500_000)
    assert cluster.converged()


def test_lost_pieces_are_sent_again():
    cluster = far_behind()
    count = [0]

    def lossy(message):
        if isinstance(message, SnapshotChunk | SnapshotReply):
            count[0] += 1
            return count[0] % 3 == 0
        return False

    cluster.drop = lossy
    cluster.advance(3_000_000)
    assert cluster.converged()


def test_snapshot_at_or_below_the_commit_index_is_acknowledged_not_installed():
    cluster = led()
    for number in range(3):
        cluster.propose(1, b"%d" % number)
    cluster.advance(100_000)
    cluster.compact(1, Index(2))
    meta = cluster[1].log.snapshot
    replies = []
    cluster.drop = lambda m: isinstance(m, SnapshotReply) and bool(replies.append(m))
    before = cluster.core(2).last_index
    cluster.step(
        SnapshotChunk(
            ReplicaId(1), ReplicaId(2), cluster.core(1).term, meta.index, meta.term, meta.chain,
            meta.log_time, encode(meta.membership), 0, b"whatever", done=True,
        )
    )  # fmt: skip
    assert replies[0].installed
    assert cluster.core(2).last_index == before
    assert cluster.core(2).log.floor == 0


def test_invalid_snapshot_is_not_installed():
    cluster = far_behind()
    cluster.answer_chunk = lambda node, request: node.core.snapshot_chunk(
        request.to, request.position, b"rot", done=True
    )
    cluster.advance(300_000)
    assert cluster.core(3).log.floor == 0
    assert cluster.core(3).commit_index < cluster[1].log.snapshot.index
    del cluster.answer_chunk
    cluster.advance(1_000_000)
    assert cluster.converged()


def test_pieces_of_two_leaders_are_not_joined():
    cluster = far_behind()
    cluster.deliver(only=lambda m: not isinstance(m, SnapshotChunk))
    cluster.advance(60_000, deliver=False)
    cluster.deliver(only=lambda m: not isinstance(m, SnapshotChunk))
    first = next((m for m in cluster.wire if isinstance(m, SnapshotChunk)), None)
    assert first is not None
    cluster.step(first)
    assert cluster.core(3).incoming_bytes == 2
    other = first._replace(sender=ReplicaId(2), term=Term(first.term + 1), position=2)
    cluster.step(other)
    assert cluster[3].incoming == first.data


def test_piece_that_could_not_be_read_is_asked_for_again():
    """The shell may fail to read its snapshot once; the follower is not forgotten."""
    cluster = far_behind()
    asked = []
    cluster.answer_chunk = lambda node, request: asked.append(request)
    cluster.advance(400_000)
    assert len(asked) > 1
    del cluster.answer_chunk
    cluster.advance(500_000)
    assert cluster.converged()


def test_entries_that_came_while_a_snapshot_was_checked_are_kept():
    """They may have been acknowledged: a snapshot that they agree with moves the commit only."""
    cluster = far_behind()
    waiting = []
    cluster.snapshot_complete = lambda node, index, valid: waiting.append((node, index, valid))
    cluster.advance(300_000)
    assert waiting
    # A new leader that still has the whole log brings 3 up before its check is done.
    cluster.elect(2)
    cluster.propose(2, b"more")
    cluster.advance(300_000)
    end = cluster.core(3).last_index
    assert end == cluster.core(2).last_index
    for node, index, valid in waiting:
        node.core.snapshot_received(index, valid=valid)
        cluster.pump(node)
    assert cluster.core(3).last_index == end
    assert cluster.core(3).log.floor == 0
