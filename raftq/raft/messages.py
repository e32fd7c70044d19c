"""What replicas of a group say to each other. Plain values: bytes are the business of `wire`.

Every message carries `sender`, `to` (replica ids, never reused) and `term`. Cluster, group and node
incarnations are the link's: a message that does not fit them never reaches a core.

`wall` is the sender's wall clock in microseconds: leaders keep each voter's clock as an offset to
their own monotonic clock, from which log time is made (`clock.py`).
"""

from typing import NamedTuple

from raftq.ids import Index, Micros, ReplicaId, Term
from raftq.raft.entry import Entry


class VoteRequest(NamedTuple):
    """Please elect me in `term`. With `pre` only: would you? (`term` is then the one asked about.)

    `link_lost`: the asker campaigns because an established link to the leader broke.
    """

    sender: ReplicaId
    to: ReplicaId
    term: Term
    last_index: Index
    last_term: Term
    pre: bool
    link_lost: bool = False


class VoteReply(NamedTuple):
    """The answer. For a granted pre-vote `term` is the one asked about, else the replier's own."""

    sender: ReplicaId
    to: ReplicaId
    term: Term
    granted: bool
    pre: bool
    wall: Micros


class Append(NamedTuple):
    """Entries after (prev_index, prev_term, prev_chain); none is a probe."""

    sender: ReplicaId
    to: ReplicaId
    term: Term
    prev_index: Index
    prev_term: Term
    prev_chain: bytes
    commit_index: Index
    entries: tuple[Entry, ...]


class AppendReply(NamedTuple):
    """`success`: everything up to `match_index` is synced here and equal to the sender's log.

    Otherwise the log does not hold (prev_index, prev_chain): `hint_index` is the highest index at or
    below prev_index that might, by what this replica knows, with its `hint_term`; `refused_index`
    repeats the refused prev_index so that a late refusal is recognised. `last_index` is the end of
    the replier's log; `whole`: nothing of that log, nor of the machine, is lost there.
    """

    sender: ReplicaId
    to: ReplicaId
    term: Term
    success: bool
    match_index: Index
    refused_index: Index
    hint_index: Index
    hint_term: Term
    last_index: Index
    wall: Micros
    whole: bool


class Heartbeat(NamedTuple):
    """The leader lives. Independent of the disk.

    A follower moves its commit to `commit_index` only where its own chain equals `commit_chain`.
    `round` numbers the leader's heartbeats: a read waits for replies to a later round.
    `checkpoint_index`, `checkpoint_digest`: the newest machine digest, for finding divergence.
    """

    sender: ReplicaId
    to: ReplicaId
    term: Term
    round: int
    commit_index: Index
    commit_chain: bytes
    checkpoint_index: Index
    checkpoint_digest: bytes


class HeartbeatReply(NamedTuple):
    """Heard. `last_index` is the end of the replier's log, synced or not.

    `whole` as in an `AppendReply`: who is not cannot lead.
    """

    sender: ReplicaId
    to: ReplicaId
    term: Term
    round: int
    last_index: Index
    wall: Micros
    whole: bool


class SnapshotChunk(NamedTuple):
    """A piece of the machine snapshot at (index, snapshot_term, chain).

    Chunks belong together only if index, chain and all else that says what the snapshot is agree;
    each counts only from the leader of the receiver's term. `position` is the first byte's place,
    `done` marks the last piece, `membership` is the configuration at `index`. `anew`, at position 0:
    let go of any other snapshot, of which I cannot give the rest.
    """

    sender: ReplicaId
    to: ReplicaId
    term: Term
    index: Index  # type: ignore[assignment] # Hides a method of tuples that nobody needs.
    snapshot_term: Term
    chain: bytes
    log_time: Micros
    membership: bytes
    position: int
    data: bytes
    done: bool
    anew: bool = False


class SnapshotReply(NamedTuple):
    """Bytes before `received` of snapshot (index, chain) are here; `installed` when all is and holds.

    It may speak of another snapshot than the one that a piece came of: then the receiver has a part
    of that one and would rather have the rest of it.
    """

    sender: ReplicaId
    to: ReplicaId
    term: Term
    index: Index  # type: ignore[assignment] # Hides a method of tuples that nobody needs.
    chain: bytes
    received: int
    installed: bool


class TimeoutNow(NamedTuple):
    """The leader hands over: campaign at once, without a pre-vote."""

    sender: ReplicaId
    to: ReplicaId
    term: Term


class Amnesiac(NamedTuple):
    """From a leader: in my term you reported a log end below what you acknowledged; stop voting.

    To a leader: I am one who lost what it had acknowledged; do not count me.
    """

    sender: ReplicaId
    to: ReplicaId
    term: Term


Message = (
    VoteRequest
    | VoteReply
    | Append
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | SnapshotChunk
    | SnapshotReply
    | TimeoutNow
    | Amnesiac
)
