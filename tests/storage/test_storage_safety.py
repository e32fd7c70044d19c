"""The counter-examples that a plainer design of recovery falls to, one test each, by name."""

import itertools

import pytest
from storage_world import INCARNATION, World
from test_storage_power_cut import (
    crash,
    play,
    recovering_a_tail,
    rolling,
    run_to_the_end,
)

from raftq.errors import Corrupted
from raftq.sim.disk import SimulatedCrash
from raftq.storage.faults import Faults
from raftq.storage.group_log import Condition, Sizes
from raftq.storage.segment import SEGMENT_HEADER_BYTES, Scanner
from raftq.storage.unit import UNIT_HEADER_BYTES, UnitHeader, seed_of


def units_of(world: World, path: str) -> list[UnitHeader]:
    sequence = int(path.rpartition("-")[2].removesuffix(".log"))
    file = world.disk.open(path)
    seed = seed_of(INCARNATION, sequence)
    return [found.header for found in Scanner(file, seed, start=SEGMENT_HEADER_BYTES, stop=None)]


def find_unit(world: World, write_seq: int) -> tuple[str, UnitHeader]:
    """The newest copy of the unit of a write."""
    for path in reversed(world.segments()):
        for header in units_of(world, path):
            if header.write_seq == write_seq and not header.flags:
                return path, header
    raise AssertionError(f"no unit of write {write_seq}")


def rot(world: World, write_seq: int) -> None:
    path, header = find_unit(world, write_seq)
    world.disk.flip_bit(path, header.position + UNIT_HEADER_BYTES + header.body_bytes // 2, 3)


def wipe(world: World, write_seq: int) -> None:
    path, header = find_unit(world, write_seq)
    world.disk.zero(path, header.position, header.end)


def world_with(writes: int) -> World:
    world = World(1)
    world.create()
    for _ in range(writes):
        world.write_and_sync(2, 700)
    return world


def test_two_unsynced_units_of_which_only_the_second_survives_are_a_torn_end():
    world = world_with(4)
    world.idle()
    world.write(1, 700)
    world.write(1, 700)
    wipe(world, 5)
    world.kill()
    world.boot += 1
    log = world.open()
    assert (log.condition, log.tail_cut, log.state.last_write) == (Condition.OK, True, 4)
    world.check()


def test_a_marked_unit_that_rots_is_never_cut_as_torn():
    world = world_with(5)
    world.idle()
    rot(world, 5)
    world.power_loss()
    log = world.open()
    assert log.condition is Condition.DAMAGED
    assert log.last_index == 10
    assert (log.state.term, log.state.last_write) == (1, 5)


def test_an_unmarked_unit_that_rots_looks_torn_and_that_is_the_known_rest():
    """The one residual risk: this replica's unmarked unit rots before 50 ms of idling mark it."""
    world = world_with(5)
    rot(world, 5)
    world.power_loss()
    log = world.open()
    assert (log.condition, log.tail_cut, log.state.last_write) == (Condition.OK, True, 4)


def test_an_idle_group_marks_what_it_acknowledged_and_then_rests():
    world = world_with(3)
    assert world.log.next_deadline() == world.time.now + 50_000
    syncs = world.log.syncs
    world.idle(60_000)
    assert world.log.syncs == syncs + 1
    assert world.log.next_deadline() is None
    world.idle(500_000)
    assert world.log.syncs == syncs + 1
    world.log.set_commit(6, world.writer.chain_at(6))
    world.idle(100_000)
    assert world.log.syncs == syncs + 2
    world.kill()
    assert world.open().state.commit_index == 6


def test_within_one_run_of_the_machine_a_broken_unit_before_valid_ones_is_no_torn_end():
    world = world_with(2)
    world.idle()
    world.write(1, 300)
    world.write(1, 300)
    rot(world, 3)
    world.kill()
    log = world.open()
    assert log.condition is Condition.AMNESIAC
    assert "the machine has not stopped" in log.damage[0]


def test_a_process_killed_in_the_middle_of_a_write_leaves_a_torn_end():
    world = world_with(2)
    world.idle()
    world.disk.crash_at = world.disk.operations + 1
    with pytest.raises(SimulatedCrash):
        world.write(1, 5_000)
    world.kill()
    log = world.open()
    assert (log.condition, log.state.last_write) == (Condition.OK, 2)
    world.check()


def test_amnesia_is_never_forgotten():
    world = world_with(2)
    world.idle()
    world.write(1, 300)
    world.write(1, 300)
    rot(world, 3)
    world.kill()
    for _ in range(3):
        assert world.open().condition is Condition.AMNESIAC
        world.power_loss()


def test_damage_that_nothing_bounds_is_amnesia():
    """What the marks speak of is gone together with everything behind it."""
    world = world_with(3)
    world.idle()
    world.write_and_sync(1, 100)
    path, header = find_unit(world, 3)
    for unit in units_of(world, path):
        if unit.number >= header.number:
            # The headers stay valid, so the marks are known; no body is.
            world.disk.flip_bit(path, unit.position + (UNIT_HEADER_BYTES if unit.body_bytes else 9))
    world.power_loss()
    assert world.open().condition is Condition.AMNESIAC


def test_a_unit_acknowledged_before_a_recovery_survives_that_recovery_cut_anywhere():
    for after in itertools.count(1):
        world = world_with(5)
        world.kill()
        world.disk.crash_at = world.disk.operations + after
        try:
            world.open()
        except SimulatedCrash:
            world.power_loss()
            world.open()
            world.check()
            continue
        break
    assert after > 5


def test_a_unit_cut_off_never_comes_back_behind_a_new_one_of_equal_length():
    world = world_with(5)
    world.idle()
    world.write(1, 700)
    world.write(1, 700)
    path, torn = find_unit(world, 6)
    world.disk.open(path).sync_now()
    dead = find_unit(world, 7)[1]
    world.disk.flip_bit(path, torn.position + 200)
    world.kill()
    world.boot += 1
    world.open()
    world.check()
    assert world.writer.seq == 5
    world.write_and_sync(1, 700)
    new_path, new = find_unit(world, 6)
    assert (new_path != path, new.body_bytes) == (True, torn.body_bytes)
    world.power_loss()
    log = world.open()
    world.check()
    assert log.state.last_write == 6
    assert units_of(world, path)[-1] == dead, "nothing was overwritten"


def test_a_sequence_is_never_used_twice_not_even_one_of_a_temporary_file():
    world = world_with(1)
    world.disk.open("group-1/segment-00000041.log.tmp", create=True).close()
    world.kill()
    world.open()
    assert world.segments()[-1] == "group-1/segment-00000042.log"
    assert not any(path.endswith(".tmp") for path in world.disk.paths())


def test_a_newest_segment_without_header_is_unused_when_no_unit_in_it_verifies():
    world = World(1, sizes=Sizes(2_048, 8_192, 0))
    world.create()
    for _ in range(2):
        world.write_and_sync(1, 400)
    world.time.run()
    spare = next(path for path in world.disk.paths() if "spare" in path)
    world.disk.rename(spare, spare.replace("spare", "segment"))
    world.disk.sync_directory("group-1")
    world.power_loss()
    log = world.open()
    assert (log.condition, log.damage) == (Condition.OK, ())
    world.check()


def test_a_newest_segment_without_header_that_holds_marked_units_is_damage_and_stays():
    world = World(1, sizes=Sizes(2_048, 8_192, 0))
    world.create()
    for _ in range(8):
        world.write_and_sync(1, 400)
    world.idle()
    newest = world.segments()[-1]
    assert len(units_of(world, newest)) > 2
    world.disk.flip_bit(newest, 40)
    world.power_loss()
    log = world.open()
    assert log.condition is Condition.OK
    assert any(newest[-12:-4] in reason or "header" in reason for reason in log.damage)
    assert log.last_index == 8
    assert newest in world.disk.paths()


def test_the_first_unit_of_a_segment_is_written_only_after_the_old_one_is_synced():
    world = World(1, sizes=Sizes(2_048, 8_192, 0))
    operations = []
    world.disk.on_operation = lambda _, kind, path: operations.append((kind, path))
    world.create()
    for _ in range(20):
        world.write(1, 500)
        world.time.run(250)
    world.time.run()
    unsynced, used = set(), []
    for kind, path in operations:
        if kind == "write" and path.endswith(".log"):
            if path not in used:
                assert not unsynced, f"{path} is begun while {unsynced} is not synced"
                used.append(path)
            unsynced.add(path)
        elif kind in {"synced", "sync_now"}:
            unsynced.discard(path)
    assert len(used) > 3


def seeds_that_lose_data(story, faults: Faults) -> int:
    """How many of the cuts of a story break a promise."""
    found = 0
    for crash_at, seed in itertools.product(range(1, 60), range(1, 6)):
        world, was_cut = play(story, seed, crash_at, faults=faults)
        if not was_cut:
            break
        crash(world, "power")
        try:
            run_to_the_end(world, "power")
        except (AssertionError, Corrupted):
            found += 1
    return found


def test_the_simulated_disk_finds_a_completion_taken_for_another_file():
    assert seeds_that_lose_data(rolling, Faults()) == 0
    assert seeds_that_lose_data(rolling, Faults(completion_for_other_file=True)) > 0


def test_the_simulated_disk_finds_a_recovered_tail_that_was_not_synced():
    assert seeds_that_lose_data(recovering_a_tail, Faults()) == 0
    assert seeds_that_lose_data(recovering_a_tail, Faults(recovered_tail_unsynced=True)) > 0
