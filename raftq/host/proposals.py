"""What is proposed to a group, from its arrival until its proposer has heard.

A proposal waits until the next entry is made; then the machine's admission judges it, in order. An
admitted one is a command of that entry and is answered when the entry is applied; a duplicate is
answered with its original, when that is applied; a refused one is answered at once. One whose time
is over before it entered the log is refused, and one in the log is never given up. When leadership
ends everybody hears: "not applied" if the proposal never entered the log, else "unknown".
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from raftq.errors import RaftqError, Timeout
from raftq.ids import Index, Micros, Term
from raftq.limits import HOLD_BYTES, HOLD_MICROS, IN_LOG_BYTES_MAX, MAX_COMMANDS, TARGET_ENTRY_BYTES
from raftq.machine import Admission, Admitted, Buffer, DuplicateOf, Later
from raftq.observability.logs import logger
from raftq.raft import Command, Entry

_log = logger("raftq.host")


NEVER: Final = Micros(1 << 62)


class Place(NamedTuple):
    """Where in the group's log a command was applied."""

    index: Index  # type: ignore[assignment]  # Hides tuple.index, which nobody asks a place for.
    term: Term
    chain: bytes
    log_time: Micros


Done = Callable[[object, Place | None], None]
"""How a proposer hears: (reply or RaftqError, place or None), exactly once, on the loop."""


def tell(done: Done, reply: object, place: Place | None) -> None:
    """Call back. A proposer that fails on its answer is a bug of the proposer, not of the group."""
    try:
        done(reply, place)
    except Exception:
        _log.exception("a proposer failed on its answer")


class Redirect(RaftqError):
    """This replica does not lead its group; `leader` is the node that may, or None.

    Never reaches a user: servers forward, and clients go where it says.
    """

    code = 2
    retriable = True

    def __init__(self, leader: str | None, *, applied: bool = False) -> None:
        super().__init__(
            f"not the leader; try {leader or 'another node'}",
            outcome="unknown" if applied else "not_applied",
        )
        self.leader = leader


class Proposal(NamedTuple):
    """A command on its way into the log."""

    header: bytes
    body: Buffer
    done: Done
    give_up_at: Micros = NEVER
    """On the monotonic clock: not wanted any more if it has not entered the log by then."""


class Proposals:
    """Pending, in the log but not applied, and duplicates of those."""

    def __init__(self) -> None:
        self.pending_bytes = 0
        self.pending_since = Micros(0)
        self._pending: deque[Proposal] = deque()
        self._give_up_at = NEVER
        """Nothing that is pending is to be given up before."""
        self._blocked_by = Index(0)
        self._taken: list[Done] = []
        """Who waits for what `take` gave, until `proposed`: should the making of the entry fail."""
        self._in_log: deque[tuple[Index, Term, list[Done], int]] = deque()
        self._in_log_bytes = 0
        self._duplicates: dict[Index, list[tuple[Done, object]]] = {}

    @property
    def is_pending(self) -> bool:
        return bool(self._pending)

    def add(self, proposal: Proposal, now: Micros) -> None:
        if not self._pending:
            self.pending_since = now
        self._pending.append(proposal)
        self._give_up_at = min(self._give_up_at, proposal.give_up_at)
        self.pending_bytes += len(proposal.header) + len(proposal.body)

    def is_due(self, *, now: Micros, unsynced_bytes: int, applied: Index) -> bool:
        """Whether the next entry should be made now, or waits for the outstanding sync."""
        if not self._pending or self._blocked_by > applied:
            return False
        if self._in_log_bytes > IN_LOG_BYTES_MAX:
            return False
        return (
            unsynced_bytes == 0
            or self.pending_bytes >= HOLD_BYTES
            or now - self.pending_since >= HOLD_MICROS
        )

    def refuse_late(self, now: Micros) -> None:
        """Tell those whose time is over that they will not enter the log any more."""
        if now < self._give_up_at:
            return
        late = [each for each in self._pending if each.give_up_at <= now]
        self._pending = deque(each for each in self._pending if each.give_up_at > now)
        self._give_up_at = min((each.give_up_at for each in self._pending), default=NEVER)
        self.pending_bytes -= sum(len(each.header) + len(each.body) for each in late)
        for proposal in late:
            problem = "its time was over before it entered the log: the disk or the group is slow"
            tell(proposal.done, Timeout(problem, outcome="not_applied"), None)

    def take(
        self,
        admission: Admission,
        *,
        index: Index,
        log_time: Micros,
        place: Callable[[Index], Place | None],
    ) -> list[Command]:
        """The commands of the entry at `index`; if there are any, `proposed` must follow.

        `place` gives where an index was applied, or None while it is not.
        """
        assert not self._taken, "what was taken before is not in the log yet"
        batch: list[Command] = []
        size = 0
        while self._pending and len(batch) < MAX_COMMANDS:
            header, body, done, _ = self._pending[0]
            length = len(header) + len(body)
            if batch and size + length > TARGET_ENTRY_BYTES:
                break
            verdict = admission.admit(header, body, index, log_time)
            if isinstance(verdict, Later):
                self._blocked_by = verdict.index
                break
            self._pending.popleft()
            self.pending_bytes -= length
            if isinstance(verdict, Admitted):
                batch.append(Command(verdict.header, body))
                self._taken.append(done)
                size += length
            elif isinstance(verdict, DuplicateOf):
                self._join_original(done, verdict, place(verdict.index))
            else:
                tell(done, verdict, None)
        return batch

    def _join_original(self, done: Done, verdict: DuplicateOf, place: Place | None) -> None:
        if place is not None:
            tell(done, verdict.reply, place)
        else:
            self._duplicates.setdefault(verdict.index, []).append((done, verdict.reply))

    def proposed(self, index: Index, term: Term, size: int) -> None:
        """What `take` gave is in the log now, at `index`."""
        waiters, self._taken = self._taken, []
        self._in_log.append((index, term, waiters, size))
        self._in_log_bytes += size

    def applied(
        self,
        entry: Entry,
        replies: list[object],
        place: Place,
        refusal: Callable[[], RaftqError],
    ) -> None:
        """Answer those who proposed `entry`, and those who repeated them.

        Another leader's entry in the place of ours means that ours never will be: that is an
        answer too (`refusal`).
        """
        is_ours = True
        if self._in_log and self._in_log[0][0] == entry.index:
            _, term, waiters, size = self._in_log.popleft()
            self._in_log_bytes -= size
            is_ours = term == entry.term
            if is_ours:
                for done, reply in zip(waiters, replies, strict=True):
                    tell(done, reply, place)
            else:
                for done in waiters:
                    tell(done, refusal(), None)
        if self._duplicates:
            for done, reply in self._duplicates.pop(entry.index, ()):
                if is_ours:
                    tell(done, reply, place)
                else:
                    tell(done, refusal(), None)

    def fail(self, *, unknown: RaftqError, not_applied: RaftqError) -> None:
        """Leadership is over: everybody hears."""
        pending, self._pending = self._pending, deque()
        taken, self._taken = self._taken, []
        in_log, self._in_log = self._in_log, deque()
        self._in_log_bytes = 0
        duplicates, self._duplicates = self._duplicates, {}
        self.pending_bytes = 0
        self._give_up_at = NEVER
        self._blocked_by = Index(0)
        for _, _, waiters, _ in in_log:
            for done in waiters:
                tell(done, unknown, None)
        for twins in duplicates.values():
            for done, _ in twins:
                tell(done, unknown, None)
        for done in taken:
            tell(done, not_applied, None)
        for proposal in pending:
            tell(proposal.done, not_applied, None)
