"""Replicas that missed what the others remember only as a snapshot, on simulated machines."""

import pytest
from host_world import World

from raftq.host import catch_up, transfers
from raftq.host.tuning import Tuning
from raftq.limits import SNAPSHOT_KEPT_MICROS
from raftq.raft.progress import Stage

EVERY = 20
CHUNK = 2_000
BODY = bytes(range(200)) * 5


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr(transfers, "SNAPSHOT_CHUNK_BYTES", CHUNK)
    with World(tuning=Tuning(snapshot_entries=EVERY)) as made:
        made.start()
        yield made


def write(world, leader, count, *, prefix=b"c"):
    for number in range(count):
        heard = world.propose(leader, b"%s%d" % (prefix, number), BODY)
        world.until(lambda heard=heard: heard)


def let_go(world, name):
    """Of what a replica remembers as two snapshots: nobody can be sent it entry by entry."""
    log = world.group(name).log
    bound = log.compaction.bound
    assert log.compaction.release(bound, log.chain(bound))
    world.until(lambda: log.first_index == bound + 1)


def fall_behind(world):
    """One that does not lead is cut off and misses three snapshots: leader, the other one, it."""
    leader = world.led()
    other, late = (name for name in world.names if name != leader)
    world.isolate(late)
    write(world, leader, 3 * EVERY + 5)
    world.run(0.5)
    for name in (leader, other):
        core = world.group(name).raft
        assert world.group(name).log.snapshot.index % EVERY == 0
        # As if many megabytes had come since.
        core.log._bytes += 1 << 30
        core.log.evict(core.applied_index)
        core.log._bytes -= 1 << 30
    for name in (leader, other):
        let_go(world, name)
    return leader, other, late


def outgoing(world, leader, late):
    """What the leader knows of the transfer to `late`, if one is under way."""
    group = world.group(leader)
    replica = next(replica for replica, node in group.nodes.items() if node == late)
    progress = group.raft.progress.get(replica)
    return progress if progress and progress.stage is Stage.SNAPSHOT else None


def half_way(world, leader, late):
    """Run until a part of the snapshot has come."""
    world.fabric.heal()
    incoming = world.group(late).raft
    world.until(lambda: incoming.incoming is not None and incoming.incoming_bytes >= 4 * CHUNK)
    assert outgoing(world, leader, late)
    return incoming


def equal(world, names):
    digests = {world.group(name).machine.digest() for name in names}
    ends = {world.group(name).applied_index for name in names}
    return len(digests) == len(ends) == 1


def test_all_take_snapshots_at_the_same_indexes(world):
    leader, other, late = fall_behind(world)
    world.fabric.heal()
    world.until(lambda: equal(world, world.names), 20)
    write(world, leader, 2 * EVERY, prefix=b"d")
    world.run(0.5)
    found = [world.group(name).log.snapshots.good[-2:] for name in (leader, other, late)]
    assert found[0] == found[1] == found[2]


def test_bytes_applied_make_the_same_snapshots_too():
    tuning = Tuning(snapshot_entries=1 << 40, snapshot_bytes=20 * len(BODY))
    with World(tuning=tuning) as world:
        world.start()
        leader = world.led()
        write(world, leader, 70)
        victim = next(name for name in world.names if name != leader)
        world.kill(victim)
        world.run(0.1)
        world.start(victim)
        write(world, world.led(), 30, prefix=b"d")
        world.until(lambda: equal(world, world.names), 20)
        # What it applied all at once may have been too quick for one snapshot after the other.
        write(world, world.led(), 50, prefix=b"e")
        world.run(0.5)
        found = [world.group(name).log.snapshots.good for name in world.names]
        assert found[0] == found[1] == found[2]
        assert len(found[0]) == 2


def test_the_next_leader_goes_on_with_the_snapshot(world):
    leader, other, late = fall_behind(world)
    incoming = half_way(world, leader, late)
    index = incoming.incoming.index
    before = incoming.incoming_bytes
    world.kill(leader)
    received = []

    def is_done():
        received.append(incoming.incoming_bytes)
        return world.group(late).log.snapshot.index >= index

    world.until(is_done, 20)
    assert min(received) >= before, "nothing of it was thrown away"
    world.until(lambda: equal(world, (other, late)), 20)


def test_a_slow_transfer_ends_although_newer_snapshots_are_taken(world, monkeypatch):
    for name in ("CATCH_UP_IDLE_BYTES_PER_SECOND", "CATCH_UP_FLOOR_BYTES_PER_SECOND"):
        monkeypatch.setattr(catch_up, name, 100 * CHUNK)
    monkeypatch.setattr(catch_up, "CATCH_UP_BURST_BYTES", CHUNK)
    monkeypatch.setattr(catch_up, "CATCH_UP_PERCENT", 0)
    leader, _, late = fall_behind(world)
    incoming = half_way(world, leader, late)
    index = incoming.incoming.index
    number = 0
    while world.group(late).log.snapshot.index == 0:
        write(world, leader, EVERY // 2, prefix=b"d%d-" % number)
        number += 1
        assert number < 200
    assert world.group(late).log.snapshot.index == index
    assert world.group(leader).log.snapshot.index >= index + 3 * EVERY
    world.until(lambda: equal(world, world.names), 30)
    store = world.group(leader).log.snapshots
    world.run(SNAPSHOT_KEPT_MICROS / 1e6 + 1)
    write(world, leader, EVERY, prefix=b"e")
    world.run(0.5)
    assert len(store.good) == 2, "it is let go of"


def test_a_link_that_breaks_costs_no_more_than_the_piece_on_it(world):
    leader, _, late = fall_behind(world)
    incoming = half_way(world, leader, late)
    index, before = incoming.incoming.index, incoming.incoming_bytes
    world.isolate(late)
    world.run(1)
    world.fabric.heal()
    received = []

    def is_done():
        received.append(incoming.incoming_bytes)
        return world.group(late).log.snapshot.index >= index

    world.until(is_done, 20)
    assert min(received) >= before
    world.until(lambda: equal(world, world.names), 20)


def test_what_is_still_whole_is_sent_as_entries(world):
    """A snapshot is for who needs what is gone; it would cost the others all that is live before it."""
    leader = world.led()
    other, late = (name for name in world.names if name != leader)
    write(world, leader, 5)
    world.isolate(late)
    write(world, leader, 3 * EVERY + 5, prefix=b"d")
    world.run(0.5)
    core = world.group(leader).raft
    core.log._bytes += 1 << 30
    core.log.evict(core.applied_index)
    core.log._bytes -= 1 << 30
    assert world.group(leader).log.snapshot.index > 2 * EVERY
    world.fabric.heal()
    world.until(lambda: equal(world, world.names), 20)
    assert world.group(late).machine.restored == 0
    assert world.group(late).log.first_index == 1
    assert other in world.nodes
