"""A log on a simulated disk with virtual time, and a small model of what it must hold."""

import heapq
import random
from collections.abc import Callable

from raftq.batch import encode_stamp
from raftq.ids import Micros
from raftq.raft.entry import GENESIS, Command, Entry, build
from raftq.raft.membership import Membership
from raftq.raft.ready import SnapshotMeta, Write
from raftq.sim.disk import SimDisk
from raftq.storage.group_log import GroupLog

MEMBERS = Membership((1, 2, 3))
INCARNATION = 0x1234_5678_9ABC_DEF0


class SeededEntropy:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def bits(self, count: int) -> int:
        return self._random.getrandbits(count) or 1


class VirtualTime:
    """Clock and scheduler: nothing happens but what a test lets happen."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._serial = 0

    def monotonic(self) -> Micros:
        return Micros(self.now)

    def wall(self) -> Micros:
        return Micros(self.now)

    def call_later(self, delay: Micros, callback: Callable[[], None]) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (self.now + delay, self._serial, callback))

    @property
    def is_quiet(self) -> bool:
        return not self._heap

    def run_one(self) -> bool:
        if not self._heap:
            return False
        at, _, callback = heapq.heappop(self._heap)
        self.now = max(self.now, at)
        callback()
        return True

    def run(self, duration: int | None = None) -> None:
        """Everything that is due within `duration`; without it, until nothing is left."""
        until = None if duration is None else self.now + duration
        while self._heap and (until is None or self._heap[0][0] <= until):
            self.run_one()
        if until is not None:
            self.now = max(self.now, until)

    def forget(self) -> None:
        self._heap.clear()


class Writer:
    """Makes the writes a core would make, and remembers what was promised.

    `history[seq]` is the state after write `seq`; `persisted` the highest that was reported.
    """

    def __init__(self) -> None:
        self.term = 1
        self.vote = 0
        self.seq = 0
        self.entries: list[Entry] = []
        self.base = SnapshotMeta(0, 0, GENESIS, 0, MEMBERS)
        self.commit = 0
        self.history: dict[int, tuple[int, int, int, tuple[Entry, ...]]] = {0: (0, 0, 0, ())}
        self.persisted = 0
        self.salt = 0

    @property
    def last_index(self) -> int:
        return self.base.index + len(self.entries)

    def chain_at(self, index: int) -> bytes:
        if index == self.base.index:
            return self.base.chain
        return self.entries[index - self.base.index - 1].chain

    def entry(self, commands: list[Command], index: int, previous: bytes) -> Entry:
        return build(
            previous_chain=previous,
            index=index,
            term=self.term,
            kind=1,
            log_time=1_000 + index,
            commands=commands,
        )

    def bodies(self, count: int, size: int) -> list[list[Command]]:
        self.salt += 1
        made = []
        for n in range(count):
            body = random.Random(self.salt * 1000 + n).randbytes(size)
            made.append([Command(b"\x07header", body)])
        return made

    def write(
        self,
        commands: list[list[Command]] = (),
        *,
        truncate_from: int = 0,
        reset: SnapshotMeta | None = None,
    ) -> Write:
        if reset is not None:
            self.base, self.entries = reset, []
            self.commit = reset.index
        if truncate_from:
            assert truncate_from > self.commit
            del self.entries[truncate_from - self.base.index - 1 :]
        added = []
        for some in commands:
            index = self.last_index + 1
            entry = self.entry(some, index, self.chain_at(index - 1))
            self.entries.append(entry)
            added.append(entry)
        self.seq += 1
        last = self.entries[-1] if self.entries else None
        write = Write(
            self.seq,
            reset,
            truncate_from,
            tuple(added),
            self.term,
            self.vote,
            self.last_index,
            last.term if last else self.base.term,
            self.chain_at(self.last_index),
            self.commit,
            self.chain_at(self.commit),
        )
        self.history[self.seq] = (self.term, self.vote, self.base.index, tuple(self.entries))
        return write

    def persisted_through(self, seq: int) -> None:
        assert seq > self.persisted
        self.persisted = seq

    def go_on_from(self, seq: int) -> None:
        """A new process begins with what was recovered; later writes never happened."""
        term, self.vote, base, entries = self.history[seq]
        self.term = max(1, term)
        assert base == self.base.index
        self.entries = list(entries)
        self.commit = max(base, min(self.commit, self.last_index))
        self.seq = self.persisted = seq
        self.history = {known: state for known, state in self.history.items() if known <= seq}


class World:
    """One replica's directory with processes that come and go."""

    def __init__(self, seed: int = 1, **options) -> None:
        self.time = VirtualTime()
        self.entropy = SeededEntropy(seed)
        self.log_options = {
            name: options.pop(name) for name in ("sizes", "faults") if name in options
        }
        self.disk = SimDisk(self.time.call_later, self.entropy, **options)
        self.boot = 7
        self.writer = Writer()
        self.log: GroupLog | None = None
        self.failures: list[OSError] = []

    def attach(self, log: GroupLog) -> GroupLog:
        self.log = log
        log.on_persisted = self.writer.persisted_through
        log.on_failure = self.failures.append
        return log

    def create(self) -> GroupLog:
        return self.attach(
            GroupLog.create(
                self.disk,
                self.time,
                "group-1",
                incarnation=INCARNATION,
                boot=self.boot,
                membership=MEMBERS,
                **self.log_options,
            )
        )

    def open(self) -> GroupLog:
        return self.attach(
            GroupLog.open(
                self.disk,
                self.time,
                "group-1",
                incarnation=INCARNATION,
                boot=self.boot,
                **self.log_options,
            )
        )

    def kill(self, *, crash_at: int = 0) -> None:
        self.disk.kill()
        self.disk.crash_at = crash_at
        self.time.forget()

    def power_loss(self) -> None:
        self.disk.power_loss()
        self.time.forget()
        self.boot += 1

    def check(self) -> None:
        """What was recovered is exactly the state after one write, at or behind what was promised."""
        log, writer = self.log, self.writer
        assert (log.condition.value, log.damage) == ("ok", ()), log.damage
        seq = log.state.last_write
        assert seq >= writer.persisted, "a write that was reported as persisted is gone"
        term, vote, base, entries = writer.history[seq]
        assert (log.state.term, log.state.vote) == (term, vote)
        assert (log.first_index, log.last_index) == (base + 1, base + len(entries))
        found = log.entries(base + 1, log.last_index + 1, 1 << 40) if entries else []
        assert [b"".join(map(bytes, entry.vectors)) for entry in found] == [
            b"".join(map(bytes, entry.vectors)) for entry in entries
        ]
        for entry in entries:
            assert log.term(entry.index) == entry.term
        assert log.chain(log.last_index) == (entries[-1].chain if entries else writer.base.chain)
        assert base <= log.state.commit_index <= log.last_index
        writer.go_on_from(seq)

    def tick(self) -> None:
        self.log.tick(self.time.now)

    def idle(self, duration: int = 100_000) -> None:
        """Let time pass with ticks every 10 ms."""
        for _ in range(duration // 10_000):
            self.time.run(10_000)
            self.tick()

    def write(self, count: int = 1, size: int = 100, **how) -> int:
        write = self.writer.write(self.writer.bodies(count, size), **how)
        self.log.write(write)
        return write.seq

    def write_and_sync(self, count: int = 1, size: int = 100, **how) -> int:
        seq = self.write(count, size, **how)
        self.time.run()
        assert self.writer.persisted == seq
        return seq

    def segments(self) -> list[str]:
        return [
            path
            for path in self.disk.paths()
            if path.startswith("group-1/segment-") and path.endswith(".log")
        ]


def publish(queue: int, partition: int, base: int, data: bytes, count: int) -> Command:
    return Command(encode_stamp(queue, partition, base, count), data)
