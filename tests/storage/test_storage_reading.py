"""What can be read of a log: entries, batches by offset, snapshots."""

import errno

import pytest
from storage_world import MEMBERS, World, publish
from test_storage_safety import units_of

from raftq import batch
from raftq.errors import Corrupted
from raftq.limits import STALLED_SYNC_MICROS
from raftq.raft.entry import BODY_IS_DIGEST, HEADER, Command
from raftq.raft.ready import SnapshotMeta
from raftq.storage.batch_index import BatchIndex
from raftq.storage.group_log import Condition, Sizes

SMALL = Sizes(2_048, 8_192, 0)


@pytest.fixture
def world() -> World:
    world = World(1)
    world.create()
    return world


def make_batch(base: int, count: int = 3, *, queue: int = 5, partition: int = 2) -> Command:
    bodies = [b"message %d" % (base + n) * 20 for n in range(count)]
    data = batch.encode(bodies, queue=queue, partition=partition)
    return publish(queue, partition, base, data, count)


# --- Reading -----------------------------------------------------------------------------------


def test_entries_are_cut_at_a_size_but_one_is_always_given(world):
    world.write_and_sync(5, 1_000)
    log = world.log
    assert len(log.entries(1, 6, 1)) == 1
    assert len(log.entries(1, 6, 2_500)) == 2
    assert len(log.entries(2, 4, 1 << 20)) == 2
    assert log.entries(3, 3, 100) == []
    with pytest.raises(LookupError):
        log.entries(6, 7, 100)
    with pytest.raises(LookupError):
        log.entries(0, 2, 100)


def test_batches_are_found_by_offset_across_entries_segments_and_a_restart():
    world = World(1, sizes=SMALL)
    world.create()
    for base in range(0, 60, 6):
        commands = [make_batch(base), make_batch(base, partition=3), make_batch(base + 3)]
        world.log.write(world.writer.write([commands]))
        world.time.run()
    for _ in range(2):
        log = world.log
        found = log.batches(5, 2, 0, 60, 1 << 20)
        assert [item.base_offset for item in found] == list(range(0, 60, 3))
        assert [item.count for item in found] == [3] * 20
        assert [item.index for item in found] == [1 + n // 2 for n in range(20)]
        assert [item.log_time for item in found] == [1_001 + n // 2 for n in range(20)]
        for item in found:
            assert batch.Batch(item.data).bodies()[0].startswith(b"message %d" % item.base_offset)
        assert [item.base_offset for item in log.batches(5, 2, 4, 10, 1 << 20)] == [3, 6, 9]
        assert [item.base_offset for item in log.batches(5, 2, 3, 4, 1 << 20)] == [3]
        assert [item.base_offset for item in log.batches(5, 2, 20, 60, 1)] == [18]
        assert [item.base_offset for item in log.batches(5, 3, 0, 13, 1 << 20)] == [0, 6, 12]
        assert log.batches(5, 3, 3, 6, 1 << 20) == []
        assert log.batches(5, 2, 60, 70, 1 << 20) == []
        assert log.batches(9, 0, 0, 10, 1 << 20) == []
        assert log.offsets(5, 2) == (0, 60)
        assert log.offsets(9, 9) is None
        world.kill()
        world.open()


def test_batches_that_were_truncated_are_not_found_and_their_offsets_are_used_again(world):
    for base in (0, 3, 6):
        world.log.write(world.writer.write([[make_batch(base)]]))
    world.log.write(world.writer.write([[make_batch(3, 2)]], truncate_from=2))
    world.time.run()
    assert [(b.base_offset, b.count) for b in world.log.batches(5, 2, 0, 99, 1 << 20)] == [
        (0, 3),
        (3, 2),
    ]


def test_batches_of_queued_writes_are_found_too(world):
    world.log.write(world.writer.write([[make_batch(0)]]))
    world.disk.stall(500_000)
    world.time.run()
    world.log.write(world.writer.write([[make_batch(3)]]))
    world.time.run(STALLED_SYNC_MICROS)
    world.log.write(world.writer.write([[make_batch(6)], [make_batch(9)]]))
    found = world.log.batches(5, 2, 1, 9, 1 << 20)
    assert [(b.base_offset, b.index) for b in found] == [(0, 1), (3, 2), (6, 3)]
    assert len(world.log.batches(5, 2, 0, 99, 1)) == 1


def test_a_rotten_batch_is_never_given_out(world):
    world.log.write(world.writer.write([[make_batch(0)]]))
    world.time.run()
    path = world.segments()[-1]
    world.disk.flip_bit(path, units_of(world, path)[-1].end - 5)
    with pytest.raises(Corrupted):
        world.log.batches(5, 2, 0, 3, 1 << 20)
    assert world.log.damage


def test_a_body_replaced_by_its_digest_is_no_batch_but_those_behind_it_are_found(world):
    entry = world.writer.entry([make_batch(0), make_batch(3)], 1, bytes(16))
    head = bytearray(entry.vectors[0])
    head[HEADER.size + 3] |= BODY_IS_DIGEST >> 24
    head[HEADER.size + 4 : HEADER.size + 8] = (16).to_bytes(4, "little")
    index = BatchIndex()
    index.add_entry(bytes(head), 1, 1_000)
    (found,) = index.find(5, 2, 0, 99, 1)
    assert found.base_offset == 3
    assert found.place.position == 1_000 + HEADER.size + 16 + 64 + 16


# --- Snapshots ---------------------------------------------------------------------------------


def take_snapshot(world: World, slices: list[bytes], done: list[int]) -> SnapshotMeta:
    last = world.writer.entries[-1]
    meta = SnapshotMeta(last.index, last.term, last.chain, last.log_time, MEMBERS)
    writer = world.log.begin_snapshot(meta, lambda: done.append(last.index))
    for piece in slices:
        writer.write(piece)
    writer.finish()
    return meta


def test_a_snapshot_counts_only_when_it_is_durable_and_keeps_its_slices(world):
    world.write_and_sync(3)
    done = []
    slices = [b"one", b"two" * 100_000, b"x"]
    meta = take_snapshot(world, slices, done)
    assert world.log.snapshot.index == 0
    world.time.run()
    assert (done, world.log.snapshot) == ([3], meta)
    world.power_loss()
    log = world.open()
    found, pieces = log.read_snapshot()
    assert (found, list(pieces)) == (meta, slices)
    assert (log.first_index, log.last_index, log.state.commit_index) == (1, 3, 3)


def test_only_the_newest_two_snapshots_are_kept(world):
    for _ in range(4):
        world.write_and_sync(1)
        take_snapshot(world, [b"s"], [])
        world.time.run()
    names = [path for path in world.disk.paths() if "snapshot" in path]
    assert [int(name.rpartition("-")[2]) for name in names] == [3, 4]
    with pytest.raises(LookupError):
        world.log.snapshots.read_bytes(1, 0, 10)


def test_a_snapshot_travels_in_pieces_of_any_size_and_is_checked_as_a_whole(world):
    world.write_and_sync(3)
    meta = take_snapshot(world, [b"first", b"second" * 1_000], [])
    world.time.run()
    pieces, position, is_last = [], 0, False
    while not is_last:
        piece, is_last = world.log.snapshots.read_bytes(3, position, 700)
        pieces.append(piece)
        position += len(piece)
    for spoilt in (False, True):
        other = World(9)
        other.create()
        over = []
        receiver = other.log.begin_snapshot(meta, lambda over=over: over.append(1))
        for n, piece in enumerate(pieces):
            receiver.write_raw(piece[:-1] + b"?" if spoilt and n == 2 else piece)
        receiver.finish()
        other.time.run()
        assert over == [1]
        assert (other.log.snapshot == meta) is not spoilt
        assert not any(path.endswith(".tmp") for path in other.disk.paths())


def test_a_snapshot_that_cannot_be_written_harms_nothing(world):
    world.write_and_sync(1)
    world.disk.capacity_bytes = world.disk.used_bytes + 1_000
    done = []
    take_snapshot(world, [b"much" * 100_000], done)
    world.time.run()
    assert (done, world.log.snapshot.index, world.failures) == ([1], 0, [])
    assert not any("snapshot" in path for path in world.disk.paths())
    world.disk.capacity_bytes <<= 10
    world.write_and_sync(1)
    abandoned = world.log.begin_snapshot(world.log.snapshot._replace(index=2), lambda: None)
    abandoned.write(b"x")
    abandoned.abandon()
    assert not any("snapshot" in path for path in world.disk.paths())


def failing(error, times=1):
    """A disk operation that fails so many times; what has the name of it after that goes on."""

    def wrap(operation):
        left = times

        def call(*arguments):
            nonlocal left
            if left:
                left -= 1
                raise error
            return operation(*arguments)

        return call

    return wrap


def test_a_snapshot_that_cannot_get_its_name_is_forgotten_and_the_next_is_taken(world):
    world.write_and_sync(1)
    error = OSError(errno.ENOSPC, "the directory is full")
    world.disk.rename = failing(error)(world.disk.rename)
    world.disk.remove = failing(error)(world.disk.remove)
    done = []
    take_snapshot(world, [b"little"], done)
    world.time.run()
    assert (done, world.log.snapshot.index, world.failures) == ([1], 0, [])
    take_snapshot(world, [b"little"], done)
    world.time.run()
    assert (done, world.log.snapshot.index, world.failures) == ([1, 1], 1, [])


def test_an_old_snapshot_that_cannot_be_removed_harms_nothing(world):
    world.disk.remove = failing(OSError(errno.EIO, "no"), -1)(world.disk.remove)
    done = []
    for index in (1, 2, 3):
        world.write_and_sync(1)
        take_snapshot(world, [b"s"], done)
        world.time.run()
        assert world.log.snapshot.index == index
    assert (done, world.failures) == ([1, 2, 3], [])


@pytest.mark.parametrize("what", ["file", "directory"])
def test_a_failed_sync_of_a_snapshot_is_the_nodes_end(world, what):
    """What the sync reported may have been another file's: nothing is written any more."""
    world.write_and_sync(1)
    if what == "file":
        world.disk.fail_syncs(1, path_contains="snapshot")
    else:
        error = OSError(errno.EIO, "no")
        world.disk.sync_directory = failing(error)(world.disk.sync_directory)
    done = []
    take_snapshot(world, [b"little"], done)
    world.time.run()
    assert (done, world.log.snapshot.index, len(world.failures)) == ([], 0, 1)
    operations = world.disk.operations
    world.write(1)
    world.time.run()
    assert world.disk.operations == operations


def test_a_snapshot_with_another_chain_than_the_log_wins(world):
    world.write_and_sync(5)
    meta = SnapshotMeta(4, 6, b"d" * 16, 9, MEMBERS)
    writer = world.log.begin_snapshot(meta, lambda: None)
    writer.write(b"state")
    writer.finish()
    world.time.run()
    world.kill()
    log = world.open()
    assert (log.condition, log.snapshot) == (Condition.OK, meta)
    assert (log.first_index, log.last_index, log.state.commit_index) == (5, 4, 4)
    assert (log.chain(4), log.term(4), log.state.term) == (meta.chain, 6, 6)
