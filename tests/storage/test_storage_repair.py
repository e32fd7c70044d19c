"""Every class of damage in every kind of file: found, never served, and healed from a peer."""

import pytest
from repair_world import (
    CLASSES,
    SMALL,
    batch,
    check_healed,
    flip_body,
    flip_header,
    flip_segment_header,
    heal,
    make,
    open_with_hole,
    piece,
    served,
)
from storage_world import MEMBERS, World, publish
from test_storage_reader import directory_of, read_all
from test_storage_safety import units_of

from raftq.errors import Corrupted
from raftq.raft.ready import SnapshotMeta
from raftq.sim.disk import SimulatedCrash
from raftq.storage.faults import Faults
from raftq.storage.group_log import Condition
from raftq.storage.patch import Patch, patch_name
from raftq.storage.reader import read_replica
from raftq.storage.suffix import suffix


@pytest.mark.parametrize("keep_indexes", [False, True])
@pytest.mark.parametrize("damage", CLASSES, ids=lambda damage: damage.__name__)
def test_damage_inside_is_found_never_served_and_healed_for_good(damage, keep_indexes):
    sound = make()
    for path in sound.segments()[:-1]:
        for unit in [unit for unit in units_of(sound, path) if unit.body_bytes][::2]:
            world = make(keep_indexes=keep_indexes)
            damage(world, path, unit)
            world.boot += 1
            log = world.open()
            refused = served(world)
            assert refused == sum(hole.last - hole.first + 1 for hole in log.holes)
            assert bool(refused) == (log.condition is Condition.DAMAGED)
            if damage is not flip_segment_header and not (keep_indexes and damage is flip_header):
                assert refused or unit.last_index == 0 or keep_indexes
            assert log.damage or keep_indexes
            heal(world, size=3)
            check_healed(world)
            world.power_loss()
            world.open()
            # An index that came to light again may show a larger hole than was repaired.
            heal(world)
            check_healed(world)
            world.write_and_sync(2, 100)
            world.kill()
            world.open()
            assert world.log.condition is Condition.OK


def test_after_a_restart_a_repaired_log_is_sound_without_a_peer():
    world = make()
    path = world.segments()[1]
    flip_body(world, path, units_of(world, path)[1])
    damaged = world.disk.contents(path)
    world.open()
    assert heal(world, size=1) > 1
    for _ in range(3):
        world.power_loss()
        log = world.open()
        assert log.condition is Condition.OK
        assert log.patches.names()
        check_healed(world)
    assert world.disk.contents(path) == damaged, "what is damaged is not touched"


def rejected(world: World, patch: Patch) -> None:
    heard = []
    before = list(world.log.holes)
    world.log.patches.write(patch, heard.append)
    world.time.run()
    assert heard == [False]
    assert world.log.holes == before
    assert served(world)
    assert not [path for path in world.disk.paths() if "patch" in path]


def other_history(world: World, first: int, last: int) -> Patch:
    """Entries that follow from the same beginning, and are not what this log held."""
    other = World(9)
    other.writer.entries = world.writer.entries[: first - 1]
    other.writer.write([[publish(5, 3, n - 1, b"false", 1)] for n in range(first, last + 1)])
    return Patch(world.writer.chain_at(first - 1), tuple(other.writer.entries[first - 1 :]))


def test_what_does_not_join_behind_is_refused():
    world = open_with_hole()
    first, last = world.log.holes[0]
    rejected(world, other_history(world, first, last))
    rejected(world, piece(world, first, last - 1))


def test_what_does_not_join_before_is_refused():
    world = open_with_hole()
    first, last = world.log.holes[0]
    good = piece(world, first, last)
    rejected(world, good._replace(previous_chain=b"x" * 16))


def test_a_log_that_does_not_ask_for_the_join_behind_serves_what_never_was():
    world = open_with_hole(faults=Faults(patch_not_joined_behind=True))
    first, last = world.log.holes[0]
    world.log.patches.write(other_history(world, first, last), lambda _: None)
    world.time.run()
    with pytest.raises(AssertionError):
        served(world)


def test_a_patch_that_was_truncated_meanwhile_is_not_used():
    world = open_with_hole()
    first, last = world.log.holes[0]
    heard = []
    world.log.patches.write(piece(world, first, last), heard.append)
    world.writer.commit = 0
    world.writer.term = 2
    world.log.write(world.writer.write(world.writer.bodies(1, 50), truncate_from=first))
    world.time.run()
    assert heard == [False]
    assert not world.log.holes
    assert world.log.last_index == first
    world.power_loss()
    assert world.open().chain(first) == world.writer.chain_at(first)


def test_a_patched_tail_may_be_truncated():
    world = open_with_hole()
    first, last = world.log.holes[0]
    heal(world, size=1)
    world.writer.commit = 0
    world.writer.term = 2
    commands = [[publish(5, 3, last - 1, batch(77), 1)]]
    world.log.write(world.writer.write(commands, truncate_from=last))
    world.time.run()
    for _ in range(3):
        stored = world.log.batches(5, 3, 0, 100, 1 << 20)
        assert [each.base_offset for each in stored] == list(range(last))
        assert bytes(stored[-1].data) == batch(77)
        world.power_loss()
        world.boot += 1
        world.open()
        if world.log.holes:
            heal(world)
    assert first < last


@pytest.mark.parametrize("power", [False, True])
def test_a_repair_cut_at_every_operation_leaves_the_hole_or_fills_it(power):
    cuts = 0
    for after in range(1, 60):
        world = open_with_hole(seed=after)
        lost = sum(hole.last - hole.first + 1 for hole in world.log.holes)
        world.disk.crash_at = world.disk.operations + after
        try:
            heal(world, size=1)
        except SimulatedCrash:
            cuts += 1
        world.disk.crash_at = 0
        world.kill()
        if power:
            world.power_loss()
        world.open()
        assert served(world) <= lost
        assert not [path for path in world.disk.paths() if path.endswith(".tmp")]
        heal(world)
        check_healed(world)
    assert 5 < cuts < 59, "some are cut, and some come to their end"


PATCH_DAMAGE = {
    "flip in header": lambda world, path: world.disk.flip_bit(path, 40),
    "flip in body": lambda world, path: world.disk.flip_bit(path, 300),
    "truncated": lambda world, path: world.disk.truncate(path, 250),
    "emptied": lambda world, path: world.disk.truncate(path, 0),
    "zeroed tail": lambda world, path: world.disk.zero(path, 200, 400),
    "missing": lambda world, path: world.disk.lose_file(path),
}


@pytest.mark.parametrize("kind", PATCH_DAMAGE)
def test_a_damaged_patch_is_damage_like_any_other_and_fetched_again(kind):
    world = open_with_hole()
    first, last = world.log.holes[0]
    heal(world)
    path = f"group-1/{patch_name(first, last)}"
    assert path in world.disk.paths()
    world.kill()
    PATCH_DAMAGE[kind](world, path)
    log = world.open()
    assert log.condition is Condition.DAMAGED
    assert served(world) == last - first + 1
    heal(world)
    check_healed(world)
    world.kill()
    world.open()
    check_healed(world)


def test_a_patch_of_another_replica_does_not_verify():
    world = open_with_hole()
    first, last = world.log.holes[0]
    heal(world)
    path = f"group-1/{patch_name(first, last)}"
    data = bytearray(world.disk.contents(path))
    data[8] ^= 1
    world.kill()
    world.disk.lose_file(path)
    world.disk.open(path, create=True).write(0, [data])
    assert world.open().condition is Condition.DAMAGED


@pytest.mark.parametrize("keep_indexes", [False, True])
def test_rot_in_a_running_log_is_found_when_it_is_read_and_healed_without_a_restart(keep_indexes):
    world = make(keep_indexes=keep_indexes)
    world.open()
    told = []
    world.log.listen_to_damage(lambda: told.append(world.log.holes[:]))
    path = world.segments()[1]
    for unit in units_of(world, path)[1:3]:
        flip_body(world, path, unit)
    refused = served(world)
    assert refused >= 2
    assert told
    assert world.log.condition is Condition.DAMAGED
    heal(world)
    check_healed(world)
    flip = world.log.patches.names()
    hole, name = next(iter(flip.items()))
    world.disk.flip_bit(f"group-1/{name}", 200)
    assert served(world) == 1, "what rots in a patch is found as well"
    assert world.log.holes[0].first >= hole.first
    heal(world)
    check_healed(world)


def test_a_rotten_chain_value_is_never_told_to_a_peer():
    world = make()
    world.open()
    place = world.log._contents.entries.place(3)
    path = next(p for p in world.segments() if f"{place.segment:08d}" in p)
    world.disk.flip_bit(path, place.position + 45)
    assert world.log.chain(3) is None
    assert [tuple(hole) for hole in world.log.holes] == [(3, 4)]
    heal(world)
    check_healed(world)


def test_a_batch_behind_a_hole_is_not_given_for_one_in_it():
    world = open_with_hole()
    first, last = world.log.holes[0]
    with pytest.raises(Corrupted, match="lost"):
        world.log.batches(5, 3, first - 1, 100, 1 << 20)
    before = world.log.batches(5, 3, 0, 100, 1 << 20)
    assert [each.base_offset for each in before] == list(range(first - 1))
    behind = world.log.batches(5, 3, last, 100, 1 << 20)
    assert [each.base_offset for each in behind] == list(range(last, 18))


def test_a_suffix_for_a_peer_ends_where_it_was_asked_to_and_is_bounded():
    world = make()
    log = world.open()
    one = world.writer.entries[0].size
    assert [entry.index for entry in suffix(log, 2, 9, 3 * one + 10).entries] == [7, 8, 9]
    assert [entry.index for entry in suffix(log, 8, 9, 1 << 20).entries] == [8, 9]
    assert [entry.index for entry in suffix(log, 2, 9, 1).entries] == [9]
    assert suffix(log, 2, 9, 1).previous_chain == world.writer.chain_at(8)
    assert suffix(log, 2, 99, 1 << 20) is None


def test_a_suffix_for_a_peer_stops_at_what_is_lost_here():
    world = open_with_hole()
    first, last = world.log.holes[0]
    assert suffix(world.log, 1, last, 1 << 20) is None
    found = suffix(world.log, 1, last + 2, 1 << 20)
    assert [entry.index for entry in found.entries] == [last + 1, last + 2]
    assert found.previous_chain == b""
    assert suffix(world.log, 1, first - 1, 1 << 20).entries[-1].index == first - 1


def test_what_rots_before_a_peer_asks_is_not_given_to_it():
    world = make()
    world.open()
    path = world.segments()[0]
    flip_body(world, path, units_of(world, path)[-1])
    found = suffix(world.log, 1, 9, 1 << 20)
    assert [hole.last for hole in world.log.holes] == [found.entries[0].index - 1]
    assert found.previous_chain == b""


def test_the_offline_reader_reads_patches_and_says_what_is_repaired(tmp_path):
    world = open_with_hole()
    first, last = world.log.holes[0]
    world.kill()
    replica = read_replica(*directory_of(world, tmp_path))
    assert replica.condition is Condition.DAMAGED
    assert replica.problems
    world.open()
    heal(world, size=2)
    world.kill()
    names, open_file = directory_of(world, tmp_path)
    replica = read_replica(names, open_file)
    assert (replica.condition, replica.problems) == (Condition.OK, ())
    assert "damaged or missing" in replica.repaired[0]
    found = read_all(replica, open_file)
    assert [entry.entry.chain for entry in found] == [e.chain for e in world.writer.entries]
    assert all(entry.proved for entry in found)
    patches = [live for live in replica.ranges if live.name.startswith("patch-")]
    assert (patches[0].first_index, patches[-1].last_index) == (first, last)
    path = next(path for path in tmp_path.iterdir() if path.name == patches[0].name)
    path.write_bytes(path.read_bytes()[:-1])
    replica = read_replica(names, open_file)
    assert replica.condition is Condition.DAMAGED
    assert any(path.name in problem for problem in replica.problems)


def test_a_newest_segment_that_is_gone_is_amnesia_where_an_index_proves_it():
    world = make(keep_indexes=True)
    newest = world.segments()[-1]
    for path in world.disk.paths():
        if path == newest or "spare" in path:
            world.disk.lose_file(path)
    log = world.open()
    assert log.condition is Condition.AMNESIAC
    assert "is missing" in log.damage[0]


def test_the_first_membership_survives_its_unit():
    world = make()
    flip_body(world, world.segments()[0], units_of(world, world.segments()[0])[0])
    assert world.open().snapshot.membership == MEMBERS
    world.kill()
    world.disk.flip_bit("group-1/members", 30)
    log = world.open()
    assert log.contradictions
    assert log.condition is Condition.DAMAGED


def test_a_lost_end_of_the_log_is_known_by_its_chain():
    world = make()
    log = world.open()
    log._damage.suspect(1, 2, "nothing is wrong")
    assert not log.holes
    last = world.writer.last_index
    log._contents.lose(last, last)
    assert log.log_time(last) is not None
    assert log.chain(last) == world.writer.chain_at(last)
    rejected(world, other_history(world, last, last))
    heal(world)
    check_healed(world)


def test_a_log_that_lost_the_snapshot_it_begins_with_says_so():
    world = World(2, sizes=SMALL)
    world.create()
    world.write_and_sync(2, 100)
    meta = SnapshotMeta(70, 2, b"c" * 16, 5, MEMBERS)
    writer = world.log.begin_snapshot(meta, lambda: None)
    writer.write(b"installed")
    writer.finish()
    world.time.run()
    world.writer.term = 2
    world.write_and_sync(1, 100, reset=meta)
    assert not world.log.needs_snapshot
    world.disk.lose_file(f"group-1/snapshot-{70:020d}")
    world.kill()
    assert world.open().needs_snapshot
