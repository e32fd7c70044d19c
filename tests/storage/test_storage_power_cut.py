"""Every story is cut at every disk operation, by a kill, by a power loss and by both; then recovered.

What is found must be exactly the state after one write, at or behind the last that was reported as
persisted; the replica is never called damaged; recovering again finds the same; and the log goes on.
"""

import itertools

import pytest
from storage_world import MEMBERS, World

from raftq.raft.ready import SnapshotMeta
from raftq.sim.disk import SimulatedCrash
from raftq.storage.faults import NO_FAULTS, Faults
from raftq.storage.group_log import GroupLog, Sizes

SMALL = Sizes(segment_bytes_first=2_048, segment_bytes_max=8_192, reserve_bytes=0)
SEEDS = range(1, 6)


def append_under_load(world: World) -> None:
    """At least two units are unsynced most of the time."""
    world.create()
    for size in (100, 700, 40, 1_500, 300, 10):
        world.write(1, size)
        world.write(2, size)
        world.time.run(300)
    world.time.run()


def rolling(world: World) -> None:
    world.create()
    for size in (600, 900, 900, 900, 3_000, 500, 900, 900, 5_000, 20):
        world.write(1, size)
        world.time.run(400)
    world.time.run()


def truncating(world: World) -> None:
    world.create()
    world.write(5, 200)
    world.time.run()
    world.writer.commit = 2
    world.writer.term = 2
    world.write(3, 250, truncate_from=4)
    world.write(1, 100)
    world.time.run(200)
    world.writer.term = 4
    world.write(0, 0, truncate_from=5)
    world.write(2, 300)
    world.time.run()


def voting(world: World) -> None:
    world.create()
    for term in range(2, 7):
        world.writer.term, world.writer.vote = term, 0
        world.write(0)
        world.writer.vote = 1 + term % 3
        world.write(0)
        world.time.run(700)
    world.time.run()


def idling_and_closing(world: World) -> None:
    world.create()
    world.write(2, 300)
    world.idle()
    world.writer.commit = 2
    world.write(1, 300)
    world.time.run()
    world.log.set_commit(3, world.writer.chain_at(3))
    world.writer.commit = 3
    world.idle()
    world.write(1, 100)
    world.log.close()
    world.writer.persisted_through(world.writer.seq)


def recovering_a_tail(world: World) -> None:
    """Two units, unmarked; one of them synced; then a new process, twice."""
    world.create()
    world.write(2, 400)
    world.time.run()
    world.write(1, 600)
    world.kill(crash_at=world.disk.crash_at)
    world.open()
    world.check()
    world.write(1, 300)
    world.time.run()
    world.kill(crash_at=world.disk.crash_at)
    world.open()
    world.check()
    world.write(1, 900)
    world.time.run()


def taking_snapshots(world: World) -> None:
    world.create()
    done = []
    for _ in range(3):
        world.write(4, 300)
        world.time.run()
        last = world.writer.entries[-1]
        world.writer.commit = last.index
        meta = SnapshotMeta(last.index, last.term, last.chain, last.log_time, MEMBERS)
        writer = world.log.begin_snapshot(meta, lambda: done.append(1))
        for slice_ in (b"a" * 1_000, b"b" * 10, b"c" * 700):
            writer.write(slice_)
        world.write(1, 100)
        writer.finish()
        world.time.run()
    assert len(done) == 3


def installing_a_snapshot(world: World) -> None:
    world.create()
    world.write(4, 300)
    world.time.run()
    meta = SnapshotMeta(50, 3, b"x" * 16, 99, MEMBERS)
    writer = world.log.begin_snapshot(meta, lambda: None)
    writer.write(b"state" * 300)
    writer.finish()
    world.time.run()
    world.writer.term = 3
    world.write(2, 200, reset=meta)
    world.time.run()
    world.write(2, 200)
    world.time.run()


STORIES = (
    append_under_load,
    rolling,
    truncating,
    voting,
    idling_and_closing,
    recovering_a_tail,
    taking_snapshots,
    installing_a_snapshot,
)


def play(story, seed: int, crash_at: int, faults: Faults = NO_FAULTS) -> tuple[World, bool]:
    # Spares are quick here, so that rolls meet units whose sync has not returned.
    world = World(seed, sizes=SMALL, faults=faults, prepare_delay=100)
    world.disk.crash_at = crash_at
    try:
        story(world)
    except SimulatedCrash:
        return world, True
    return world, False


def crash(world: World, how: str) -> None:
    if how != "power":
        world.kill()
    if how != "kill":
        world.power_loss()


def recover(world: World) -> bool:
    """Open what is there; False when not even the creation had come to its end."""
    if not GroupLog.exists(world.disk, "group-1"):
        assert world.writer.seq == 0, "a log that was written to has vanished"
        world.create()
        return False
    world.open()
    return True


def check_snapshot_install(world: World) -> None:
    """Between snapshot and Reset the snapshot wins, with a write of its own."""
    log, writer = world.log, world.writer
    if (log.first_index, log.last_index) == (51, 50):
        writer.base = log.snapshot
        writer.term = max(writer.term, 3)
        writer.history[log.state.last_write] = (log.state.term, log.state.vote, 50, ())
    elif log.first_index == 1 and writer.base.index:
        writer.base = writer.base._replace(index=0, term=0, chain=bytes(16), log_time=0)


def run_to_the_end(world: World, how: str) -> None:
    if not recover(world):
        return
    check_snapshot_install(world)
    world.check()
    world.kill()
    before = world.log.state
    world.open()
    assert (world.log.state, world.log.condition.value) == (before, "ok")
    world.check()
    world.write_and_sync(2, 150)
    crash(world, how)
    world.open()
    world.check()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_story_cut_at_every_operation_keeps_its_promises(story):
    cuts = 0
    for crash_at in itertools.count(1):
        world, was_cut = play(story, 1, crash_at)
        if not was_cut:
            break
        cuts = crash_at
        for how, seed in (("kill", 1), *(("power", seed) for seed in SEEDS), ("both", 9)):
            world, _ = play(story, seed, crash_at)
            crash(world, how)
            run_to_the_end(world, how)
    assert cuts > 10


def test_a_recovery_cut_at_every_operation_and_again_keeps_its_promises():
    """The tail is synced and reported, but nothing marks it: only its old copy may be relied on."""

    def prepared(seed: int) -> World:
        world = World(seed, sizes=SMALL)
        world.create()
        world.write_and_sync(2, 400)
        world.write_and_sync(1, 600)
        world.write(2, 500)
        world.power_loss()
        return world

    def cut_open(world: World, after: int, how: str) -> bool:
        world.disk.crash_at = world.disk.operations + after
        try:
            world.open()
        except SimulatedCrash:
            crash(world, how)
            return True
        return False

    pairs = 0
    for how, seed in itertools.product(("kill", "power"), SEEDS):
        for first in itertools.count(1):
            world = prepared(seed)
            if not cut_open(world, first, how):
                break
            for second in itertools.count(1):
                world = prepared(seed)
                cut_open(world, first, how)
                was_cut = cut_open(world, second, how)
                pairs += 1
                world.kill()
                world.open()
                world.check()
                if not was_cut:
                    break
    assert pairs > 100
