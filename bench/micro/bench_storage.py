"""What the segment log costs: CPU of a write without and with the kernel's, syncs, reads, recovery.

python -m pytest bench/micro/bench_storage.py --benchmark-only
python bench/micro/bench_storage.py [directory]        figures on a real disk, one line each
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from raftq import batch
from raftq.env import Buffer
from raftq.env.clock import RealClock
from raftq.env.disk import RealDisk
from raftq.ids import Index, Micros, Offset, Partition, QueueId, ReplicaId, Term, WriteSeq
from raftq.raft.entry import COMMANDS, GENESIS, Command, Entry, build
from raftq.raft.membership import Membership
from raftq.raft.ready import Write
from raftq.storage.append import Appender
from raftq.storage.group_log import GroupLog
from raftq.storage.spare import Spare

MEMBERS = Membership((ReplicaId(1), ReplicaId(2), ReplicaId(3)))
QUEUE, PARTITION = QueueId(1), Partition(0)


class NullFile:
    """A file that takes everything and keeps nothing: what is left is our own cost."""

    path = "null"

    def write(self, position: int, vectors: Sequence[Buffer]) -> None:
        """Nothing."""

    def sync(self, done: Callable[[OSError | None], None]) -> None:
        """Never done."""

    def sync_now(self) -> None:
        """Nothing."""

    def read(self, position: int, length: int) -> bytes:  # noqa: ARG002 - the port's.
        return bytes(length)

    def size(self) -> int:
        return 0

    def close(self) -> None:
        """Nothing."""


class Writes:
    """An endless row of writes, each with one entry of `commands` batches of about `size` bytes."""

    def __init__(self, size: int, commands: int = 1) -> None:
        messages = max(1, size // 104)
        self._data = batch.encode(
            [b"x" * min(size, 100)] * messages, queue=QUEUE, partition=PARTITION
        )
        self._messages = messages
        self._commands = commands
        self._chain = GENESIS
        self._index = 0
        self._offset = 0

    def entry(self) -> Entry:
        self._index += 1
        commands = []
        for _ in range(self._commands):
            stamp = batch.encode_stamp(QUEUE, PARTITION, Offset(self._offset), self._messages)
            commands.append(Command(stamp, self._data))
            self._offset += self._messages
        entry = build(
            previous_chain=self._chain,
            index=Index(self._index),
            term=Term(1),
            kind=COMMANDS,
            log_time=Micros(self._index),
            commands=commands,
        )
        self._chain = entry.chain
        return entry

    def next(self) -> Write:
        entry = self.entry()
        return Write(
            WriteSeq(entry.index),
            None,
            Index(0),
            (entry,),
            Term(1),
            ReplicaId(0),
            entry.index,
            Term(1),
            entry.chain,
            Index(entry.index - 1),
            GENESIS,
        )

    @property
    def end_offset(self) -> Offset:
        return Offset(self._offset)


def create(disk: RealDisk, directory: str = "group-1") -> GroupLog:
    return GroupLog.create(disk, RealClock(), directory, incarnation=1, boot=1, membership=MEMBERS)


@pytest.mark.parametrize(
    ("size", "commands"), [(65_536, 1), (1_024, 1), (1_024, 64)], ids=["64KiB", "1KiB", "64x1KiB"]
)
def test_write(
    benchmark: BenchmarkFixture,
    tmp_path: Path,
    size: int,
    commands: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Our own share of a write: unit header, checksum, index; the kernel's is left out."""
    disk = RealDisk(str(tmp_path))
    log = create(disk)
    monkeypatch.setattr(Appender, "fits", lambda _self, _size: True)
    monkeypatch.setattr(Spare, "is_wanted", False)
    log._writer._appender.file = NullFile()  # noqa: SLF001 - the seam is not worth an argument.
    writes = Writes(size, commands)
    prepared = iter([writes.next() for _ in range(20_000 if size * commands < 65_536 else 3_000)])
    log._writer._clock = Frozen()  # noqa: SLF001 - the sync that never returns must not be old.
    rounds = 2_000
    benchmark.pedantic(  # type: ignore[no-untyped-call]
        lambda: log.write(next(prepared)), rounds=rounds, iterations=1
    )
    disk.unlock()


class Frozen:
    """A clock that stands still."""

    def monotonic(self) -> Micros:
        return Micros(0)

    def wall(self) -> Micros:
        return Micros(0)


# --- Figures on a real disk ----------------------------------------------------------------------


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


async def saturate(disk: RealDisk, *, size: int, total: int) -> GroupLog:
    """Units one after the other, up to 4 MiB unsynced: bytes a second and CPU of a write."""
    loop = asyncio.get_running_loop()
    log = create(disk, f"saturated-{size}")
    room = asyncio.Event()
    log.on_persisted = lambda _: room.set()
    writes = Writes(size)
    costs = []
    begun = time.perf_counter()
    prepared = [writes.next() for _ in range(total // size)]
    making = time.perf_counter() - begun
    begun, cpu = time.perf_counter(), time.process_time()
    for write in prepared:
        while log.unsynced_bytes > 4 << 20:
            room.clear()
            await room.wait()
        started = time.perf_counter()
        log.write(write)
        costs.append(time.perf_counter() - started)
        await asyncio.sleep(0)
    while log.unsynced_bytes:
        room.clear()
        await room.wait()
    took, cpu = time.perf_counter() - begun, time.process_time() - cpu
    print(
        f"saturated, {size >> 10} KiB units: {total / took / 1e6:.0f} MB/s, {log.syncs} syncs; "
        f"write() median {percentile(costs, 0.5) * 1e6:.1f} us, p99 "
        f"{percentile(costs, 0.99) * 1e6:.0f} us, max {max(costs) * 1e3:.1f} ms; "
        f"CPU {cpu / len(costs) * 1e6:.0f} us a unit; making an entry {making / len(costs) * 1e6:.0f} us"
    )
    del loop
    return log


async def one_by_one(disk: RealDisk, *, size: int, count: int) -> None:
    """Write, wait for the sync, again: latency of a durable write."""
    log = create(disk, f"single-{size}")
    persisted = asyncio.Event()
    log.on_persisted = lambda _: persisted.set()
    writes = Writes(size)
    times = []
    for _ in range(count):
        write = writes.next()
        persisted.clear()
        begun = time.perf_counter()
        log.write(write)
        await persisted.wait()
        times.append(time.perf_counter() - begun)
    print(
        f"one write of {size} B at a time: p50 {percentile(times, 0.5) * 1e6:.0f} us, "
        f"p99 {percentile(times, 0.99) * 1e6:.0f} us"
    )
    log.close()


def read_back(log: GroupLog, total: int) -> None:
    begun, position, count = time.perf_counter(), 0, 0
    while found := log.batches(QUEUE, PARTITION, Offset(position), Offset(1 << 40), 1 << 20):
        position = found[-1].base_offset + found[-1].count
        count += len(found)
    took = time.perf_counter() - begun
    print(
        f"batches() of {count} batches: {took / count * 1e6:.1f} us a batch, "
        f"{total / took / 1e9:.2f} GB/s, checksums verified"
    )
    begun, index, count = time.perf_counter(), 1, 0
    while index <= log.last_index:
        entries = log.entries(Index(index), Index(log.last_index + 1), 1 << 20)
        index += len(entries)
        count += len(entries)
    took = time.perf_counter() - begun
    print(
        f"entries(): {took / count * 1e6:.1f} us an entry, {total / took / 1e9:.2f} GB/s, chain verified"
    )


def recover(disk: RealDisk, directory: str, total: int) -> None:
    begun = time.perf_counter()
    log = GroupLog.open(disk, RealClock(), directory, incarnation=1, boot=1)
    took = time.perf_counter() - begun
    print(f"open() of {total >> 20} MiB, {log.last_index} entries: {took * 1e3:.0f} ms")
    log.close()


async def figures(directory: str) -> None:
    disk = RealDisk(directory)
    print(f"syncs by {disk.sync_method}, in {directory}")
    total = 512 << 20
    log = await saturate(disk, size=65_536, total=total)
    read_back(log, total)
    log.close()
    recover(disk, "saturated-65536", total)
    small = await saturate(disk, size=1_024, total=32 << 20)
    read_back(small, 32 << 20)
    small.close()
    recover(disk, "saturated-1024", 32 << 20)
    await one_by_one(disk, size=100, count=1_000)
    await asyncio.sleep(0.1)
    disk.unlock()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if sys.argv[1:] else None) as made:
        asyncio.run(figures(made))
