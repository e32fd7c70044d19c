"""The log at work: what waits for what, and how it refuses."""

import pytest
from storage_world import MEMBERS, World
from test_storage_safety import units_of

from raftq.limits import STALLED_SYNC_MICROS
from raftq.raft.ready import SnapshotMeta
from raftq.storage.group_log import GroupLog, Sizes
from raftq.storage.unit import MARK, SHUTDOWN

SMALL = Sizes(2_048, 8_192, 0)


@pytest.fixture
def world() -> World:
    world = World(1)
    world.create()
    return world


# --- Writes and syncs --------------------------------------------------------------------------


def test_a_new_log_holds_the_first_membership_and_nothing_else(world):
    log = world.log
    assert log.snapshot == SnapshotMeta(0, 0, bytes(16), 0, MEMBERS)
    assert (log.first_index, log.last_index, log.read_snapshot()) == (1, 0, None)
    assert (log.term(0), log.chain(0), log.log_time(0)) == (0, bytes(16), 0)
    assert (log.term(1), log.chain(1)) == (None, None)
    world.kill()
    assert world.open().snapshot.membership == MEMBERS


def test_creating_twice_is_refused(world):
    with pytest.raises(FileExistsError):
        world.create()
    assert GroupLog.exists(world.disk, "group-1")
    assert not GroupLog.exists(world.disk, "group-2")


def test_one_sync_covers_all_that_was_written_before_it_was_asked_for(world):
    reported = []
    world.log.on_persisted = reported.append
    for _ in range(4):
        world.write()
    assert reported == []
    world.time.run_one()
    assert reported == [1]
    world.time.run_one()
    assert reported == [1, 4]
    assert world.log.syncs == 2
    assert world.log.unsynced_bytes == 0


def test_what_is_written_from_within_a_report_joins_the_next_sync(world):
    reported = []

    def on_persisted(seq: int) -> None:
        reported.append(seq)
        if seq == 1:
            world.write()

    world.log.on_persisted = on_persisted
    world.write()
    world.time.run()
    assert reported == [1, 2]


def test_behind_a_stalled_sync_writes_wait_in_a_queue_that_can_be_read(world):
    world.disk.stall(500_000)
    world.write(2, 50)
    world.time.run(STALLED_SYNC_MICROS)
    assert world.log.sync_age(world.time.now) == STALLED_SYNC_MICROS
    written = world.log.bytes_written
    world.write(3, 50)
    world.write(2, 50, truncate_from=4)
    assert world.log.bytes_written == written
    assert world.log.unsynced_bytes > 0
    log, expected = world.log, world.writer.entries
    assert log.last_index == 5
    assert [e.chain for e in log.entries(1, 6, 1 << 20)] == [e.chain for e in expected]
    assert [log.chain(n) for n in range(1, 6)] == [e.chain for e in expected]
    assert [log.log_time(n) for n in range(1, 6)] == [e.log_time for e in expected]
    assert [log.term(n) for n in range(1, 7)] == [1, 1, 1, 1, 1, None]
    assert world.writer.persisted == 0
    world.time.run()
    assert world.writer.persisted == 3
    assert log.sync_age(world.time.now) == 0
    world.kill()
    world.open()
    world.check()


def test_a_reset_voids_what_waits_in_the_queue(world):
    world.disk.stall(500_000)
    world.write(2, 50)
    world.time.run(STALLED_SYNC_MICROS)
    world.write(3, 50)
    meta = SnapshotMeta(40, 2, b"c" * 16, 7, MEMBERS)
    snapshot = world.log.begin_snapshot(meta, lambda: None)
    snapshot.finish()
    world.time.run(10_000)
    world.writer.term = 2
    world.write(1, 50, reset=meta)
    assert (world.log.first_index, world.log.last_index) == (41, 41)
    world.time.run()
    world.kill()
    world.open()
    world.check()
    assert world.log.snapshot == meta


def test_too_much_unsynced_is_busy_until_it_is_synced(world):
    world.disk.stall(500_000)
    world.write(9, 1 << 20)
    assert world.log.is_busy
    world.time.run()
    assert not world.log.is_busy


def test_an_entry_larger_than_a_segment_gets_a_longer_one():
    world = World(1, sizes=SMALL)
    world.create()
    world.write_and_sync(1, 100)
    world.write_and_sync(1, 50_000)
    world.write_and_sync(1, 100)
    sizes = [len(world.disk.contents(path)) for path in world.segments()]
    assert max(sizes) > 50_000
    world.kill()
    world.open()
    world.check()


def test_segments_double_up_to_the_largest():
    world = World(1, sizes=SMALL)
    world.create()
    for _ in range(60):
        world.write_and_sync(1, 700)
    sizes = [len(world.disk.contents(path)) for path in world.segments()]
    assert sizes[:4] == [2_048, 4_096, 8_192, 8_192]


def test_while_a_spare_is_prepared_the_loop_does_not_wait():
    world = World(1, sizes=SMALL, prepare_delay=100_000)
    world.create()
    operations = []
    for _ in range(6):
        world.write(1, 900)
    world.disk.on_operation = lambda _, kind, path: operations.append((kind, path))
    world.time.run(50_000)
    assert world.writer.persisted < 6
    assert not any(kind in {"create", "sync_now", "sync_directory"} for kind, _ in operations)
    world.time.run()
    assert world.writer.persisted == 6


def test_closing_writes_what_waits_and_the_final_mark(world):
    world.disk.stall(500_000)
    world.write(1)
    world.time.run(STALLED_SYNC_MICROS)
    world.write(1)
    world.writer.commit = 2
    world.log.set_commit(2, world.writer.chain_at(2))
    world.log.close()
    world.log.close()
    world.time.run()
    assert world.writer.persisted == 0, "nothing is reported after close"
    last = units_of(world, world.segments()[-1])[-1]
    assert (last.flags, last.commit_index, last.last_index) == (MARK | SHUTDOWN, 2, 2)
    assert last.synced_through == last.number - 1
    world.power_loss()
    log = world.open()
    assert (log.state.commit_index, log.state.last_write) == (2, 2)


# --- Failures ----------------------------------------------------------------------------------


def test_a_failed_sync_stops_the_log_once_and_for_ever(world):
    world.write_and_sync()
    world.disk.fail_syncs(1)
    world.write()
    world.write()
    world.time.run()
    assert [error.errno for error in world.failures] == [5]
    world.write()
    world.tick()
    world.time.run()
    world.idle()
    assert (len(world.failures), world.writer.persisted) == (1, 1)
    world.log.close()
    world.power_loss()
    world.open()
    world.check()


def test_after_a_failed_sync_nothing_that_was_in_it_is_believed():
    """A process that starts again sees the pages in the cache; it writes them anew before it counts."""
    world = World(1)
    world.create()
    world.write_and_sync()
    world.disk.fail_syncs(1)
    world.write(2, 300)
    world.time.run()
    world.kill()
    log = world.open()
    assert log.state.last_write == 2
    world.check()
    world.power_loss()
    world.open()
    world.check()
    assert world.writer.seq == 2


def test_a_write_that_fails_stops_the_log(world):
    world.write_and_sync()
    world.disk.capacity_bytes = world.disk.used_bytes + 1_000
    world.write(1, 3 << 20)
    world.time.run()
    assert [error.errno for error in world.failures] == [28]
    assert world.writer.persisted == 1
    world.kill()
    world.disk.capacity_bytes <<= 10
    world.open()
    world.check()


def test_without_a_listener_a_failure_is_raised(world):
    world.kill()
    log = GroupLog.open(world.disk, world.time, "group-1", incarnation=1, boot=1)
    with pytest.raises(OSError, match="gone"):
        log.on_failure(OSError("gone"))


def test_a_disk_that_fills_is_told_early_and_what_frees_space_still_fits():
    world = World(1, sizes=Sizes(2_048, 8_192, 40_000), capacity_bytes=100_000)
    world.create()
    world.tick()
    assert not world.log.is_full
    while not world.log.is_full:
        world.write(1, 1_500)
        world.idle(10_000)
    assert world.disk.free_bytes() > 20_000
    for _ in range(10):
        world.write_and_sync(1, 100)
    assert world.failures == []
    assert len(world.log.entries(1, 10, 1 << 20)) == 9
    world.disk.capacity_bytes = 10_000_000
    world.time.run(200_000)
    world.tick()
    assert not world.log.is_full


def test_when_no_spare_can_be_prepared_the_rest_of_the_disk_is_used():
    world = World(1, sizes=Sizes(2_048, 8_192, 0), capacity_bytes=5_000)
    world.create()
    for _ in range(6):
        world.write(1, 300)
        world.time.run()
    assert world.log.is_full
    assert (world.failures, world.writer.persisted) == ([], 6)
    world.power_loss()
    world.disk.capacity_bytes = 100_000
    world.open()
    world.check()


def snapshot(world, index):
    meta = SnapshotMeta(index, 1, b"c" * 16, 7, MEMBERS)
    writer = world.log.begin_snapshot(meta, lambda: None)
    writer.write(b"state at %d" % index)
    writer.finish()
    world.time.run(10_000)
    assert world.log.snapshot == meta


def test_a_snapshot_that_a_peer_is_given_is_kept_until_it_is_let_go(world):
    snapshots = world.log.snapshots
    snapshot(world, 40)
    snapshots.keep(40)
    for index in (50, 60, 70):
        snapshot(world, index)
    assert [meta.index for meta in snapshots.good] == [40, 60, 70]
    assert snapshots.meta(40).index == 40
    first, done = world.log.snapshots.read_bytes(40, 0, 6)
    rest, done = world.log.snapshots.read_bytes(40, 6, 100)
    assert (first + rest)[4:15] == b"state at 40"
    assert done
    snapshots.let_go(40)
    assert [meta.index for meta in snapshots.good] == [60, 70]
    with pytest.raises(LookupError):
        world.log.snapshots.read_bytes(40, 0, 6)
    with pytest.raises(LookupError):
        snapshots.meta(40)
    world.kill()
    world.open()
    assert [meta.index for meta in world.log.snapshots.good] == [60, 70]


def test_one_that_is_kept_is_no_reason_to_keep_damaged_ones(world):
    snapshots = world.log.snapshots
    snapshot(world, 40)
    snapshots.keep(40)
    snapshots.spoiled.add(45)
    for index in (50, 60):
        snapshot(world, index)
    assert snapshots.spoiled == set()
