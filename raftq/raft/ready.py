"""What the core asks its shell to do: the Ready contract, and the read port of the log.

The shell's side of the contract, in order:

1. Take `ready()` until it gives None, once per turn of its loop.
2. Hand `write` (if any) to the log in the order given; writes carry ascending `seq`. When the log
   says that everything up to a seq is *synced*, call `persisted(seq)`. Never earlier, never for
   another write: a seq names one write, an index does not (it can be truncated and written again).
3. Send `send_now` at once. Hold each of `send_after` until every write with
   seq <= `after_seq` is persisted, then send it; there is no deadline and no other order.
4. Apply `apply` in order, then call `applied(index of the last)`.
5. If `snapshot` is set, the log and the machine begin anew from it (the write says so too), before
   anything in `apply`.
6. A read in `reads` may be served once the machine has applied its index. A read that was asked for
   is never answered if this replica stops leading first: the shell fails it then.
7. For each of `snapshot_send` read a piece of that snapshot and call `snapshot_chunk`, at any later
   time, or `snapshot_gone` if it is not held; a request that is out of date then is ignored by the
   core. What is asked for is kept until it has not been asked for in a while, newer ones or not.
8. Keep the pieces in `snapshot_receive`, which come gapless from position 0 (a piece at position 0
   begins anew). After the last, check the whole and call `snapshot_received(index, valid=...)`;
   only then does the core install it.
"""

from typing import Final, NamedTuple, Protocol

from raftq.ids import Index, Micros, ReplicaId, Term, WriteSeq
from raftq.raft.entry import Entry
from raftq.raft.membership import Membership
from raftq.raft.messages import Message, SnapshotChunk


class SnapshotMeta(NamedTuple):
    """Where a machine snapshot stands in the log."""

    index: Index  # type: ignore[assignment] # Hides a method of tuples that nobody needs.
    term: Term
    chain: bytes
    log_time: Micros
    membership: Membership


class Write(NamedTuple):
    """One sequenced write: first reset or truncate, then append, and the state after it.

    `truncate_from` (0 = none): entries from this index on are void. `reset`: the log begins anew
    after this snapshot. `term`, `vote`, `last_index`, `last_term`, `last_chain` are as they are
    after the write; `commit_index`, `commit_chain` as known when it was made.
    """

    seq: WriteSeq
    reset: SnapshotMeta | None
    truncate_from: Index
    entries: tuple[Entry, ...]
    term: Term
    vote: ReplicaId
    last_index: Index
    last_term: Term
    last_chain: bytes
    commit_index: Index
    commit_chain: bytes


class SnapshotRequest(NamedTuple):
    """The piece of the own snapshot at `index` that begins at `position` is wanted by `to`."""

    to: ReplicaId
    index: Index  # type: ignore[assignment] # Hides a method of tuples that nobody needs.
    position: int


class Ready(NamedTuple):
    """One portion of work for the shell; see the contract above."""

    write: Write | None
    send_now: tuple[Message, ...]
    send_after: tuple[Message, ...]
    after_seq: WriteSeq
    apply: tuple[Entry, ...]
    reads: tuple[tuple[object, Index], ...]
    snapshot: SnapshotMeta | None
    snapshot_send: tuple[SnapshotRequest, ...] = ()
    snapshot_receive: tuple[SnapshotChunk, ...] = ()


class Allowance(Protocol):
    """What the shell lets the core spend on replicas that the group can do without.

    Entries for a replica that is far behind are read back from the log, in bulk. They leave only
    while the shell allows it. Who was refused asks again in a later `ready`, so the shell takes one
    when there is more to spend.
    """

    def may_spend(self) -> bool:
        """Whether one more append may leave now."""
        ...

    def spent(self, size: int) -> None:
        """So many bytes were sent."""
        ...


class Unlimited:
    """An allowance without end."""

    def may_spend(self) -> bool:
        return True

    def spent(self, size: int) -> None:
        """Nobody counts."""


UNLIMITED: Final = Unlimited()


class HardState(NamedTuple):
    """What a core starts from, as recovered from its log."""

    term: Term
    vote: ReplicaId
    commit_index: Index
    last_write: WriteSeq


class LogReader(Protocol):
    """The recovered and the evicted part of the log, as the core reads it. Never written here.

    Covers what was handed out in `Write`s (synced or not) and was recovered, except what was
    truncated or compacted away.
    """

    @property
    def snapshot(self) -> SnapshotMeta:
        """The newest durable snapshot; index 0 with the first membership when there is none."""
        ...

    @property
    def first_index(self) -> Index:
        """The lowest index whose whole entry can be read; last_index + 1 when there is none."""
        ...

    @property
    def last_index(self) -> Index: ...

    def term(self, index: Index) -> Term | None:
        """Term of the entry at `index`; also known at snapshot.index; None if not held."""
        ...

    def chain(self, index: Index) -> bytes | None: ...

    def log_time(self, index: Index) -> Micros | None: ...

    def entries(self, start: Index, stop: Index, max_bytes: int) -> list[Entry]:
        """Entries [start, stop), cut at `max_bytes` but at least one.

        Raises: Corrupted when damaged; LookupError when not held.
        """
        ...
