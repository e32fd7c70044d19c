"""Stories of snapshots: who gets one, who must not, and what never commits."""

import pytest
from raft_stories import deposed_with_tail, led

from raftq.ids import Index, Micros, ReplicaId, Term
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
        request.to, node.log.snapshot, request.position, b"rot", done=True
    )
    cluster.advance(300_000)
    assert cluster.core(3).log.floor == 0
    assert cluster.core(3).commit_index < cluster[1].log.snapshot.index
    del cluster.answer_chunk
    cluster.advance(1_000_000)
    assert cluster.converged()


def first_piece(cluster):
    """3 has got the first piece of the snapshot of 1, and its answer is on the way."""
    cluster.advance(60_000, deliver=False)
    while not cluster.core(3).incoming_bytes:
        piece = next((m for m in cluster.wire if isinstance(m, SnapshotChunk)), None)
        if piece is None:
            cluster.deliver_once()
            continue
        cluster.wire.remove(piece)
        cluster.step(piece)
    assert cluster.core(3).incoming_bytes == 2
    return piece


def replies(cluster):
    """What 3 says about snapshots, from now on; nothing of it arrives."""
    heard = []
    cluster.drop = lambda m: isinstance(m, SnapshotReply) and not heard.append(m)
    return heard


def test_the_next_leader_goes_on_where_another_one_stopped():
    """Both have the same snapshot: no byte of it is sent twice but one piece that asks."""
    cluster = far_behind()
    cluster.compact(2)
    first = first_piece(cluster)
    cluster.wire.clear()
    pieces = []
    cluster.drop = lambda m: isinstance(m, SnapshotChunk) and bool(pieces.append(m))
    cluster.elect(2)
    cluster.advance(500_000)
    assert cluster.core(3).log.floor == first.index
    assert {piece.sender for piece in pieces} == {2}
    assert [piece.position for piece in pieces] == [0, 2, 4, 6, 8, 10]
    assert cluster.converged()


@pytest.mark.parametrize(
    "changed",
    [
        {"chain": bytes(16)},
        {"index": Index(5)},
        {"snapshot_term": Term(9)},
        {"log_time": Micros(1)},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_pieces_of_another_snapshot_never_join(changed):
    cluster = far_behind()
    first = first_piece(cluster)
    heard = replies(cluster)
    cluster.step(first._replace(position=2, data=b"XX", **changed))
    assert cluster[3].incoming == first.data
    assert [(m.index, m.chain, m.received) for m in heard] == [(first.index, first.chain, 2)]
    cluster.drop = lambda _: False
    cluster.advance(500_000)
    assert cluster.converged()


def test_pieces_of_a_deposed_leader_are_refused():
    cluster = far_behind()
    first = first_piece(cluster)
    cluster.core(3).become_follower(Term(first.term + 1), ReplicaId(2))
    heard = replies(cluster)
    cluster.step(first._replace(position=2, data=b"XX"))
    assert cluster[3].incoming == first.data
    assert [(m.term, m.received, m.installed) for m in heard] == [(first.term + 1, 0, False)]


def test_a_part_of_which_nobody_has_the_rest_is_given_up():
    """2 leads now and has another snapshot: 3 says what it has, and is told to begin anew."""
    cluster = far_behind()
    first = first_piece(cluster)
    cluster.isolate(3)
    cluster.elect(2)
    cluster.propose(2, b"more")
    cluster.advance(100_000)
    cluster.compact(2)
    cluster.heal()
    assert cluster[2].log.snapshot.index > first.index
    pieces = []
    cluster.drop = lambda m: isinstance(m, SnapshotChunk) and bool(pieces.append(m))
    cluster.advance(500_000)
    assert cluster.core(3).log.floor == cluster[2].log.snapshot.index
    assert [piece.position for piece in pieces][:3] == [0, 0, 2]
    assert [piece.anew for piece in pieces][:3] == [False, True, False]


def test_a_transfer_ends_with_the_snapshot_that_it_began_with():
    """The leader takes newer ones meanwhile, quicker than one can be sent."""
    cluster = far_behind()
    first = first_piece(cluster)
    held = {}

    def answer(node, request):
        held[node.log.snapshot.index] = node.log.snapshot
        data = b"state at %d" % request.index
        piece = data[request.position : request.position + 2]
        done = request.position + 2 >= len(data)
        node.core.snapshot_chunk(request.to, held[request.index], request.position, piece, done)

    held[first.index] = cluster[1].log.snapshot
    cluster.answer_chunk = answer
    for number in range(4):
        cluster.propose(1, b"%d" % number)
        cluster.deliver_once()
        cluster.deliver_once()
        cluster.compact(1)
        assert cluster.core(1).progress[3].snapshot_index == first.index
    floors = set()
    while not cluster.converged():
        cluster.advance(500)
        floors.add(cluster.core(3).log.floor)
    assert first.index in floors


def test_lost_pieces_are_sent_again_and_no_others():
    cluster = far_behind()
    pieces = []

    def lossy(message):
        if not isinstance(message, SnapshotChunk):
            return False
        pieces.append(message.position)
        return len(pieces) % 3 == 0

    cluster.drop = lossy
    cluster.advance(3_000_000)
    assert cluster.converged()
    assert len(pieces) > 6
    assert pieces == sorted(pieces), "it goes on where the receiver is"


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
