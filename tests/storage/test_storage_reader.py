"""The offline walker: live ranges, the commit mark, and every entry once."""

import pytest
from storage_world import MEMBERS, World
from test_storage_safety import find_unit

from raftq.raft.ready import SnapshotMeta
from raftq.storage.group_log import Condition, Sizes
from raftq.storage.offline import open_directory
from raftq.storage.reader import entries_in, read_replica, units_in
from raftq.storage.unit import UNIT_HEADER_BYTES

SMALL = Sizes(2_048, 4_096, 0)


def directory_of(world: World, tmp_path):
    """The simulated disk's files on a real one."""
    for path in world.disk.paths():
        (tmp_path / path.rpartition("/")[2]).write_bytes(world.disk.contents(path))
    return open_directory(tmp_path)


def read_all(replica, open_file) -> list:
    found = []
    for live in replica.ranges:
        file = open_file(live.name)
        entries = list(entries_in(file, live))
        assert [entry.entry.index for entry in entries] == list(
            range(live.first_index, live.last_index + 1)
        )
        found += entries
        file.close()
    return found


@pytest.fixture
def world() -> World:
    """Truncations, rolls, two recoveries, and entries behind the last mark."""
    world = World(3, sizes=SMALL)
    world.create()
    world.write_and_sync(6, 200)
    world.writer.term, world.writer.commit = 2, 3
    world.write_and_sync(4, 300, truncate_from=4)
    world.writer.commit = 5
    world.write_and_sync(3, 400)
    world.kill()
    world.open()
    world.write_and_sync(2, 900)
    world.writer.term = 3
    world.write_and_sync(0, 0, truncate_from=9)
    world.write_and_sync(3, 100)
    world.kill()
    world.open()
    world.write_and_sync(2, 100, truncate_from=7)
    world.write_and_sync(1, 100)
    return world


def test_live_ranges_hold_every_entry_of_the_log_once_and_nothing_else(world, tmp_path):
    names, open_file = directory_of(world, tmp_path)
    replica = read_replica(names, open_file)
    assert (replica.condition, replica.problems) == (Condition.OK, ())
    found = read_all(replica, open_file)
    assert [item.entry.chain for item in found] == [entry.chain for entry in world.writer.entries]
    assert all(item.proved for item in found)
    assert (replica.first_index, replica.last_index) == (1, world.writer.last_index)
    assert (replica.term, replica.last_chain) == (3, world.writer.entries[-1].chain)


def test_the_commit_mark_is_the_one_that_the_log_agrees_with(world, tmp_path):
    replica = read_replica(*directory_of(world, tmp_path))
    assert replica.commit_index == 5
    assert replica.commit_chain == world.writer.chain_at(5)


def test_an_orderly_end_leaves_the_final_mark(world, tmp_path):
    world.log.set_commit(9, world.writer.chain_at(9))
    world.log.close()
    assert read_replica(*directory_of(world, tmp_path)).commit_index == 9


def test_reading_changes_nothing(world, tmp_path):
    names, open_file = directory_of(world, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    read_all(read_replica(names, open_file), open_file)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_damage_is_named_and_what_is_left_is_still_read(world, tmp_path):
    world.idle()
    path, header = find_unit(world, 3)
    world.disk.flip_bit(path, header.position + UNIT_HEADER_BYTES + 100)
    names, open_file = directory_of(world, tmp_path)
    replica = read_replica(names, open_file)
    assert replica.condition is Condition.DAMAGED
    assert "damaged or missing" in replica.problems[0]
    found = read_all(replica, open_file)
    written = {entry.chain for entry in world.writer.entries}
    assert {item.entry.chain for item in found} <= written
    assert {1, 2, 3} <= {item.entry.index for item in found}, "what was committed is certain"


def test_bytes_that_rot_after_the_walk_are_left_out_and_not_called_proved(world, tmp_path):
    replica = read_replica(*directory_of(world, tmp_path))
    live = max(replica.ranges, key=lambda found: found.last_index - found.first_index)
    path = tmp_path / live.name
    data = bytearray(path.read_bytes())
    data[live.start + UNIT_HEADER_BYTES + 60] ^= 1
    path.write_bytes(data)
    _, open_file = open_directory(tmp_path)
    file = open_file(live.name)
    found = list(entries_in(file, live))
    file.close()
    assert len(found) < live.last_index - live.first_index + 1
    assert not found or not found[0].proved


def test_an_empty_directory_is_a_replica_without_anything(tmp_path):
    replica = read_replica(*open_directory(tmp_path))
    assert replica.condition is Condition.AMNESIAC
    assert (replica.ranges, replica.last_index) == ((), 0)


def test_snapshots_are_listed_with_what_is_wrong_with_them(world, tmp_path):
    last = world.writer.entries[4]
    meta = SnapshotMeta(last.index, last.term, last.chain, last.log_time, MEMBERS)
    writer = world.log.begin_snapshot(meta, lambda: None)
    writer.write(b"state")
    writer.finish()
    world.time.run()
    replica = read_replica(*directory_of(world, tmp_path))
    assert [(found.index, found.meta, found.problem) for found in replica.snapshots] == [
        (5, meta, "")
    ]
    path = next(tmp_path.glob("snapshot-*"))
    path.write_bytes(path.read_bytes()[:-1])
    (found,) = read_replica(*open_directory(tmp_path)).snapshots
    assert (found.meta, "checksum" in found.problem) == (None, True)


def test_units_are_listed_dead_ones_included(world, tmp_path):
    names, open_file = directory_of(world, tmp_path)
    replica = read_replica(names, open_file)
    first = open_file(replica.segments[0])
    units = list(units_in(first, incarnation=replica.incarnation, segment=1))
    first.close()
    assert [found.header.number for found in units] == list(range(1, len(units) + 1))
    assert all(found.body is not None for found in units)
