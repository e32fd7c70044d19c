"""An amnesiac log is copied: all that verifies, with the snapshot that it begins behind, under another seed."""

from struct import Struct

import pytest
from server_world import World
from xxhash import xxh3_64_intdigest

from raftq.errors import Corrupted
from raftq.raft import Membership
from raftq.raft.entry import COMMANDS, Command, build
from raftq.raft.ready import SnapshotMeta, Write
from raftq.server import copying
from raftq.server.copying import copy_log
from raftq.storage.group_log import Condition, GroupLog
from raftq.storage.snapshots import encode_header, snapshot_name

MEMBERS = Membership((4, 5, 6))
META = SnapshotMeta(100, 7, b"c" * 16, 1_000, MEMBERS)
OLD, NEW = 11, 22
SOURCE, TARGET = "group-7", "group-7.copy"


@pytest.fixture
def offline():
    with World("n1", start=False) as world:
        yield Offline(world, *world.machines["n1"].start())


class Offline:
    def __init__(self, world, process, environment):
        self.world = world
        self.process = process
        self.environment = environment
        self.disk = environment.disk

    def run(self, work):
        async def main():
            return work()

        task = self.process.spawn(main())
        self.world.until(task.done)
        return task.result()

    def open(self, directory, incarnation):
        return GroupLog.open(
            self.disk,
            self.environment.clock,
            directory,
            incarnation=incarnation,
            boot=self.environment.boot,
        )

    def fill(self, entries, *, behind_snapshot):
        log = GroupLog.create(
            self.disk,
            self.environment.clock,
            SOURCE,
            incarnation=OLD,
            boot=self.environment.boot,
            membership=Membership(()) if behind_snapshot else MEMBERS,
        )
        log.close()
        if behind_snapshot:
            self.write_snapshot(b"the machine" * 1_000)
        log = self.open(SOURCE, OLD)
        previous, index = log.chain(log.last_index), log.last_index
        for number in range(entries):
            index += 1
            entry = build(
                previous_chain=previous,
                index=index,
                term=8,
                kind=COMMANDS,
                log_time=2_000,
                commands=(Command(b"%d" % number, b"x" * 1_000),),
            )
            previous = entry.chain
            write = Write(
                log.state.last_write + number + 1, None, 0, (entry,), 9, 5, index, 8, previous,
                META.index if behind_snapshot else 0,
                META.chain if behind_snapshot else bytes(16),
            )  # fmt: skip
            log.write(write)
        log.close()
        return index, previous

    def write_snapshot(self, body):
        slices = Struct("<I").pack(len(body)) + body
        end = Struct("<IQ").pack(0xFFFF_FFFF, xxh3_64_intdigest(slices))
        path = f"{SOURCE}/{snapshot_name(META.index)}"
        file = self.disk.open(path, create=True)
        file.write(0, (encode_header(META, OLD) + slices + end,))
        file.sync_now()
        file.close()
        self.disk.sync_directory(SOURCE)


@pytest.mark.parametrize("behind_snapshot", [False, True])
def test_all_that_verifies_is_in_the_copy(offline, behind_snapshot, monkeypatch):
    monkeypatch.setattr(copying, "PORTION_BYTES", 5_000)

    def work():
        index, chain = offline.fill(30, behind_snapshot=behind_snapshot)
        before = {path: offline.disk.contents(path) for path in offline.disk.paths()}
        copy_log(offline.environment, SOURCE, TARGET, incarnation=NEW)
        for path, content in before.items():
            assert offline.disk.contents(path) == content, "the old directory is only read"
        log = offline.open(TARGET, NEW)
        assert log.condition is Condition.OK
        assert (log.last_index, log.chain(index)) == (index, chain)
        assert (log.state.term, log.state.vote) == (9, 0)
        entries = log.entries(log.first_index, index + 1, 1 << 30)
        assert len(entries) == 30
        assert log.snapshot.membership == MEMBERS
        if behind_snapshot:
            meta, slices = log.read_snapshot()
            assert meta == META
            assert b"".join(slices) == b"the machine" * 1_000
            assert log.state.commit_index == META.index
        log.close()
        return True

    assert offline.run(work)


def test_a_copy_that_was_cut_is_begun_anew(offline):
    def work():
        index, chain = offline.fill(5, behind_snapshot=True)
        for _ in range(2):
            copy_log(offline.environment, SOURCE, TARGET, incarnation=NEW)
        log = offline.open(TARGET, NEW)
        assert log.chain(index) == chain
        log.close()
        return True

    assert offline.run(work)


def test_what_lacks_its_snapshot_or_an_entry_is_not_copied(offline):
    def work():
        offline.fill(5, behind_snapshot=True)
        offline.disk.flip_bit(f"{SOURCE}/{snapshot_name(META.index)}", 200)
        with pytest.raises(Corrupted, match="begins behind is lost"):
            copy_log(offline.environment, SOURCE, TARGET, incarnation=NEW)
        return True

    assert offline.run(work)
