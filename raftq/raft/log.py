"""The log as one replica's core sees it: recent entries in memory, older ones through `LogReader`.

    floor            start - 1   start                 unwritten      last_index
      |  ...reader...    |         |   window (a list)     |   ...        |
      snapshot           base      first entry in memory   not handed out yet

Rules:

1. What lies in the window is never asked of the reader: the reader may still hold what has been
   truncated here, until the write that says so is handed out.
2. Only entries that are durable *and* applied leave the window.
3. Terms never fall from one index to the next, so a place in the log is found by bisection.
4. A membership is in force from the moment its entry is in the log, and no longer when the entry
   is truncated, whether it is committed or not.

It must not know about roles, peers or time.
"""

from typing import NamedTuple

from raftq.errors import Corrupted
from raftq.ids import Index, Micros, Term
from raftq.limits import CACHED_LOG_BYTES, MAX_APPEND_BYTES
from raftq.raft import membership as memberships
from raftq.raft.entry import GENESIS, MEMBERSHIP, Entry, commands
from raftq.raft.membership import Membership
from raftq.raft.ready import LogReader, SnapshotMeta

ENTRY_OVERHEAD_BYTES = 512
"""What an entry costs in memory besides its bytes, so that small entries are bounded too."""


class Position(NamedTuple):
    """What is known of one index without its entry."""

    index: Index  # type: ignore[assignment] # Hides a method of tuples that nobody needs.
    term: Term
    chain: bytes
    log_time: Micros


class RaftLog:
    """Entries of one replica. `Invariant: start == last_index + 1 - len(window)`."""

    __slots__ = (
        "_base",
        "_bytes",
        "_floor",
        "_memberships",
        "_reader",
        "_start",
        "_window",
        "damaged",
        "floor",
        "last_chain",
        "last_index",
        "last_log_time",
        "last_term",
        "membership",
        "reset",
        "truncate_from",
        "unwritten",
    )

    def __init__(self, reader: LogReader) -> None:
        snapshot = reader.snapshot
        self._reader = reader
        self._window: list[Entry] = []
        self._bytes = 0
        self.damaged = Index(0)
        """Lowest index known to be unreadable; 0 = none."""
        self._floor = snapshot
        self.floor = snapshot.index
        """Index of the newest snapshot this log was told of: below, only whole entries are looked up."""
        self.truncate_from = Index(0)
        self.reset: SnapshotMeta | None = None
        self._base = self._recovered_end(snapshot)
        self._begin_after(self._base)
        self._memberships: list[tuple[Index, Membership]] = [(snapshot.index, snapshot.membership)]
        self.membership = snapshot.membership
        self._find_memberships(Index(snapshot.index + 1))

    def _recovered_end(self, snapshot: SnapshotMeta) -> Position:
        last = self._reader.last_index
        if last <= snapshot.index:
            return Position(snapshot.index, snapshot.term, snapshot.chain, snapshot.log_time)
        return self._position(last)

    def _position(self, index: Index) -> Position:
        """Of an index that is held, from the reader.

        Raises: Corrupted.
        """
        reader = self._reader
        term, link, log_time = reader.term(index), reader.chain(index), reader.log_time(index)
        if term is None or link is None or log_time is None:
            raise Corrupted(f"the log does not know its own index {index}")
        return Position(index, term, link, log_time)

    def _begin_after(self, base: Position) -> None:
        self._window.clear()
        self._bytes = 0
        self._base = base
        self._start = Index(base.index + 1)
        self.unwritten = Index(base.index + 1)
        self.last_index, self.last_term, self.last_chain, self.last_log_time = base

    def _find_memberships(self, start: Index) -> None:
        """A configuration in the log is in force after a restart too, so it has to be found."""
        index = start
        while index <= self.last_index:
            try:
                found = self._reader.entries(index, Index(self.last_index + 1), MAX_APPEND_BYTES)
            except (Corrupted, LookupError):
                index = self._skip_damage(index)
                continue
            for entry in found:
                self._note_membership(entry)
            index = Index(found[-1].index + 1)

    def _skip_damage(self, index: Index) -> Index:
        """One entry at a time up to the damaged one, which is passed over."""
        while True:
            try:
                entry = self._reader.entries(index, Index(index + 1), 1)[0]
            except (Corrupted, LookupError):
                self.note_damage(index)
                return Index(index + 1)
            self._note_membership(entry)
            index = Index(index + 1)

    def note_damage(self, index: Index) -> None:
        """The entry at `index`, or one soon after it, cannot be read."""
        self.damaged = min(self.damaged or index, index)

    def _note_membership(self, entry: Entry) -> None:
        if entry.kind == MEMBERSHIP:
            self.membership = memberships.decode(commands(entry)[0].header)
            self._memberships.append((entry.index, self.membership))

    @property
    def membership_index(self) -> Index:
        """Where the membership in force stands."""
        return self._memberships[-1][0]

    def membership_at(self, index: Index) -> Membership:
        """The configuration as of `index`, which is not below the floor."""
        assert index >= self._memberships[0][0]
        return next(found for at, found in reversed(self._memberships) if at <= index)

    @property
    def snapshot(self) -> SnapshotMeta:
        """The newest one there is to send."""
        return self.reset or self._reader.snapshot

    @property
    def first_index(self) -> Index:
        """The lowest index whose entry can be sent whole."""
        return min(self._start, self._reader.first_index) if self.reset is None else self._start

    def term(self, index: Index) -> Term | None:
        offset = index - self._start
        if offset >= 0:
            return self._window[offset].term if index <= self.last_index else None
        if offset == -1:
            return self._base.term
        if index == self.floor:
            return self._floor.term
        return self._reader.term(index) if self._is_readable(index) else None

    def _is_readable(self, index: Index) -> bool:
        """Whether the reader may be asked: what lies below a snapshot that is not yet in force in the
        reader's log may be another log's.
        """
        return index > self.floor or (self.reset is None and index >= self._reader.first_index)

    def chain(self, index: Index) -> bytes | None:
        """Chain value at `index`; None above the end and below what is whole."""
        offset = index - self._start
        if offset >= 0:
            return self._window[offset].chain if index <= self.last_index else None
        if offset == -1:
            return self._base.chain
        if index == self.floor:
            return self._floor.chain if index else GENESIS
        return self._reader.chain(index) if self._is_readable(index) else None

    def has_fresh(self, index: Index, link: bytes) -> bool:
        """Whether an entry in memory has this chain value.

        Without the reader, which may know a snapshot at `index` that is not installed yet.
        """
        offset = index - self._start
        return 0 <= offset < len(self._window) and self._window[offset].chain == link

    def is_recent(self, index: Index) -> bool:
        """Whether the entry at `index` is in memory."""
        return index >= self._start

    def before(self, index: Index) -> tuple[Term, bytes] | None:
        """Term and chain that an append from `index` on has to name.

        None if these, or the entries from there on, are not held: then it takes a snapshot.
        """
        offset = index - self._start
        if offset > 0:
            previous = self._window[offset - 1]
            return previous.term, previous.chain
        if offset == 0:
            return self._base.term, self._base.chain
        below = Index(index - 1)
        term, link = self.term(below), self.chain(below)
        if term is None or link is None or index < self.first_index:
            return None
        return term, link

    def entries(self, start: Index, stop: Index, max_bytes: int) -> list[Entry]:
        """Entries [start, stop), cut at `max_bytes` but at least one.

        Raises: Corrupted when damaged; LookupError when not held.
        """
        offset = start - self._start
        if offset < 0:
            return self._reader.entries(start, min(stop, self._start), max_bytes)
        window = self._window
        end = stop - self._start
        if end - offset == 1:
            return [window[offset]]
        position = offset
        left = max_bytes
        while position < end:
            left -= window[position].size
            if left < 0 and position > offset:
                break
            position += 1
        return window[offset:position]

    def last_at_most(self, index: Index, term: Term) -> Index:
        """The highest index at or below `index` whose term is at most `term`.

        The floor, if that would be below the floor, where terms are not known.
        """
        low, high = self.floor, min(index, self.last_index)
        if high <= low:
            return high
        while low < high:
            middle = Index((low + high + 1) // 2)
            found = self.term(middle)
            if found is None or found <= term:
                low = middle
            else:
                high = Index(middle - 1)
        return low

    def append(self, entry: Entry) -> None:
        assert entry.index == self.last_index + 1
        assert entry.term >= self.last_term
        self._window.append(entry)
        self._bytes += entry.size + ENTRY_OVERHEAD_BYTES
        self.last_index = entry.index
        self.last_term = entry.term
        self.last_chain = entry.chain
        self.last_log_time = entry.log_time
        if entry.kind == MEMBERSHIP:
            self._note_membership(entry)

    def truncate(self, index: Index) -> None:
        """Entries from `index` on are void."""
        assert self.floor < index <= self.last_index
        if index < self.unwritten:
            self.truncate_from = min(self.truncate_from or index, index)
            self.unwritten = index
        offset = index - self._start
        if offset > 0:
            for entry in self._window[offset:]:
                self._bytes -= entry.size + ENTRY_OVERHEAD_BYTES
            del self._window[offset:]
            last = self._window[-1]
            self.last_index, self.last_term = last.index, last.term
            self.last_chain, self.last_log_time = last.chain, last.log_time
        else:
            unwritten = self.unwritten
            self._begin_after(self._base if offset == 0 else self._before(index))
            self.unwritten = unwritten
        while self._memberships[-1][0] >= index:
            self._memberships.pop()
        self.membership = self._memberships[-1][1]

    def _before(self, index: Index) -> Position:
        below = Index(index - 1)
        if below == self.floor:
            floor = self._floor
            return Position(below, floor.term, floor.chain, floor.log_time)
        return self._position(below)

    def install(self, snapshot: SnapshotMeta) -> None:
        """The log begins anew after `snapshot`."""
        self.reset = snapshot
        self.truncate_from = Index(0)
        self._floor = snapshot
        self.floor = snapshot.index
        self.damaged = Index(0)
        self._begin_after(
            Position(snapshot.index, snapshot.term, snapshot.chain, snapshot.log_time)
        )
        self._memberships = [(snapshot.index, snapshot.membership)]
        self.membership = snapshot.membership

    def compacted(self) -> None:
        """The reader's snapshot moved: what lies below it is looked up no more."""
        snapshot = self._reader.snapshot
        if snapshot.index <= self.floor:
            return
        self._floor = snapshot
        self.floor = snapshot.index
        if self.damaged <= snapshot.index:
            self.damaged = Index(0)
        kept = [item for item in self._memberships if item[0] > snapshot.index]
        self._memberships = [(snapshot.index, snapshot.membership), *kept]

    def unwritten_entries(self) -> tuple[Entry, ...]:
        """What was not handed out yet; it is always in the window."""
        return tuple(self._window[self.unwritten - self._start :])

    def written(self) -> None:
        """Everything has been handed out in a write."""
        self.unwritten = Index(self.last_index + 1)
        self.truncate_from = Index(0)
        self.reset = None

    def evict(self, through: Index) -> None:
        """Let go of the oldest entries at or below `through` while the window is too big."""
        if self._bytes <= CACHED_LOG_BYTES:
            return
        count = 0
        # A quarter more than needed goes, so that not every call moves the list.
        for entry in self._window:
            if entry.index > through or self._bytes <= CACHED_LOG_BYTES - CACHED_LOG_BYTES // 4:
                break
            self._bytes -= entry.size + ENTRY_OVERHEAD_BYTES
            count += 1
        if count:
            last = self._window[count - 1]
            self._base = Position(last.index, last.term, last.chain, last.log_time)
            del self._window[:count]
            self._start = Index(last.index + 1)
