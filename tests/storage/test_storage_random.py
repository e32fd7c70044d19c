"""Thousands of random operations against a model that is a list: writes, syncs, crashes, reads."""

import random

import pytest
from storage_world import MEMBERS, World, publish

from raftq import batch
from raftq.raft.entry import Command
from raftq.raft.ready import SnapshotMeta
from raftq.storage.group_log import Sizes
from raftq.storage.reader import entries_in, read_replica

QUEUE = 3


class Explorer:
    """One random life of a replica."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(
            seed,
            sizes=Sizes(2_048, 8_192, 0),
            prepare_delay=self.random.choice([50, 2_000, 30_000]),
        )
        self.world.create()
        self.batches: dict[int, list[tuple[int, int, int, bytes]]] = {0: []}
        """For each write: (index, base, count, data) of the batches in the log after it."""

    @property
    def writer(self):
        return self.world.writer

    def step(self) -> None:
        chosen = self.random.random()
        if chosen < 0.55:
            self.write()
        elif chosen < 0.75:
            self.world.time.run(self.random.choice([100, 600, 3_000, 30_000]))
            self.world.tick()
        elif chosen < 0.80 and self.writer.persisted == self.writer.seq:
            self.writer.commit = self.random.randint(self.writer.commit, self.writer.last_index)
            self.world.log.set_commit(self.writer.commit, self.writer.chain_at(self.writer.commit))
        elif chosen < 0.83:
            self.world.disk.stall(self.random.choice([10_000, 60_000]))
        elif chosen < 0.86:
            self.snapshot()
        elif chosen < 0.95:
            self.read()
        else:
            self.end_process()

    def write(self) -> None:
        writer = self.writer
        truncate_from = 0
        if self.random.random() < 0.1 and writer.last_index > writer.commit:
            truncate_from = self.random.randint(writer.commit + 1, writer.last_index)
        if self.random.random() < 0.1:
            writer.term += 1
            writer.vote = self.random.randrange(4)
        held = self.batches[writer.seq]
        kept = [item for item in held if not truncate_from or item[0] < truncate_from]
        index = truncate_from or writer.last_index + 1
        commands, added = [], []
        base = kept[-1][1] + kept[-1][2] if kept else 0
        for _ in range(self.random.choice([0, 1, 1, 2, 5])):
            parts = [Command(b"\x09other", b"x" * self.random.randrange(50))]
            for _ in range(self.random.randrange(3)):
                count = self.random.randint(1, 4)
                bodies = [self.random.randbytes(self.random.randrange(90)) for _ in range(count)]
                data = batch.encode(bodies, queue=QUEUE, partition=1)
                parts.append(publish(QUEUE, 1, base, data, count))
                added.append((index, base, count, data))
                base += count
            commands.append(parts)
            index += 1
        write = writer.write(commands, truncate_from=truncate_from)
        self.batches[writer.seq] = kept + added
        self.world.log.write(write)

    def snapshot(self) -> None:
        writer = self.writer
        if writer.commit:
            entry = writer.entries[writer.commit - 1]
            meta = SnapshotMeta(entry.index, entry.term, entry.chain, entry.log_time, MEMBERS)
            slices = self.world.log.begin_snapshot(meta, lambda: None)
            slices.write(b"state at %d" % entry.index)
            slices.finish()

    def read(self) -> None:
        log, writer = self.world.log, self.writer
        assert log.last_index == writer.last_index
        if writer.last_index:
            start = self.random.randint(1, writer.last_index)
            stop = self.random.randint(start + 1, writer.last_index + 1)
            found = log.entries(start, stop, 1 << 30)
            assert [e.chain for e in found] == [
                e.chain for e in writer.entries[start - 1 : stop - 1]
            ]
            assert log.term(start) == writer.entries[start - 1].term
            assert log.chain(start) == writer.entries[start - 1].chain
            assert log.log_time(start) == writer.entries[start - 1].log_time
        held = self.batches[writer.seq]
        if held:
            end = held[-1][1] + held[-1][2]
            start, stop = sorted((self.random.randint(0, end), self.random.randint(0, end)))
            expected = [
                (base, count, index, data)
                for index, base, count, data in held
                if base < stop and base + count > start and start < stop
            ]
            found = log.batches(QUEUE, 1, start, stop, 1 << 30)
            assert [(b.base_offset, b.count, b.index, bytes(b.data)) for b in found] == expected
        stored = log.read_snapshot()
        if stored is not None:
            meta, slices = stored
            assert list(slices) == [b"state at %d" % meta.index]

    def end_process(self) -> None:
        world = self.world
        how = self.random.choice(["kill", "power", "both", "close"])
        if how == "close":
            world.log.close()
            if self.writer.persisted < self.writer.seq:
                self.writer.persisted_through(self.writer.seq)
        if how in {"kill", "both", "close"}:
            world.kill()
        if how in {"power", "both"}:
            world.power_loss()
        world.open()
        world.check()
        self.read()
        self.read_from_outside()

    def read_from_outside(self) -> None:
        disk = self.world.disk
        replica = read_replica(disk.names("group-1"), lambda name: disk.open(f"group-1/{name}"))
        assert replica.problems == ()
        found = []
        for live in replica.ranges:
            found += entries_in(disk.open(f"group-1/{live.name}"), live)
        assert [item.entry.chain for item in found] == [e.chain for e in self.writer.entries]
        assert all(item.proved for item in found)


@pytest.mark.parametrize("seed", range(60))
def test_a_random_life_agrees_with_the_model(seed):
    explorer = Explorer(seed)
    for _ in range(150):
        explorer.step()
    explorer.end_process()
    explorer.world.time.run()
    explorer.read()
    assert explorer.world.failures == []
