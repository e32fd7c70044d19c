"""`Raft`: the face of the core. Dispatch of messages, time, proposals, `Ready`, completions.

The rules are in the package's docstring; what each role does is in the module of that role. This
module must not decide anything that belongs to a role.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from raftq.errors import Corrupted
from raftq.ids import NOBODY, Index, Micros, ReplicaId, WriteSeq
from raftq.limits import MAX_APPEND_BYTES
from raftq.raft import (
    changes,
    commit,
    election,
    following,
    handover,
    replication,
    snapshots,
)
from raftq.raft.entry import COMMANDS, Command, Entry
from raftq.raft.faults import NONE, Faults
from raftq.raft.membership import Membership
from raftq.raft.messages import (
    Amnesiac,
    Append,
    AppendReply,
    Heartbeat,
    HeartbeatReply,
    Message,
    SnapshotChunk,
    SnapshotReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from raftq.raft.ready import UNLIMITED, Allowance, HardState, LogReader, Ready, SnapshotMeta
from raftq.raft.replica import Replica, Role
from raftq.raft.status import Status, describe

__all__ = ["NotLeader", "Raft", "Role", "Status"]

CHECKPOINTS_KEPT: Final = 8
"""Own machine digests remembered for comparison: the leader may be ahead or behind by some."""


class NotLeader(Exception):
    """This replica does not take proposals now; `leader` does, as far as known."""

    def __init__(self, leader: ReplicaId) -> None:
        super().__init__(f"replica {leader} leads" if leader else "no leader is known")
        self.leader = leader


def _on_amnesiac(core: Replica, message: Amnesiac) -> None:
    if core.role is Role.LEADER:
        replication.on_amnesiac(core, message)
    else:
        following.on_amnesiac(core, message)


_Handler = Callable[[Replica, Any], None]
_FROM_LEADER: Final[dict[type, _Handler]] = {
    Append: following.on_append,
    Heartbeat: following.on_heartbeat,
    SnapshotChunk: following.on_snapshot_chunk,
}
_VOTES: Final[dict[type, _Handler]] = {
    VoteRequest: election.on_vote_request,
    VoteReply: election.on_vote_reply,
}
_TO_LEADER: Final[dict[type, _Handler]] = {
    AppendReply: replication.on_append_reply,
    HeartbeatReply: replication.on_heartbeat_reply,
    SnapshotReply: snapshots.on_snapshot_reply,
    TimeoutNow: election.on_timeout_now,
    Amnesiac: _on_amnesiac,
}
_KNOW_TERMS: Final = {**_FROM_LEADER, **_VOTES}
"""Kinds whose handlers deal with terms themselves; any other of a higher term deposes first."""


class Raft(Replica):
    """One replica's share of one group."""

    def __init__(
        self,
        *,
        replica: ReplicaId,
        state: HardState,
        log: LogReader,
        draw: Callable[[int], int],
        monotonic: Micros,
        wall: Micros,
        may_vote: bool = True,
        faults: Faults = NONE,
        allowance: Allowance = UNLIMITED,
    ) -> None:
        super().__init__(
            replica=replica,
            state=state,
            log=log,
            draw=draw,
            monotonic=monotonic,
            wall=wall,
            may_vote=may_vote,
            faults=faults,
            allowance=allowance,
        )
        self.clocks.hear(replica, wall - monotonic)
        election.start(self)

    # --- What the shell looks at --------------------------------------------------------------

    @property
    def last_index(self) -> Index:
        return self.log.last_index

    @property
    def durable_index(self) -> Index:
        """End of what is synced of the log as it is now."""
        return self.persistence.index

    @property
    def membership(self) -> Membership:
        return self.log.membership

    def membership_at(self, index: Index) -> Membership:
        """The configuration as of `index`: what a machine snapshot taken there must carry."""
        return self.log.membership_at(index)

    def next_deadline(self) -> Micros:
        """Monotonic time at which `tick` must be called at the latest."""
        if self.role is Role.LEADER:
            return self.heartbeat_at
        return min(self.election_deadline, self.fast_deadline)

    def status(self) -> Status:
        return describe(self)

    # --- What comes in ------------------------------------------------------------------------

    def tick(self, monotonic: Micros, wall: Micros) -> None:
        """Time passes. Messages are judged at the time of the last tick before them."""
        assert monotonic >= self.now
        if wall - monotonic != self.wall - self.now:
            self.clocks.hear(self.replica, wall - monotonic)
        self.now = monotonic
        self.wall = wall
        if self.role is Role.LEADER:
            replication.tick(self)
        elif self.diverged is None:
            election.tick(self)

    def step(self, message: Message) -> None:
        """A peer said something."""
        assert message.to == self.replica
        if self.diverged is not None:
            return
        kind = type(message)
        if message.term > self.term and kind not in _KNOW_TERMS:
            self.become_follower(message.term, NOBODY)
        _HANDLERS[kind](self, message)

    def link_lost(self, replica: ReplicaId) -> None:
        """An established link to `replica` broke."""
        if self.role is Role.LEADER:
            replication.link_down(self, replica)
        else:
            election.leader_link_lost(self, replica)

    def link_up(self, replica: ReplicaId) -> None:
        """A link to `replica` was established: probe at once instead of at the next heartbeat."""
        if self.role is Role.LEADER:
            replication.link_up(self, replica)
        else:
            election.leader_link_up(self, replica)

    # --- What is asked for --------------------------------------------------------------------

    def can_propose(self) -> bool:
        return (
            self.role is Role.LEADER
            and self.applied_index >= self.term_start
            and (self.transfer_to == NOBODY or not handover.is_closed(self))
        )

    def log_time(self) -> Micros:
        """The stamp for the next entry."""
        return commit.log_time(self)

    def propose(self, commands: Sequence[Command], log_time: Micros) -> Index:
        """Append one entry. Its index says nothing yet: it may still be truncated.

        Raises: NotLeader, also before the no-op is applied and at the end of a hand-over.
        """
        if not self.can_propose():
            raise NotLeader(self.leader if self.role is not Role.LEADER else NOBODY)
        return commit.append(self, COMMANDS, commands, log_time)

    def propose_membership(self, wanted: Membership) -> Index:
        """Begin a change to other voters and learners; see `changes.py`.

        The index is that of the first step. A second one, if it takes one, follows by itself.

        Raises: NotLeader, ChangeRefused.
        """
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader)
        return changes.propose(self, wanted)

    def read_index(self, context: object) -> None:
        """Ask for a linearizable read; its index comes with `context` in a later Ready.

        Raises: NotLeader.
        """
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader)
        self.reads_asked.append(context)

    def transfer_leadership(self, to: ReplicaId) -> bool:
        """Hand over to another voter after it has caught up. Given up an election timeout after
        the first wish.

        False if `to` is not another voter of the present configuration.

        Raises: NotLeader.
        """
        if self.role is not Role.LEADER:
            raise NotLeader(self.leader)
        return handover.begin(self, to)

    # --- What goes out, and its completions ---------------------------------------------------

    def ready(self) -> Ready | None:
        """The next portion of work, or None. Contract: `ready.py`."""
        if self.diverged is not None:
            return None
        if self.role is Role.LEADER:
            replication.flush(self)
            if self.log.damaged:
                self.become_follower(self.term, NOBODY)
        persistence = self.persistence
        write = persistence.take(
            self.log, self.term, self.vote, self.commit_index, self.commit_chain
        )
        if self.send_after and persistence.idle:
            self.send_now += self.send_after
            self.send_after = []
        apply = self._next_to_apply() if self.apply_next <= self.commit_index else ()
        if not (
            write is not None
            or self.send_now
            or self.send_after
            or apply
            or self.confirmed_reads
            or self.installed is not None
            or self.snapshot_requests
            or self.snapshot_chunks
        ):
            return None
        ready = Ready(
            write,
            tuple(self.send_now),
            tuple(self.send_after),
            persistence.seq,
            apply,
            tuple(self.confirmed_reads),
            self.installed,
            tuple(self.snapshot_requests),
            tuple(self.snapshot_chunks),
        )
        self.send_now = []
        if self.send_after:
            self.send_after = []
        if self.confirmed_reads:
            self.confirmed_reads = []
        self.installed = None
        if self.snapshot_requests:
            self.snapshot_requests = []
        if self.snapshot_chunks:
            self.snapshot_chunks = []
        return ready

    def _next_to_apply(self) -> tuple[Entry, ...]:
        """Committed entries that were not handed out, about one append's worth."""
        log = self.log
        start, stop = self.apply_next, Index(self.commit_index + 1)
        if start == self.unreadable:
            return ()
        try:
            entries = log.entries(start, stop, MAX_APPEND_BYTES)
        except (Corrupted, LookupError):
            # One by one up to what is damaged; there it waits for the repair.
            try:
                entries = log.entries(start, Index(start + 1), 1)
            except (Corrupted, LookupError):
                self.unreadable = start
                log.note_damage(start)
                return ()
        self.apply_next = Index(start + len(entries))
        return tuple(entries)

    def persisted(self, seq: WriteSeq) -> None:
        """Every write up to `seq` is synced."""
        if not self.persistence.persisted(seq) or self.diverged is not None:
            return
        if self.role is Role.LEADER:
            self.matches[self.replica] = durable = self.persistence.index
            if durable > self.commit_index:
                commit.advance_commit(self)
        else:
            election.persisted(self)

    def applied(self, index: Index) -> None:
        """The machine has applied everything up to `index`."""
        assert index < self.apply_next
        if index <= self.applied_index:
            # A snapshot was installed meanwhile.
            return
        self.applied_index = index
        self.log.evict(min(index, self.persistence.index))

    def checkpoint(self, index: Index, digest: bytes) -> None:
        """The own machine's digest at `index`, to be compared with the leader's."""
        self.checkpoints[index] = digest
        if len(self.checkpoints) > CHECKPOINTS_KEPT:
            del self.checkpoints[min(self.checkpoints)]
        if self.role is Role.LEADER:
            self.checkpoint_claim = (index, digest)
        else:
            self.compare_checkpoints()

    def compacted(self) -> None:
        """The log's snapshot moved: forget what lies below it."""
        self.log.compacted()

    def repaired(self) -> None:
        """What was unreadable in the log can be read again."""
        self.log.damaged = Index(0)
        self.unreadable = Index(0)

    def snapshot_chunk(
        self, to: ReplicaId, meta: SnapshotMeta, position: int, data: bytes, done: bool
    ) -> None:
        """The piece of an own snapshot that a Ready asked for."""
        if self.role is Role.LEADER:
            snapshots.send_chunk(self, to=to, meta=meta, position=position, data=data, done=done)

    def snapshot_gone(self, to: ReplicaId, index: Index) -> None:
        """The snapshot that a Ready asked for a piece of is not held, or cannot be read."""
        if self.role is Role.LEADER:
            snapshots.snapshot_gone(self, to=to, index=index)

    def snapshot_received(self, index: Index, *, valid: bool) -> None:
        """All pieces of the snapshot at `index` were kept and checked."""
        if self.diverged is None:
            following.snapshot_received(self, index, valid=valid)


_HANDLERS: Final[dict[type, _Handler]] = {
    **_FROM_LEADER,
    **_VOTES,
    **_TO_LEADER,
}
