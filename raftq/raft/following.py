"""What a leader sends, seen from the one who follows: entries, heartbeats, pieces of a snapshot.

Rules:

1. A lower term is answered with the own term, so that a deposed leader learns of it.
2. An append is accepted where the chain before it is equal. Entries that are here already are left
   alone; the log is truncated at the first entry that differs and nowhere else, and never at or
   below the commit index: that would break a promise, so this replica stops instead.
3. An append's answer speaks of what that append verified, not of the whole log, and leaves when
   that is durable.
4. Entries are verified against the chain before anything changes; one bad entry voids the message.
5. A heartbeat moves the commit index only where the own chain equals the one it carries. An unequal
   chain above the commit index is an ordinary conflict; at or below it, divergence.
6. Pieces of a snapshot are taken from the leader of the own term only, and joined only if all that
   says what the snapshot is agrees. So the next leader may go on where another one stopped, if it
   has the same; and where a replica has a part of one it says so, and begins another one only when
   its leader says that it has not the rest.
"""

from raftq.ids import NOBODY, Index, Micros, Term
from raftq.raft import membership as memberships
from raftq.raft.entry import Entry, is_whole, verify
from raftq.raft.messages import (
    Amnesiac,
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    SnapshotChunk,
    SnapshotReply,
)
from raftq.raft.ready import SnapshotMeta
from raftq.raft.replica import LONG_AGO, NEVER, Replica, Role


def hear_leader(follower: Replica, message: Append | Heartbeat | SnapshotChunk) -> bool:
    """A frame of the leader of this term, or of a later one. False if it leads no more."""
    if message.term < follower.term:
        return False
    sender = message.sender
    if (
        follower.leader != sender
        or message.term > follower.term
        or follower.role is not Role.FOLLOWER
    ):
        if message.term == follower.term and follower.role is Role.LEADER:
            follower.diverge(f"replica {sender} leads term {message.term} too")
            return False
        follower.become_follower(message.term, sender)
    follower.contact = now = follower.now
    follower.link_carried = True
    follower.lost_leader = NOBODY
    follower.fast_deadline = NEVER
    follower.fast_until = LONG_AGO
    follower.election_deadline = Micros(now + follower.election_timeout)
    return True


def on_append(follower: Replica, message: Append) -> None:
    if not hear_leader(follower, message):
        if follower.diverged is None:
            _refuse(follower, message, Index(0))
        return
    log = follower.log
    previous = message.prev_index
    if previous == log.last_index and message.prev_chain == log.last_chain:
        fresh = message.entries
    else:
        own = log.chain(previous)
        if own is None and previous < log.floor:
            _acknowledge_commit(follower, message)
            return
        if own != message.prev_chain:
            if own is not None and previous <= follower.commit_index:
                follower.diverge(f"the chain at committed index {previous} is not the leader's")
            else:
                _refuse(follower, message, _highest_that_might_agree(follower, message))
            return
        fresh = _not_here_yet(follower, message.entries)
    if fresh and not _accept(follower, message.term, fresh):
        return
    verified = Index(previous + len(message.entries))
    if follower.faults.truncates_what_agrees and message.entries and verified < log.last_index:
        log.truncate(Index(verified + 1))
        follower.persistence.void_from(Index(verified + 1))
    commit = min(message.commit_index, verified)
    if commit > follower.commit_index:
        follower.commit_to(commit)
    _acknowledge(follower, message, verified)


def _not_here_yet(follower: Replica, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Entries from the first on that the own log does not have."""
    log = follower.log
    for position, entry in enumerate(entries):
        own = log.chain(entry.index)
        if own is None and entry.index <= follower.commit_index:
            # Committed, but the place cannot be read: nothing to compare with, nothing to change.
            continue
        if own != entry.chain:
            return entries[position:]
    return ()


def _accept(follower: Replica, term: Term, fresh: tuple[Entry, ...]) -> bool:
    """Verify, truncate on conflict, append. False if nothing may be answered."""
    log = follower.log
    first = fresh[0].index
    link = log.chain(Index(first - 1))
    assert link is not None
    expected = first
    for entry in fresh:
        in_order = entry.index == expected and entry.term <= term
        if not in_order or not is_whole(entry) or not verify(entry, link):
            follower.corrupt_messages += 1
            return False
        link = entry.chain
        expected = Index(expected + 1)
    if first <= log.last_index:
        if first <= follower.commit_index:
            follower.diverge(f"the entry at committed index {first} is not the leader's")
            return False
        log.truncate(first)
        follower.persistence.void_from(first)
    for entry in fresh:
        log.append(entry)
    return True


def _acknowledge_commit(follower: Replica, message: Append) -> None:
    """The append begins below the own snapshot: what is committed here, every leader has."""
    _acknowledge(follower, message, follower.commit_index)


def _acknowledge(follower: Replica, message: Append, match: Index) -> None:
    persistence = follower.persistence
    reply = AppendReply(
        follower.replica,
        message.sender,
        follower.term,
        True,
        match,
        Index(0),
        Index(0),
        Term(0),
        follower.log.last_index,
        follower.wall,
        _is_whole(follower),
    )
    durable = match <= persistence.index and persistence.term == follower.term
    out = follower.send_now if durable or follower.faults.ack_before_fsync else follower.send_after
    if not follower.may_vote:
        out.append(Amnesiac(follower.replica, message.sender, follower.term))
    out.append(reply)


def _highest_that_might_agree(follower: Replica, message: Append) -> Index:
    """Whole terms are skipped; what is committed agrees in any case."""
    log = follower.log
    if message.prev_index > log.last_index:
        return log.last_index
    below = log.last_at_most(Index(message.prev_index - 1), message.prev_term)
    return max(below, follower.commit_index)


def _refuse(follower: Replica, message: Append, hint: Index) -> None:
    follower.send_now.append(
        AppendReply(
            follower.replica,
            message.sender,
            follower.term,
            False,
            Index(0),
            message.prev_index,
            hint,
            follower.log.term(hint) or Term(0),
            follower.log.last_index,
            follower.wall,
            _is_whole(follower),
        )
    )


def on_heartbeat(follower: Replica, message: Heartbeat) -> None:
    if hear_leader(follower, message):
        _compare_commit(follower, message)
    if follower.diverged is not None:
        return
    if message.checkpoint_index and message.term == follower.term:
        follower.checkpoint_claim = (message.checkpoint_index, message.checkpoint_digest)
        follower.compare_checkpoints()
    follower.send_now.append(
        HeartbeatReply(
            follower.replica,
            message.sender,
            follower.term,
            message.round,
            follower.log.last_index,
            follower.wall,
            _is_whole(follower),
        )
    )


def _is_whole(follower: Replica) -> bool:
    return not follower.log.damaged and not follower.unreadable


def _compare_commit(follower: Replica, message: Heartbeat) -> None:
    index = message.commit_index
    if index == follower.commit_index:
        own: bytes | None = follower.commit_chain
    elif follower.faults.heartbeat_commit_unchecked and index > follower.commit_index:
        follower.commit_to(max(follower.commit_index, min(index, follower.log.last_index)))
        return
    else:
        own = follower.log.chain(index)
    if own is None:
        return
    if index > follower.commit_index:
        if own == message.commit_chain:
            follower.commit_to(index)
    elif own != message.commit_chain:
        follower.diverge(f"the chain at committed index {index} is not the leader's")


def on_snapshot_chunk(follower: Replica, message: SnapshotChunk) -> None:
    if not hear_leader(follower, message):
        if follower.diverged is None:
            _report(follower, message, 0)
        return
    index = message.index
    if index > follower.commit_index and follower.log.chain(index) == message.chain:
        # The log goes as far as the snapshot and agrees with it.
        follower.commit_to(index)
    if index <= follower.commit_index:
        follower.incoming = None
        _installed(follower, message)
        return
    present = follower.incoming
    if present is not None and present.index > follower.commit_index and not message.anew:
        if not _belong_together(present, message):
            _report(follower, message, follower.incoming_bytes, of=present)
            return
    elif present is None or not _belong_together(present, message):
        if message.position:
            _report(follower, message, 0)
            return
        follower.incoming_bytes = 0
        follower.incoming_complete = False
    if message.position == follower.incoming_bytes and not follower.incoming_complete:
        follower.incoming_bytes += len(message.data)
        follower.incoming_complete = message.done
        follower.snapshot_chunks.append(message)
    # Whoever sent the newest piece hears what becomes of the whole.
    follower.incoming = message
    _report(follower, message, follower.incoming_bytes)


def _belong_together(one: SnapshotChunk, other: SnapshotChunk) -> bool:
    return (one.index, one.chain, one.snapshot_term, one.log_time, one.membership) == (
        other.index,
        other.chain,
        other.snapshot_term,
        other.log_time,
        other.membership,
    )


def _report(
    follower: Replica, message: SnapshotChunk, received: int, *, of: SnapshotChunk | None = None
) -> None:
    """To the sender of `message`: how much is here of that snapshot, or of another one."""
    what = of or message
    follower.send_now.append(
        SnapshotReply(
            follower.replica,
            message.sender,
            follower.term,
            what.index,
            what.chain,
            received,
            False,
        )
    )


def _installed(follower: Replica, message: SnapshotChunk) -> None:
    """Everything up to the snapshot holds here; said when it is durable."""
    durable = (
        follower.persistence.index >= message.index and follower.persistence.term == follower.term
    )
    reply = SnapshotReply(
        follower.replica, message.sender, follower.term, message.index, message.chain, 0, True
    )
    out = follower.send_now if durable else follower.send_after
    if not follower.may_vote:
        out.append(Amnesiac(follower.replica, message.sender, follower.term))
    out.append(reply)


def snapshot_received(follower: Replica, index: Index, *, valid: bool) -> None:
    """The shell has all of the snapshot and has checked it: install it, if it is still wanted."""
    piece = follower.incoming
    if piece is None or piece.index != index or not follower.incoming_complete:
        return
    follower.incoming = None
    if not valid:
        if follower.role is Role.FOLLOWER and piece.term == follower.term:
            _report(follower, piece, 0)
        return
    if index > follower.commit_index and follower.log.has_fresh(index, piece.chain):
        # Entries came meanwhile; those behind the snapshot may have been acknowledged.
        follower.commit_to(index)
    if index > follower.commit_index:
        meta = SnapshotMeta(
            index,
            piece.snapshot_term,
            piece.chain,
            piece.log_time,
            memberships.decode(piece.membership),
        )
        follower.log.install(meta)
        follower.persistence.void_from(Index(1))
        follower.commit_index = index
        follower.commit_chain = piece.chain
        follower.applied_index = index
        follower.apply_next = Index(index + 1)
        follower.installed = meta
    if piece.term == follower.term:
        _installed(follower, piece)


def on_amnesiac(follower: Replica, message: Amnesiac) -> None:
    """The leader of this term has proof that this replica lost what it had acknowledged."""
    if message.term == follower.term and message.sender == follower.leader:
        follower.may_vote = False
