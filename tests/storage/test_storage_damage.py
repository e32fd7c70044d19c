"""Every unit of every file is damaged in every way: judged by the rules, never served, never deleted."""

import pytest
from storage_world import INCARNATION, MEMBERS, World
from test_storage_safety import find_unit, units_of

from raftq.errors import Corrupted
from raftq.raft.ready import SnapshotMeta
from raftq.storage.group_log import Condition, Sizes
from raftq.storage.segment import read_segment_header, sequence_of
from raftq.storage.unit import UNIT_HEADER_BYTES

SMALL = Sizes(2_048, 4_096, 0)


def make(*, keep_indexes: bool = False) -> World:
    """Three segments; everything but the last mark is marked. Without indexes all of it is read."""
    world = World(2, sizes=SMALL)
    world.create()
    for number in range(9):
        world.writer.commit = max(0, 2 * number - 2)
        world.write_and_sync(2, 200)
    world.idle()
    world.kill()
    if not keep_indexes:
        for path in indexes(world):
            world.disk.lose_file(path)
    return world


def indexes(world: World) -> list[str]:
    return [path for path in world.disk.paths() if path.endswith(".index")]


def flip_header(world: World, path, unit) -> None:
    world.disk.flip_bit(path, unit.position + 60)


def flip_body(world: World, path, unit) -> None:
    world.disk.flip_bit(path, unit.position + UNIT_HEADER_BYTES + unit.body_bytes // 2)


def flip_length(world: World, path, unit) -> None:
    world.disk.flip_bit(path, unit.position + 10, 6)


def zero(world: World, path, unit) -> None:
    world.disk.zero(path, unit.position, unit.end)


def stale_sector(world: World, path, unit) -> None:
    sector = (unit.position + UNIT_HEADER_BYTES) // 512
    start = sector * 512
    world.disk.lose_sector(path, sector, keep_bytes=max(0, unit.position - start))


def misdirect(world: World, path, unit) -> None:
    sector = unit.position // 512 + 1
    world.disk.misdirect_sector(path, 0 if sector != 0 else 1, sector)


def truncate(world: World, path, unit) -> None:
    world.disk.truncate(path, unit.position + 20)


KINDS = (flip_header, flip_body, flip_length, zero, stale_sector, misdirect, truncate)
TARGETS = [
    (path, unit)
    for world in [make()]
    for path in world.segments()
    for unit in units_of(world, path)
    if unit.body_bytes
]


def marked(world: World) -> int:
    """The highest unit that what is still valid says was synced."""
    known = [unit.synced_through for path in world.segments() for unit in units_of(world, path)]
    for path in world.segments():
        header = read_segment_header(
            world.disk.open(path), sequence=sequence_of(path[8:]), incarnation=INCARNATION
        )
        known.append(header.number if header else 0)
    return max(known)


def assert_only_truth_is_served(world: World) -> int:
    """Every entry is as it was written, or Corrupted; the number of the latter."""
    log, corrupted = world.log, 0
    written = {entry.index: entry for entry in world.writer.entries}
    for index in range(log.first_index, log.last_index + 1):
        try:
            (entry,) = log.entries(index, index + 1, 1 << 30)
        except Corrupted:
            corrupted += 1
            continue
        assert entry.chain == written[index].chain
    return corrupted


def judge(world: World) -> None:
    """What every damaged log must keep to. The log was opened, and its process killed, before."""
    first = world.log.condition
    paths = {path: world.disk.contents(path) for path in world.disk.paths()}
    log = world.open()
    assert log.condition is first, "damage is found again, amnesia is not forgotten"
    for path, content in paths.items():
        # In a sound log a segment whose units were all rewritten may go.
        if "spare" not in path and (
            log.condition is not Condition.OK or path in world.disk.paths()
        ):
            assert world.disk.contents(path) == content, "damage never deletes anything"
    assert_only_truth_is_served(world)
    condition, state = log.condition, log.state
    world.kill()
    log = world.open()
    assert log.condition is condition, "damage is found again, amnesia is not forgotten"
    assert (log.state.term, log.state.vote) == (state.term, state.vote)
    world.power_loss()
    assert world.open().condition is condition


@pytest.mark.parametrize("damage", KINDS, ids=lambda damage: damage.__name__)
def test_a_damaged_synced_unit_is_never_cut_and_never_served(damage):
    assert len({path for path, _ in TARGETS}) >= 3
    found = 0
    for path, unit in TARGETS:
        world = make()
        damage(world, path, unit)
        is_known = unit.number <= marked(world)
        found += is_known
        world.boot += 1
        log = world.open()
        # A unit whose marks went with it cannot be told from one that was never synced.
        assert bool(log.damage) == is_known, f"unit {unit.number}"
        # The first unit holds no entry, and what it says is also known from elsewhere.
        assert (log.condition is not Condition.OK) == is_known or unit.last_index == 0
        if is_known:
            assert_only_truth_is_served(world)
            world.kill()
            judge(world)
        else:
            assert log.tail_cut
            assert log.last_index < world.writer.last_index
    assert found >= len(TARGETS) - 3


@pytest.mark.parametrize("behind", [0, 1, 2, 3])
@pytest.mark.parametrize("is_idle", [False, True])
def test_what_a_lost_truncation_voided_is_never_served_however_often_it_is_opened(behind, is_idle):
    """Entries 5 to 8 were replaced in the lost unit; the old ones still lie in the one before."""
    world = World(2, sizes=SMALL)
    world.create()
    world.writer.commit = 3
    world.write_and_sync(8, 50)
    world.writer.term = 2
    seq = world.write_and_sync(2, 50, truncate_from=5)
    for _ in range(behind):
        world.write_and_sync(1, 50)
    if is_idle or not behind:
        world.idle()
    path, unit = find_unit(world, seq)
    zero(world, path, unit)
    world.power_loss()
    last = world.writer.last_index
    for life in range(4):
        log = world.open()
        assert log.condition is Condition.DAMAGED
        assert log.last_index == last
        assert log.chain(last) == world.writer.chain_at(last)
        assert assert_only_truth_is_served(world) >= 2
        assert len(log.entries(1, 4, 1 << 20)) == 3
        if life == 1:
            log.close()
        world.kill() if life % 2 else world.power_loss()


@pytest.mark.parametrize("damage", KINDS, ids=lambda damage: damage.__name__)
def test_under_an_index_damage_is_found_when_it_is_read_and_never_served(damage):
    for path, unit in TARGETS:
        world = make(keep_indexes=True)
        assert indexes(world)
        damage(world, path, unit)
        world.boot += 1
        log = world.open()
        corrupted = assert_only_truth_is_served(world)
        lost = world.writer.last_index - log.last_index
        assert corrupted or lost or damage not in {flip_body, zero} or unit.last_index == 0
        assert bool(log.damage) == bool(corrupted or log.condition is not Condition.OK)


@pytest.mark.parametrize("order", [0, 1])
def test_a_missing_segment_is_damage_when_a_later_one_proves_it(order):
    world = make()
    segments = world.segments()
    world.disk.lose_file(segments[order])
    log = world.open()
    assert log.condition is Condition.DAMAGED
    assert any("missing" in reason for reason in log.damage)
    world.kill()
    judge(world)


def test_a_damaged_segment_header_is_damage_and_its_units_are_still_read():
    for path in make().segments():
        world = make()
        world.disk.flip_bit(path, 30)
        log = world.open()
        assert log.condition is Condition.OK, "nothing is lost"
        assert log.damage
        assert log.last_index == world.writer.last_index
        found = log.entries(1, log.last_index + 1, 1 << 30)
        assert [entry.chain for entry in found] == [e.chain for e in world.writer.entries]
        world.kill()
        judge(world)


def test_a_damaged_index_is_not_believed_and_made_anew():
    sound = make(keep_indexes=True)
    for path in indexes(sound):
        size = len(sound.disk.contents(path))
        for position in range(0, size, 7):
            world = make(keep_indexes=True)
            before = world.disk.contents(path)
            world.disk.flip_bit(path, position)
            log = world.open()
            assert (log.condition, log.damage) == (Condition.OK, ())
            world.check()
            assert world.disk.contents(path) == before


def test_an_index_of_another_segment_is_not_believed():
    world = make(keep_indexes=True)
    first, second = indexes(world)[:2]
    data = world.disk.contents(first)
    world.disk.lose_file(second)
    world.disk.open(second, create=True).write(0, [data])
    world.open()
    world.check()


def test_no_segment_at_all_is_amnesia():
    world = make()
    for path in world.segments():
        world.disk.lose_file(path)
    log = world.open()
    assert log.condition is Condition.AMNESIAC
    assert log.last_index == 0


def test_another_replicas_files_are_not_believed():
    world = make()
    world.log_options["sizes"] = SMALL
    log = type(world.log).open(
        world.disk, world.time, "group-1", incarnation=99, boot=world.boot, sizes=SMALL
    )
    assert log.condition is Condition.AMNESIAC
    assert (log.last_index, log.state.term) == (0, 0)


def test_a_sector_that_cannot_be_read_is_damage_like_any_other():
    world = make()
    first = world.segments()[0]
    world.disk.unreadable.add(first)
    assert world.open().condition is not Condition.OK


def test_rot_under_a_running_log_is_found_when_it_is_read_and_never_served():
    world = World(2, sizes=SMALL)
    world.create()
    world.write_and_sync(3, 500)
    path = world.segments()[-1]
    unit = units_of(world, path)[-1]
    world.disk.flip_bit(path, unit.end - 10)
    with pytest.raises(Corrupted):
        world.log.entries(1, 4, 1 << 30)
    assert len(world.log.entries(1, 3, 1 << 30)) == 2
    assert len(world.log.damage) == 1


def snapshot_of(world: World, position: int, content: bytes) -> SnapshotMeta:
    entry = world.writer.entries[position]
    meta = SnapshotMeta(entry.index, entry.term, entry.chain, entry.log_time, MEMBERS)
    writer = world.log.begin_snapshot(meta, lambda: None)
    writer.write(content)
    writer.finish()
    world.time.run()
    return meta


@pytest.mark.parametrize("position", [3, 20, 50, 90, 100, -1])
def test_a_damaged_snapshot_is_not_used_and_the_one_before_it_is(position):
    world = World(2, sizes=SMALL)
    world.create()
    world.write_and_sync(6, 100)
    older = snapshot_of(world, 2, b"older state")
    newer = snapshot_of(world, 4, b"newer state")
    path = f"group-1/snapshot-{newer.index:020d}"
    size = len(world.disk.contents(path))
    world.disk.flip_bit(path, position % size)
    world.kill()
    log = world.open()
    assert (log.condition, log.snapshot) == (Condition.OK, older)
    meta, slices = log.read_snapshot()
    assert (meta, list(slices)) == (older, [b"older state"])
    assert log.damage
    assert path in world.disk.paths()


def test_a_log_whose_snapshot_is_gone_is_damaged():
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
    world.disk.lose_file(f"group-1/snapshot-{70:020d}")
    world.kill()
    log = world.open()
    assert log.condition is Condition.DAMAGED
    assert log.damage == ("the snapshot at 70 is missing or damaged",)


def test_a_truncation_below_the_commit_mark_is_damage():
    world = World(2, sizes=SMALL)
    world.create()
    world.write_and_sync(4, 100)
    world.writer.commit = 3
    world.write_and_sync(1, 100)
    world.writer.commit = 0
    world.write_and_sync(1, 100, truncate_from=2)
    world.kill()
    log = world.open()
    assert log.condition is Condition.DAMAGED
    assert "truncates from 2" in log.damage[0]
