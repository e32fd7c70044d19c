"""What nobody needs goes: released entries, and bodies of settled messages; nothing else does."""

from types import SimpleNamespace

import pytest
from repair_world import batch
from storage_world import MEMBERS, World, Writer, publish
from test_storage_reader import directory_of, read_all

from raftq.batch import encode
from raftq.errors import Corrupted
from raftq.raft.entry import is_whole, verify
from raftq.raft.ready import SnapshotMeta
from raftq.server.copying import copy_log
from raftq.sim.disk import SimulatedCrash
from raftq.storage import horizon as horizons
from raftq.storage.batch_index import BatchIndex
from raftq.storage.group_log import Condition, GroupLog, Sizes
from raftq.storage.reader import read_replica
from raftq.storage.suffix import suffix

SMALL = Sizes(2_048, 4_096, 0)


def snapshot(world: World, index: int) -> None:
    """Take one of the machine at `index`."""
    meta = SnapshotMeta(index, 1, world.writer.chain_at(index), 1_000 + index, MEMBERS)
    over = []
    writer = world.log.begin_snapshot(meta, lambda: over.append(True))
    writer.write(b"the machine at %d" % index)
    writer.finish()
    world.time.run()
    assert over
    assert writer.problem is None


def append(world: World, count: int) -> None:
    """Entries with one batch each; its offset is the index less one."""
    for _ in range(count):
        first = world.writer.last_index
        world.writer.commit = first
        world.log.write(world.writer.write([[publish(5, 3, first, batch(first), 1)]]))
        world.time.run()


def make(count: int = 60, **options) -> World:
    world = World(3, sizes=SMALL, **options)
    world.create()
    append(world, count)
    snapshot(world, count - 8)
    snapshot(world, count - 4)
    world.idle()
    return world


def judge_by(live: set[int]):
    """Everything is dead but these offsets."""

    def judge(queue, partition, start, stop, published):
        assert (queue, partition) == (5, 3)
        assert published > 1_000
        return not live.intersection(range(start, stop))

    return judge


def run_pass(world: World, live: set[int]) -> None:
    for _ in world.log.compaction.passes(judge_by(live)):
        world.time.run()
    world.time.run()


def open_again(world: World) -> None:
    world.writer.history[world.writer.seq] = (1, 0, 0, tuple(world.writer.entries))
    world.open()


def check(world: World, live: set[int], *, base: int = 0) -> None:
    """Everything that is needed is served, every chain value is right, and nothing false is given."""
    log, writer = world.log, world.writer
    assert log.condition is Condition.OK, (log.holes, log.contradictions, log.damage)
    assert log.last_index == writer.last_index
    assert log.compaction.base.index == base
    assert log.chain(base) == writer.chain_at(base)
    for index in range(base + 1, writer.last_index + 1):
        (found,) = log.held(index, index + 1, 1)
        assert verify(found, writer.chain_at(index - 1))
        assert log.chain(index) == found.chain == writer.chain_at(index)
        assert log.term(index) == 1
        assert is_whole(found) or index - 1 not in live
        assert is_whole(found) or index < log.first_index
        (stored,) = log.batches(5, 3, index - 1, index, 1) or [None]
        assert stored is not None or not is_whole(found)
        if stored is not None:
            assert (stored.index, bytes(stored.data)) == (index, batch(index - 1))
    if base:
        with pytest.raises(LookupError):
            log.held(base, base + 1, 1)
    for offset in live:
        if offset >= base:
            assert bytes(log.batches(5, 3, offset, offset + 1, 1)[0].data) == batch(offset)


def read_offline(world: World, tmp_path) -> list[int]:
    """The indexes of the entries that an audit finds, each proved."""
    names, open_file = directory_of(world, tmp_path)
    replica = read_replica(names, open_file)
    assert (replica.problems, replica.condition) == ((), Condition.OK)
    found = read_all(replica, open_file)
    assert all(each.proved for each in found)
    assert replica.first_index == found[0].entry.index
    return [each.entry.index for each in found]


def log_bytes(world: World) -> int:
    return sum(
        len(world.disk.contents(path))
        for path in world.disk.paths()
        if path.endswith(".log") and "spare" not in path
    )


def test_dead_bodies_go_and_the_log_is_the_same():
    world = make()
    before = log_bytes(world)
    live = {0, 31}
    run_pass(world, live)
    check(world, live)
    assert world.log.compaction.released_segments > 5
    assert log_bytes(world) < 0.7 * before
    packed = world.log.first_index
    assert 30 < packed <= world.log.compaction.bound + 1
    for _ in range(2):
        world.kill()
        open_again(world)
        check(world, live)
        assert world.log.first_index == packed
        assert world.log.damage == ()
    append(world, 20)
    world.power_loss()
    open_again(world)
    check(world, live)


def test_nothing_goes_that_is_not_dead_or_may_be_applied_again():
    world = make()
    everything = set(range(60))
    paths = world.disk.paths()
    run_pass(world, everything)
    assert world.disk.paths() == paths
    world = World(3, sizes=SMALL)
    world.create()
    append(world, 60)
    snapshot(world, 50)
    assert world.log.compaction.bound == 0, "one snapshot may rot"
    paths = world.disk.paths()
    run_pass(world, set())
    assert world.disk.paths() == paths
    assert not world.log.compaction.release(10, world.writer.chain_at(10))
    snapshot(world, 55)
    assert world.log.compaction.bound == 50
    assert not world.log.compaction.release(51, world.writer.chain_at(51))


def test_one_old_message_pins_itself_and_not_what_came_after_it():
    world = World(3, sizes=Sizes(16_384, 16_384, 0))
    world.create()
    for number in range(300):
        first = world.writer.last_index
        world.writer.commit = first
        body = encode([bytes(4_000)], queue=5, partition=3)
        world.log.write(world.writer.write([[publish(5, 3, first, body, 1)]]))
        world.time.run()
        if number in {280, 290}:
            snapshot(world, number)
    world.idle()
    before = log_bytes(world)

    def judge(queue, partition, start, stop, published):
        return start != 0

    for _ in range(2):
        for _ in world.log.compaction.passes(judge):
            world.time.run()
    after = log_bytes(world)
    assert before > 1_200_000
    assert after < before / 8, (before, after)
    assert len(world.log.batches(5, 3, 0, 1, 1)[0].data) > 4_000
    small = [name for name in world.disk.paths() if "/patch-" in name]
    assert len(small) < 10, "small patches become one"


def test_released_entries_go_with_their_segments(tmp_path):
    world = make()
    chain = world.writer.chain_at(33)
    assert world.log.compaction.release(33, chain)
    world.time.run()
    live = set(range(33, 60))
    check(world, live, base=33)
    assert world.log.offsets(5, 3) == (33, 60)
    assert world.log.compaction.released_segments > 3
    world.kill()
    open_again(world)
    check(world, live, base=33)
    assert not world.log.compaction.release(33, chain), "once is enough"
    run_pass(world, {40})
    check(world, {40}, base=33)
    append(world, 30)
    snapshot(world, 80)
    snapshot(world, 85)
    assert world.log.compaction.release(70, world.writer.chain_at(70))
    world.time.run()
    check(world, set(range(70, 90)), base=70)
    world.power_loss()
    open_again(world)
    check(world, set(range(70, 90)), base=70)
    assert read_offline(world, tmp_path) == list(range(71, 91))


def test_a_packed_log_is_read_offline(tmp_path):
    world = make()
    run_pass(world, {0, 31})
    world.kill()
    assert read_offline(world, tmp_path) == list(range(1, 61))


STEPS = {
    "pack": lambda world: run_pass(world, {0, 31}),
    "release": lambda world: (
        world.log.compaction.release(33, world.writer.chain_at(33)),
        world.time.run(),
    ),
    "release what is packed": lambda world: (
        run_pass(world, {0, 31}),
        world.log.compaction.release(33, world.writer.chain_at(33)),
        world.time.run(),
    ),
}


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("step", STEPS)
def test_a_crash_at_any_operation_costs_nothing(step, kind):
    crash_at = 0
    while True:
        crash_at += 1
        world = make()
        world.disk.crash_at = world.disk.operations + crash_at
        try:
            STEPS[step](world)
            world.disk.crash_at = 0
            was_cut = False
        except SimulatedCrash:
            was_cut = True
        world.kill() if kind == "kill" else world.power_loss()
        for _ in range(2):
            open_again(world)
            base = world.log.compaction.base.index
            assert base in {0, 33}
            check(world, {0, 31} if "pack" in step else set(range(base, 60)), base=base)
            world.kill()
        if not was_cut:
            break
    assert crash_at > 8
    assert base == (33 if "release" in step else 0)


def test_a_patch_that_rots_is_a_hole_and_comes_back_from_a_peer():
    world = make()
    peer = make()
    run_pass(world, {0, 31})
    world.kill()
    (path,) = [path for path in world.disk.paths() if "/patch-" in path][:1]
    world.disk.flip_bit(path, 300)
    open_again(world)
    assert world.log.condition is Condition.DAMAGED
    paths = world.disk.paths()
    run_pass(world, set())
    assert [path for path in paths if path.endswith(".log")] == [
        path for path in world.disk.paths() if path.endswith(".log")
    ], "nothing is packed or removed while something is lost"
    heal_from(peer, world)
    check(world, {0, 31})


def heal_from(peer: World, world: World) -> None:
    while world.log.holes:
        given = suffix(peer.log, *world.log.holes[-1], 3_000)
        heard = []
        world.log.patches.write(given, heard.append)
        world.time.run()
        assert heard == [True]


@pytest.mark.parametrize("how", ["lost", "rotten"])
def test_without_its_horizon_a_packed_log_is_what_it_was(how):
    world = make()
    run_pass(world, {0, 31})
    world.kill()
    path = f"group-1/{horizons.HORIZON}"
    if how == "lost":
        world.disk.lose_file(path)
    else:
        world.disk.flip_bit(path, 40)
    open_again(world)
    # What was not known to be committed before the gap is uncertain, and fetched.
    assert sum(hole.last - hole.first + 1 for hole in world.log.holes) < 3
    heal_from(make(), world)
    check(world, {0, 31})


def test_without_its_horizon_a_released_log_is_released_again():
    world = make()
    assert world.log.compaction.release(33, world.writer.chain_at(33))
    world.time.run()
    world.kill()
    world.disk.lose_file(f"group-1/{horizons.HORIZON}")
    open_again(world)
    assert world.log.holes
    assert world.log.compaction.release(33, world.writer.chain_at(33))
    world.time.run()
    check(world, set(range(33, 60)), base=33)
    world.kill()
    open_again(world)
    check(world, set(range(33, 60)), base=33)


def test_behind_an_installed_snapshot_the_live_part_is_fetched(tmp_path):
    peer = make(80)
    world = make(30)
    meta = SnapshotMeta(70, 1, peer.writer.chain_at(70), 1_070, MEMBERS)
    snapshot_writer = world.log.begin_snapshot(meta, lambda: None)
    snapshot_writer.write(b"the machine at 70")
    snapshot_writer.finish()
    world.time.run()
    entries = peer.writer.entries
    world.writer.base, world.writer.entries, world.writer.commit = meta, [], 70
    write = world.writer.write(reset=meta)
    world.log.write(write)
    world.time.run()
    assert world.log.first_index == 71
    base = SnapshotMeta(20, 0, peer.writer.chain_at(20), 0, MEMBERS)
    world.log.compaction.begin_before(base)
    world.time.run()
    assert world.log.holes == [(21, 70)]
    assert world.log.first_index == 71, "what is fetched is not for applying"
    heal_from(peer, world)
    world.writer.base, world.writer.entries = peer.writer.base, entries[:70]
    check_from(world, 20, 70)
    for kind in ("kill", "power"):
        world.kill() if kind == "kill" else world.power_loss()
        world.open()
        check_from(world, 20, 70)
        assert world.log.needs_snapshot is False
    world.kill()
    assert read_offline(world, tmp_path) == list(range(21, 71))
    world.disk.lose_file("group-1/snapshot-00000000000000000070")
    world.open()
    assert world.log.needs_snapshot, "the machine cannot be made from an older one"


def check_from(world: World, base: int, last: int) -> None:
    log = world.log
    assert log.condition is Condition.OK, (log.holes, log.contradictions, log.damage)
    assert log.compaction.base.index == base
    for index in range(base + 1, last + 1):
        (found,) = log.held(index, index + 1, 1)
        assert found.chain == world.writer.chain_at(index)
        assert bytes(log.batches(5, 3, index - 1, index, 1)[0].data) == batch(index - 1)


def test_a_pass_ends_when_the_log_begins_anew():
    world = make()
    steps = world.log.compaction.passes(judge_by({0}))
    next(steps)
    meta = SnapshotMeta(100, 1, b"c" * 16, 2_000, MEMBERS)
    writer = world.log.begin_snapshot(meta, lambda: None)
    writer.write(b"the machine at 100")
    writer.finish()
    world.time.run()
    world.log.write(world.writer.write(reset=meta))
    for _ in steps:
        world.time.run()
    assert (world.log.first_index, world.log.last_index) == (101, 100)
    assert world.log.condition is Condition.OK


def test_an_entry_whose_bodies_are_gone_is_not_read_for_applying():
    world = make()
    run_pass(world, {0, 31})
    with pytest.raises(LookupError):
        world.log.entries(5, 6, 1)
    newest = world.log.snapshot.index
    world.kill()
    for index in (newest, newest - 4):
        world.disk.lose_file(f"group-1/snapshot-{index:020d}")
    open_again(world)
    assert world.log.needs_snapshot
    with pytest.raises((LookupError, Corrupted)):
        world.log.entries(1, 2, 1)


@pytest.mark.parametrize("released", [0, 33])
def test_a_copy_of_a_log_that_let_go_holds_what_it_held(released, tmp_path):
    """What recovery from a lost majority does with a replica that has forgotten something."""
    world = make()
    run_pass(world, {0, 31, 40})
    if released:
        assert world.log.compaction.release(released, world.writer.chain_at(released))
        world.time.run()
    held = {
        index: [bytes(vector) for vector in world.log.held(index, index + 1, 1)[0].vectors]
        for index in range(released + 1, 61)
    }
    world.log.close()
    outside = SimpleNamespace(disk=world.disk, clock=world.time, boot=world.boot)
    copy_log(outside, "group-1", "group-9", incarnation=77)
    for _ in range(2):
        copy = GroupLog.open(world.disk, world.time, "group-9", incarnation=77, boot=world.boot)
        assert (copy.condition, copy.damage) == (Condition.OK, ())
        assert (copy.compaction.base.index, copy.last_index) == (released, 60)
        assert copy.snapshot.index == 56
        assert copy.first_index == 57
        assert not copy.needs_snapshot
        for index, vectors in held.items():
            (entry,) = copy.held(index, index + 1, 1)
            assert b"".join(map(bytes, entry.vectors)) == b"".join(vectors)
        for offset in (40, 59):
            assert bytes(copy.batches(5, 3, offset, offset + 1, 1)[0].data) == batch(offset)
        copy.close()


def test_a_partition_whose_batches_were_all_truncated_is_let_go_of_too():
    index = BatchIndex()
    entry = Writer().entry([publish(5, 3, 0, batch(0), 1)], 1, bytes(16))
    index.add_entry(entry.vectors[0], 4, 200)
    index.truncate(4, 0)
    index.drop(4)
    index.release(9, 0)
    assert index.bounds(5, 3) is None
    index.add_entry(entry.vectors[0], 9, 300)
    assert index.bounds(5, 3) == (0, 1)
