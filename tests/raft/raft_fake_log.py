"""A log in memory whose syncs are commands: a page cache, a platter, and what lies between."""

from collections import deque

from raftq.ids import Index, Micros, ReplicaId, Term, WriteSeq
from raftq.raft import Entry, HardState, SnapshotMeta, Write
from raftq.raft.entry import GENESIS, MEMBERSHIP, commands
from raftq.raft.membership import decode


class Disk:
    """What one replica's log holds: a state after each write, and how far it is durable."""

    def __init__(self, membership):
        self.snapshot = SnapshotMeta(Index(0), Term(0), GENESIS, Micros(0), membership)
        self.entries_held: list[Entry] = []
        self.term, self.vote, self.commit_index, self.seq = 0, 0, 0, 0

    def copy(self):
        other = Disk(self.snapshot.membership)
        other.snapshot = self.snapshot
        other.entries_held = list(self.entries_held)
        other.term, other.vote = self.term, self.vote
        other.commit_index, other.seq = self.commit_index, self.seq
        return other

    def perform(self, write: Write):
        assert write.seq == self.seq + 1
        if write.reset is not None:
            self.snapshot = write.reset
            self.entries_held = []
        if write.truncate_from:
            assert write.truncate_from > self.snapshot.index
            del self.entries_held[write.truncate_from - self.snapshot.index - 1 :]
        for entry in write.entries:
            assert entry.index == self.last_index + 1
            self.entries_held.append(entry)
        self.term, self.vote, self.seq = write.term, write.vote, write.seq
        self.commit_index = write.commit_index
        assert write.last_index == self.last_index
        assert write.last_chain == self.chain(self.last_index)
        assert write.last_term == self.term_at(self.last_index)

    def compact(self, index, log_time):
        entry = self._at(index)
        membership = self.membership_at(index)
        kept = self.entries_held[index - self.snapshot.index :]
        self.snapshot = SnapshotMeta(index, entry.term, entry.chain, log_time, membership)
        self.entries_held = kept

    def membership_at(self, index):
        found = self.snapshot.membership
        for entry in self.entries_held:
            if entry.kind == MEMBERSHIP and entry.index <= index:
                found = decode(commands(entry)[0].header)
        return found

    @property
    def last_index(self):
        return Index(self.snapshot.index + len(self.entries_held))

    def _at(self, index):
        if not self.snapshot.index < index <= self.last_index:
            return None
        return self.entries_held[index - self.snapshot.index - 1]

    def term_at(self, index):
        if index == self.snapshot.index:
            return self.snapshot.term
        entry = self._at(index)
        return entry.term if entry else None

    def chain(self, index):
        if index == self.snapshot.index:
            return self.snapshot.chain
        entry = self._at(index)
        return entry.chain if entry else None

    def log_time(self, index):
        if index == self.snapshot.index:
            return self.snapshot.log_time
        entry = self._at(index)
        return entry.log_time if entry else None


class FakeLog:
    """The `LogReader` over the page cache, with the platter behind it."""

    def __init__(self, membership):
        self.cache = Disk(membership)
        self.platter = Disk(membership)
        self.pending: deque[Write] = deque()

    def write(self, write: Write):
        self.cache.perform(write)
        self.pending.append(write)

    def sync(self, count=None):
        """Complete the oldest `count` writes (all by default); gives the newest seq, or None."""
        seq = None
        for _ in range(len(self.pending) if count is None else count):
            write = self.pending.popleft()
            self.platter.perform(write)
            seq = write.seq
        return seq

    def crash(self, kept=0):
        """Power goes; `kept` of the writes that were not synced are on the platter all the same."""
        self.sync(kept)
        self.pending.clear()
        self.cache = self.platter.copy()

    def wipe_tail(self, count):
        """Synced entries rot: what no healthy disk does."""
        del self.platter.entries_held[-count:]
        self.platter.commit_index = min(self.platter.commit_index, self.platter.last_index)
        self.cache = self.platter.copy()

    def compact(self, index):
        for disk in (self.cache, self.platter):
            disk.compact(index, disk.log_time(index))

    def hard_state(self):
        disk = self.platter
        return HardState(
            Term(disk.term), ReplicaId(disk.vote), Index(disk.commit_index), WriteSeq(disk.seq)
        )

    @property
    def snapshot(self):
        return self.cache.snapshot

    @property
    def first_index(self):
        return Index(self.cache.snapshot.index + 1)

    @property
    def last_index(self):
        return self.cache.last_index

    def term(self, index):
        return self.cache.term_at(index)

    def chain(self, index):
        return self.cache.chain(index)

    def log_time(self, index):
        return self.cache.log_time(index)

    def entries(self, start, stop, max_bytes):
        found, size = [], 0
        for index in range(start, stop):
            entry = self.cache._at(index)
            if entry is None:
                raise LookupError(index)
            if found and size + entry.size > max_bytes:
                break
            found.append(entry)
            size += entry.size
        return found
