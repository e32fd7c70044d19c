"""One replica on this node: core, log and machine, joined by the ready loop.

The order inside a turn is what the promises rest on:

    admit -> propose -> write (and ask for the sync) -> send -> apply -> answer

and, on a completed sync: release what waited for it -> commit -> apply -> answer -> next turn.

This file knows nothing of sockets and queues: messages leave through `send`, replies through the
proposer's callback.
"""

from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from raftq.env import Environment
from raftq.errors import Busy, RaftqError, StorageFull
from raftq.host.catch_up import CatchUpBudget, CatchUpShare
from raftq.host.checkpoints import Snapshotter
from raftq.host.disk_alarm import DiskAlarm, full_text
from raftq.host.log_time_alarm import LogTimeAlarm
from raftq.host.mending import Mending
from raftq.host.observer import Observer
from raftq.host.proposals import NEVER, Done, Place, Proposal, Proposals, Redirect
from raftq.host.reads import Reads
from raftq.host.retention import Retention
from raftq.host.succession import Succession
from raftq.host.ticks import Ticks
from raftq.host.transfers import Transfers
from raftq.host.tuning import DEFAULT_TUNING, Tuning
from raftq.host.witness import Witness
from raftq.ids import NOBODY, GroupId, Index, Micros, ReplicaId, Term, WriteSeq
from raftq.limits import HOLD_MICROS, PENDING_BYTES_MAX
from raftq.machine import Admission, Buffer, Machine, Meta
from raftq.observability.logs import logger
from raftq.raft import Entry, Message, NotLeader, Raft, Role
from raftq.raft.entry import COMMANDS, NOOP, commands, is_whole
from raftq.raft.faults import NONE, Faults
from raftq.storage.group_log import GroupLog
from raftq.wire.repair_messages import RepairMessage

_log = logger("raftq.host")


class Group:
    """One replica. Created by the host, which gives it messages, time and a way to send."""

    def __init__(
        self,
        *,
        group: GroupId,
        replica: ReplicaId,
        nodes: Mapping[ReplicaId, str],
        log: GroupLog,
        machine: Machine,
        environment: Environment,
        loop: AbstractEventLoop,
        send: Callable[[str, GroupId, Message], None],
        send_repair: Callable[[str, GroupId, RepairMessage], None],
        schedule: Callable[["Group"], None],
        observer: Observer,
        budget: CatchUpBudget,
        may_vote: bool = True,
        faults: Faults = NONE,
        tuning: Tuning = DEFAULT_TUNING,
        witness: Witness | None = None,
    ) -> None:
        self.group = group
        self.replica = replica
        self.nodes = dict(nodes)
        self.log = log
        self.machine = machine
        self.quarantined: str | None = None
        self.leading = False
        self.turn_wanted = False
        self._clock = environment.clock
        self._loop = loop
        self._send = send
        self._schedule = schedule
        self._observer = observer
        self._witness = witness
        self._proposals = Proposals()
        self._after: deque[tuple[WriteSeq, tuple[Message, ...]]] = deque()
        self._persisted = log.state.last_write
        self._admission: Admission | None = None
        self._ticks = Ticks(self)
        self._reads = Reads()
        self._effects: list[object] = []
        self._amnesia_noted = not may_vote
        self._leader_told = NOBODY
        self.succession = Succession(self, observer)
        self.log_time_alarm = LogTimeAlarm(group)
        self._disk_alarm = DiskAlarm(group, self.nodes.get(replica))
        self.stopped = False
        if log.contradictions:
            self.quarantined = f"damaged beyond repair: {'; '.join(log.contradictions)}"
        self.restore()
        self.snapshotter = Snapshotter(self, loop, tuning)
        self._budget = budget
        self._transfers = Transfers(self, CatchUpShare(budget))
        log.on_persisted = self._on_persisted
        log.on_failure = self._on_failure
        self.mending = Mending(self, environment, send_repair, faults, budget)
        self.raft: Raft = self.mending.make_core(
            log.state, may_vote=may_vote and not log.is_amnesiac
        )
        self.retention = Retention(self, environment.clock, tuning)
        self.deadline: Micros = self._clock.monotonic()

    def restore(self) -> None:
        """The machine begins anew from the newest snapshot, or empty where there is none."""
        meta = self.log.snapshot
        stored = None if self.log.needs_snapshot else self.log.read_snapshot()
        if stored is not None:
            assert stored[0].index == meta.index
            self.machine.restore(stored[1])
        self.applied_index = meta.index
        self.applied_term = meta.term
        self._applied_log_time = meta.log_time
        if self._witness is not None:
            self._witness.restored(self)

    # --- What others ask for ------------------------------------------------------------------

    @property
    def persisted(self) -> WriteSeq:
        """Every write up to this one is synced."""
        return self._persisted

    @property
    def leader_node(self) -> str | None:
        """The node that leads, or is about to, as far as this replica knows."""
        return self.nodes.get(self.raft.expected_leader)

    def redirect(self, *, applied: bool = False) -> RaftqError:
        """What a proposer is told by a replica that does not lead."""
        leader = self.leader_node
        if leader == self.nodes.get(self.replica):
            leader = None
        return Redirect(leader, applied=applied)

    def propose(
        self,
        header: bytes,
        body: Buffer,
        done: Done,
        *,
        reserve: bool = False,
        timeout: Micros | None = None,
    ) -> None:
        """Have a command committed and applied; `done` hears exactly once.

        `reserve`: it may use the disk's reserve, because it frees space or keeps the group alive.
        `timeout`: it is refused if it has not entered the log by then; a little later, at a turn.
        """
        if not self.leading or self.quarantined or self.stopped:
            done(self.redirect(), None)
            return
        pending = self._proposals.pending_bytes
        if pending and pending + len(header) + len(body) > PENDING_BYTES_MAX:
            done(Busy("too much is waiting for the disk; slow down", retry_after=0.02), None)
            return
        if self.log.is_full and not reserve:
            done(StorageFull(full_text(self.nodes.get(self.replica))), None)
            return
        now = self._clock.monotonic()
        give_up_at = NEVER if timeout is None else Micros(now + timeout)
        self._proposals.add(Proposal(header, body, done, give_up_at), now)
        self.want_turn()

    def read(self, done: Done) -> None:
        """Call `done` once the applied state is at least as new as any acknowledged command."""
        if not self.leading or self.quarantined or self.stopped:
            done(self.redirect(), None)
            return
        try:
            self.raft.read_index(done)
        except NotLeader:
            done(self.redirect(), None)
            return
        self._reads.ask(done)
        self.want_turn()

    def step(self, message: Message) -> None:
        """A peer's replica said something."""
        if self.quarantined or self.stopped:
            return
        self._tell_time()
        self.raft.step(message)
        self.want_turn()

    def want_turn(self) -> None:
        if not self.turn_wanted and not self.stopped:
            self.turn_wanted = True
            self._schedule(self)

    def link_lost(self, node: str) -> None:
        self._on_link(node, self.raft.link_lost)

    def link_up(self, node: str) -> None:
        self._on_link(node, self.raft.link_up)

    def _on_link(self, node: str, tell: Callable[[ReplicaId], None]) -> None:
        if self.quarantined or self.stopped:
            return
        self._tell_time()
        for replica, name in self.nodes.items():
            if name == node and replica != self.replica:
                tell(replica)
                self.want_turn()

    def transfer(self, node: str) -> None:
        """Hand leadership to the replica on `node`, once it has caught up."""
        for replica, name in self.nodes.items():
            if name == node and replica != self.replica:
                self._tell_time()
                if self.raft.role is Role.LEADER:
                    self.raft.transfer_leadership(replica)
                self.want_turn()

    def stop(self) -> None:
        """Stop taking part; proposers hear that the outcome is unknown."""
        if not self.stopped:
            self.stopped = True
            self._fail_waiting()
            self.log.on_persisted = lambda _: None
            self.log.on_failure = lambda _: None
            try:
                self.log.close()
            except OSError as error:
                # What was reported is safe; the other groups of the node must be closed too.
                _log.error("log not closed", group=self.group, error=str(error))

    # --- The turn -----------------------------------------------------------------------------

    def _tell_time(self) -> None:
        self.raft.tick(self._clock.monotonic(), self._clock.wall())

    def turn(self) -> None:
        """Do what there is to do; called by the host when a turn was wanted or is due."""
        self.turn_wanted = False
        if self.stopped or self.quarantined:
            return
        now = self._clock.monotonic()
        self.raft.tick(now, self._clock.wall())
        self.log.tick(now)
        self.mending.tick(now)
        self.retention.tick(now)
        self._transfers.tick(now)
        self._disk_alarm.look(is_full=self.log.is_full, now=now)
        self._drain()
        self._watch_role()
        if self.leading:
            self.succession.mind_the_disk(now)
            self._ticks.propose()
            self._proposals.refuse_late(now)
            self._append(now)
        if self._effects:
            effects, self._effects = self._effects, []
            if self.leading:
                self._observer.effects(self, effects)
        if not self.raft.may_vote and not self._amnesia_noted:
            self._amnesia_noted = True
            self._observer.forgot(self)
        if self.raft.diverged is not None and not self.quarantined:
            self.quarantine(self.raft.diverged)
        self._set_deadline(now)

    def _set_deadline(self, now: Micros) -> None:
        deadline = min(
            self.raft.next_deadline(),
            self.mending.deadline,
            self.retention.deadline,
            self._transfers.deadline,
        )
        log_deadline = self.log.next_deadline()
        if log_deadline is not None and log_deadline < deadline:
            deadline = log_deadline
        if self._proposals.is_pending:
            hold = Micros(max(self._proposals.pending_since + HOLD_MICROS, now + 1_000))
            deadline = min(deadline, hold)
        if self.leading:
            deadline = min(deadline, self._ticks.deadline(now))
        self.deadline = deadline

    def _append(self, now: Micros) -> None:
        """Make entries of what is pending, unless it had better wait for the outstanding sync."""
        assert self._admission is not None
        proposals = self._proposals
        # At the end of a hand-over nothing is taken: who waits then never entered the log.
        while (
            self.raft.can_propose()
            and not self.log.is_busy
            and proposals.is_due(
                now=now, unsynced_bytes=self.log.unsynced_bytes, applied=self.applied_index
            )
        ):
            index = Index(self.raft.last_index + 1)
            log_time = self.raft.log_time()
            batch = proposals.take(
                self._admission, index=index, log_time=log_time, place=self._place
            )
            if batch:
                self.log_time_alarm.entry(log_time, now=now, wall=self.raft.wall)
                appended = self.raft.propose(batch, log_time)
                assert appended == index
                size = sum(len(command.body) for command in batch)
                proposals.proposed(index, self.raft.term, size)
                self._drain()

    def _place(self, index: Index) -> Place | None:
        """Where an applied command stands; zeros for what the log does not hold any more."""
        if index > self.applied_index:
            return None
        return Place(
            index,
            self.log.term(index) or Term(0),
            self.log.chain(index) or bytes(16),
            self.log.log_time(index) or Micros(0),
        )

    def _drain(self) -> None:
        while (ready := self.raft.ready()) is not None:
            if self._witness is not None:
                self._witness.ready(self, ready)
            if ready.write is not None:
                self.log.write(ready.write)
                if self.stopped:
                    return  # The disk failed, and everybody who waited has heard.
            if ready.snapshot is not None:
                self.restore()
                self.retention.reach_back()
                self.mending.look()
            self._send_all(ready.send_now)
            if ready.send_after:
                if ready.after_seq <= self._persisted:
                    self._send_all(ready.send_after)
                else:
                    self._after.append((ready.after_seq, ready.send_after))
            if ready.apply:
                self._apply(ready.apply)
            self._reads.confirmed(ready.reads)  # type: ignore[arg-type]
            self._reads.serve(self.applied_index, self._place)
            if ready.snapshot_send or ready.snapshot_receive:
                self._transfers.serve(ready, self.raft.now)

    def _send_all(self, messages: Sequence[Message]) -> None:
        for message in messages:
            node = self.nodes.get(message.to)
            if node is not None:
                self._send(node, self.group, message)

    def _on_persisted(self, seq: WriteSeq) -> None:
        if self.stopped:
            return
        self._persisted = seq
        while self._after and self._after[0][0] <= seq:
            self._send_all(self._after.popleft()[1])
        self._tell_time()
        self.raft.persisted(seq)
        self.want_turn()

    def _on_failure(self, error: OSError) -> None:
        _log.error("disk failed", group=self.group, error=str(error))
        self.stopped = True
        self._fail_waiting()
        self._observer.failed(self, error)

    # --- Applying -----------------------------------------------------------------------------

    def _apply(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            self._apply_entry(entry)
        last = entries[-1]
        self.raft.applied(last.index)
        self.log.set_commit(last.index, last.chain)
        self._budget.applied(sum([entry.size for entry in entries]))
        if self._admission is not None:
            self._admission.applied(last.index)
        self._observer.applied(self)

    def _apply_entry(self, entry: Entry) -> None:
        assert entry.index == self.applied_index + 1, "entries are applied in order, each once"
        assert is_whole(entry), "a digest is no body"
        replies: list[object] = []
        if entry.kind == COMMANDS:
            machine = self.machine
            for position, (header, body) in enumerate(commands(entry)):
                meta = Meta(entry.index, entry.term, entry.log_time, position)
                result = machine.apply(meta, header, body)
                replies.append(result.reply)
                if result.effects:
                    self._effects += result.effects
        elif entry.kind == NOOP:
            gap = Micros(max(entry.log_time - self._applied_log_time, 0))
            self.machine.leader_changed(Meta(entry.index, entry.term, entry.log_time, 0), gap)
        self.applied_index = entry.index
        self.applied_term = entry.term
        self._applied_log_time = entry.log_time
        place = Place(entry.index, entry.term, entry.chain, entry.log_time)
        self._proposals.applied(entry, replies, place, self.redirect)
        self.snapshotter.applied(entry)
        if self._witness is not None:
            self._witness.applied(self, entry)

    # --- Roles --------------------------------------------------------------------------------

    def _watch_role(self) -> None:
        can_propose = self.raft.can_propose()
        if can_propose and not self.leading:
            self.leading = True
            self._admission = self.machine.admission()
            self._ticks.begin()
            self.log_time_alarm.leadership_begins()
            _log.info("leading", group=self.group, term=self.raft.term)
            self._observer.led(self)
        elif not can_propose and self.leading and self.raft.role is not Role.LEADER:
            self.leading = False
            self._admission = None
            _log.info("deposed", group=self.group, term=self.raft.term)
            self._fail_waiting()
            self._observer.deposed(self)
        if self.raft.leader != self._leader_told:
            self._leader_told = self.raft.leader
            if self._leader_told not in {NOBODY, self.replica}:
                self._observer.follows(self)

    def _fail_waiting(self) -> None:
        """Proposers of this leadership hear now; what they proposed may still commit."""
        self._reads.fail(self.redirect)
        self._proposals.fail(unknown=self.redirect(applied=True), not_applied=self.redirect())

    def quarantine(self, reason: str) -> None:
        """Take no part any more, keep every byte, say why."""
        _log.error("replica quarantined", group=self.group, replica=self.replica, reason=reason)
        self.quarantined = reason
        was_leading, self.leading = self.leading, False
        self._admission = None
        self._fail_waiting()
        if was_leading:
            self._observer.deposed(self)
