"""What a replica lets go of, and when: history that was released, bodies that nobody needs.

Theory of operation. The machine says what is needed (`raftq.machine.Retaining`); the log knows where
it lies and how old it is (`raftq.storage.extent`); here both come together.

Released entries    The leader looks for the last entry R such that nobody needs a body at or before
                    it and all of that is older than the audit retention of its queue, or more than
                    the retention's bytes behind. It proposes to release up to R; apply judges that
                    again on every replica. Each replica then drops its files up to R, when its
                    machine has a snapshot behind it.
Dead bodies         Above R each replica packs what is settled and old enough, by itself: files need
                    not be equal, chains are.
Logs                Partitions that are logs forget by age and size: the leader proposes the bounds.

Rules

1. Nothing is judged by a clock of this node: log time is what all agree on.
2. While something is lost here nothing is decided, and nothing goes.
3. Work is done in slices of a few milliseconds, at a bounded pace.
4. When the disk is nearly full, history goes whatever its age: before publishes are refused.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from raftq.env import Clock
from raftq.host.tuning import Tuning
from raftq.ids import Index, Micros, Offset, Partition, QueueId, Term
from raftq.limits import COMPACTION_BYTES_PER_SECOND, SECOND
from raftq.machine import Bound, Kept, Retaining
from raftq.observability.logs import logger
from raftq.raft import SnapshotMeta
from raftq.raft.replica import NEVER
from raftq.storage.compaction import Judge

if TYPE_CHECKING:
    from raftq.host.group import Group

_log = logger("raftq.host")

_WAIT_MICROS: Final = 5_000
"""Between two steps of a pass, at least: other groups want the loop, or the disk is at work."""

_PRESSED_EVERY_MICROS: Final = 5 * SECOND


class Retention:
    """One group's."""

    def __init__(self, group: "Group", clock: Clock, tuning: Tuning) -> None:
        self._group = group
        self._tuning = tuning
        self._machine = group.machine if isinstance(group.machine, Retaining) else None
        now = clock.monotonic()
        self.deadline = Micros(now) if self._machine is not None else NEVER
        self._next_pass = Micros(now + tuning.retention_micros)
        self._next_expiry = Micros(now + tuning.expire_micros)
        self._pass: Iterator[int] | None = None
        self._bound = group.log.compaction.bound
        self._is_asking = False

    def tick(self, now: Micros) -> None:
        """Once a turn."""
        group, compaction = self._group, self._group.log.compaction
        if self._machine is None:
            return
        released, chain = self._machine.released
        if compaction.base.index < released <= compaction.bound:
            compaction.release(released, chain)
        if now < self.deadline and compaction.bound == self._bound:
            return
        if group.log.needs_snapshot:
            self.deadline = Micros(now + SECOND)
            return
        self.reach_back()
        if now >= self._next_expiry:
            self._next_expiry = Micros(now + self._tuning.expire_micros)
            if group.leading:
                self._expire()
        if self._pass is None and (now >= self._next_pass or self._bound != compaction.bound):
            self._begin(now)
        pause = NEVER if self._pass is None else self._go_on()
        next_look = self._next_pass if self._pass is None else NEVER
        self.deadline = min(next_look, self._next_expiry, Micros(now + pause))

    def reach_back(self) -> None:
        """A log that began with a peer's snapshot: what is live before it belongs to it too."""
        if self._machine is None:
            return
        compaction = self._group.log.compaction
        released, chain = self._machine.released
        if released < compaction.base.index:
            members = compaction.base.membership
            compaction.begin_before(SnapshotMeta(released, Term(0), chain, Micros(0), members))

    # --- A pass -------------------------------------------------------------------------------

    def _begin(self, now: Micros) -> None:
        group, log = self._group, self._group.log
        self._bound = log.compaction.bound
        every = _PRESSED_EVERY_MICROS if log.is_pressed else self._tuning.retention_micros
        self._next_pass = Micros(now + every)
        if not self._bound or log.holes:
            return
        if group.leading:
            self._release()
        self._pass = log.compaction.passes(self._judge())

    def _go_on(self) -> Micros:
        """One step of the pass; how long to rest then."""
        assert self._pass is not None
        size = next(self._pass, None)
        if size is None:
            self._pass = None
            return NEVER
        return Micros(max(size * SECOND // COMPACTION_BYTES_PER_SECOND, _WAIT_MICROS))

    def _judge(self) -> Judge:
        """Which bodies are dead, as of now."""
        machine, log = self._machine, self._group.log
        assert machine is not None
        kept = {(each.queue, each.partition): each for each in machine.kept()}
        is_pressed, log_time = log.is_pressed, self._log_time()
        newest = {
            key: log.extent.begin_of_newest(*key, each.audit_bytes) for key, each in kept.items()
        }

        def is_dead(
            queue: QueueId, partition: Partition, start: Offset, stop: Offset, published: Micros, /
        ) -> bool:
            found = kept.get((queue, partition))
            is_old = (
                found is None
                or is_pressed
                or published + found.audit_micros <= log_time
                or stop <= newest[queue, partition]
            )
            return is_old and machine.is_settled(queue, partition, start, stop)

        return is_dead

    def _log_time(self) -> Micros:
        group = self._group
        return group.raft.log_time() if group.leading else group.raft.log.last_log_time

    # --- What the leader proposes -------------------------------------------------------------

    def _release(self) -> None:
        """Propose to release what nobody needs and what has been kept long enough."""
        machine, log = self._machine, self._group.log
        assert machine is not None
        kept = machine.kept()
        through = self._bound
        for each in kept:
            through = min(through, self._releasable(each))
        if through <= max(log.compaction.base.index, machine.released[0]) or self._is_asking:
            return
        chain = log.chain(through)
        if chain is None:
            return
        bounds = []
        for each in kept:
            first = log.extent.first_offset_behind(each.queue, each.partition, through)
            lowest = each.needed_from if first is None else min(first, each.needed_from)
            bounds.append(Bound(each.queue, each.partition, lowest))
        self._propose(machine.release_command(through, chain, tuple(bounds)), "release")

    def _releasable(self, kept: Kept) -> Index:
        """The last entry up to which a partition needs nothing and has kept enough."""
        extent, log = self._group.log.extent, self._group.log
        nothing = Index(0)
        needed = extent.index_of(kept.queue, kept.partition, kept.needed_from)
        free = self._bound if needed is None else Index(needed - 1)
        if log.is_pressed:
            return free
        old = extent.first_index_since(Micros(self._log_time() - kept.audit_micros + 1))
        newest = extent.begin_of_newest(kept.queue, kept.partition, kept.audit_bytes)
        many = extent.index_of(kept.queue, kept.partition, newest) if newest else None
        limits = [Index(index - 1) for index in (old, many) if index is not None]
        return min(free, max(limits, default=nothing))

    def _expire(self) -> None:
        """Propose that partitions that are logs forget what is too old or too much."""
        machine, log = self._machine, self._group.log
        assert machine is not None
        bounds = []
        for each in machine.kept():
            lowest = Offset(0)
            if each.expire_micros is not None:
                moment = Micros(self._log_time() - each.expire_micros)
                index = log.extent.first_index_since(moment)
                if index is not None:
                    before = Index(index - 1)
                    first = log.extent.first_offset_behind(each.queue, each.partition, before)
                    lowest = (
                        _end(log.offsets(each.queue, each.partition)) if first is None else first
                    )
            if each.expire_bytes is not None:
                newest = log.extent.begin_of_newest(each.queue, each.partition, each.expire_bytes)
                lowest = max(lowest, newest)
            if lowest > each.needed_from:
                bounds.append(Bound(each.queue, each.partition, lowest))
        if bounds and not self._is_asking:
            self._propose(machine.expire_command(tuple(bounds)), "expire")

    def _propose(self, command: bytes, what: str) -> None:
        self._is_asking = True

        def done(reply: object, _place: object) -> None:
            self._is_asking = False
            if isinstance(reply, Exception):
                _log.info(f"{what} refused", group=self._group.group, reason=str(reply))

        self._group.propose(command, b"", done, reserve=True)


def _end(offsets: tuple[Offset, Offset] | None) -> Offset:
    return Offset(0) if offsets is None else offsets[1]
