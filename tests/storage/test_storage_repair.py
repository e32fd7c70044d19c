"""Every class of damage in every kind of file: found, never served, and healed from a peer."""

import pytest
from storage_world import MEMBERS, World, publish
from test_storage_safety import units_of

from raftq.batch import encode
from raftq.errors import Corrupted
from raftq.raft.ready import SnapshotMeta
from raftq.storage.faults import Faults
from raftq.storage.group_log import Condition, Sizes
from raftq.storage.patch import Patch, patch_name
from raftq.storage.unit import UNIT_HEADER_BYTES

SMALL = Sizes(2_048, 4_096, 0)


def batch(offset: int) -> bytes:
    return encode([b"body of %d " % offset * 12], queue=5, partition=3)


def make(seed: int = 2, *, keep_indexes: bool = False, **options) -> World:
    """Several sealed segments with a batch in each entry; offsets are indexes less one."""
    world = World(seed, sizes=SMALL, **options)
    world.create()
    for number in range(9):
        world.writer.commit = max(0, 2 * number - 2)
        first = world.writer.last_index
        commands = [[publish(5, 3, offset, batch(offset), 1)] for offset in range(first, first + 2)]
        world.log.write(world.writer.write(commands))
        world.time.run()
    world.idle()
    world.kill()
    if not keep_indexes:
        for path in [path for path in world.disk.paths() if path.endswith(".index")]:
            world.disk.lose_file(path)
    return world


def piece(world: World, first: int, last: int) -> Patch:
    """What a whole peer would give."""
    entries = world.writer.entries[first - 1 : last]
    return Patch(world.writer.chain_at(first - 1), tuple(entries))


def heal(world: World, *, size: int = 100) -> int:
    """Fill all holes from behind, in pieces; the number of patches."""
    written = 0
    while world.log.holes:
        hole = world.log.holes[-1]
        first = max(hole.first, hole.last - size + 1)
        heard = []
        world.log.patches.write(piece(world, first, hole.last), heard.append)
        world.time.run()
        assert heard == [True]
        written += 1
    return written


def served(world: World) -> int:
    """What entries and batches give is what was written; the number of entries refused."""
    log, refused = world.log, 0
    for entry in world.writer.entries:
        try:
            (found,) = log.entries(entry.index, entry.index + 1, 1)
            assert b"".join(map(bytes, found.vectors)) == b"".join(map(bytes, entry.vectors))
        except Corrupted:
            refused += 1
    for offset in range(len(world.writer.entries)):
        try:
            (stored,) = log.batches(5, 3, offset, offset + 1, 1)
            assert (stored.base_offset, bytes(stored.data)) == (offset, batch(offset))
            assert stored.index == offset + 1
        except Corrupted:
            assert log.holes
    return refused


def check_healed(world: World) -> None:
    assert world.log.condition is Condition.OK
    assert served(world) == 0
    assert world.log.offsets(5, 3) == (0, len(world.writer.entries))
    everything = world.log.batches(5, 3, 0, 100, 1 << 20)
    assert [each.base_offset for each in everything] == list(range(len(world.writer.entries)))
    for index in range(1, world.writer.last_index + 1):
        assert world.log.chain(index) == world.writer.chain_at(index)
        assert world.log.term(index) == 1


def flip_header(world, path, unit):
    world.disk.flip_bit(path, unit.position + 60)


def flip_body(world, path, unit):
    world.disk.flip_bit(path, unit.position + UNIT_HEADER_BYTES + unit.body_bytes // 2)


def zero_tail(world, path, unit):
    world.disk.zero(path, unit.position, len(world.disk.contents(path)))


def stale_sector(world, path, unit):
    sector = (unit.position + UNIT_HEADER_BYTES) // 512
    world.disk.lose_sector(path, sector, keep_bytes=max(0, unit.position - sector * 512))


def truncate(world, path, unit):
    world.disk.truncate(path, unit.position + 20)


def empty(world, path, unit):
    world.disk.truncate(path, 0)


def flip_segment_header(world, path, unit):
    world.disk.flip_bit(path, 30)


def lose(world, path, unit):
    world.disk.lose_file(path)


CLASSES = (
    flip_header,
    flip_body,
    zero_tail,
    stale_sector,
    truncate,
    empty,
    flip_segment_header,
    lose,
)


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


def open_with_hole(**options) -> World:
    world = make(**options)
    path = world.segments()[1]
    zero_unit = units_of(world, path)[3]
    world.disk.zero(path, zero_unit.position, zero_unit.end)
    world.open()
    assert len(world.log.holes) == 1
    return world


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
    assert [entry.index for entry in log.suffix(2, 9, 3 * one + 10).entries] == [7, 8, 9]
    assert [entry.index for entry in log.suffix(8, 9, 1 << 20).entries] == [8, 9]
    assert [entry.index for entry in log.suffix(2, 9, 1).entries] == [9]
    assert log.suffix(2, 9, 1).previous_chain == world.writer.chain_at(8)
    assert log.suffix(2, 99, 1 << 20) is None


def test_a_suffix_for_a_peer_stops_at_what_is_lost_here():
    world = open_with_hole()
    first, last = world.log.holes[0]
    assert world.log.suffix(1, last, 1 << 20) is None
    found = world.log.suffix(1, last + 2, 1 << 20)
    assert [entry.index for entry in found.entries] == [last + 1, last + 2]
    assert found.previous_chain == b""
    assert world.log.suffix(1, first - 1, 1 << 20).entries[-1].index == first - 1


def test_what_rots_before_a_peer_asks_is_not_given_to_it():
    world = make()
    world.open()
    path = world.segments()[0]
    flip_body(world, path, units_of(world, path)[-1])
    found = world.log.suffix(1, 9, 1 << 20)
    assert [hole.last for hole in world.log.holes] == [found.entries[0].index - 1]
    assert found.previous_chain == b""


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
