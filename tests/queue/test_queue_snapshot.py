"""Snapshots have one index, digests cover everything, and a restored machine goes on alike."""

import os
from pathlib import Path

import cbor2
import pytest
from queue_random import RandomRun, random_log
from queue_world import NOON, QUEUE, Client, World, all_bytes, copy_of, replay

from raftq.errors import Corrupted, UnsupportedVersion
from raftq.machine import Meta
from raftq.queue import commands, drawing
from raftq.queue.config import QueueConfig
from raftq.queue.machine import QueueMachine

GOLDEN = Path(__file__).parent.parent / "golden" / "queue" / "snapshot.bin"


@pytest.mark.parametrize("seed", range(4))
def test_every_prefix_restored_goes_on_alike(seed):
    """Goal: state that is not in the snapshot shows. Method: restore at each point, then replay on.

    The digest of the machine that has applied everything is kept up item by item; the restored one
    computes it anew. So the test also finds a change that was not announced.
    """
    log = random_log(seed, 120).log
    machine = QueueMachine()
    for at, line in enumerate(log):
        reply = replay(machine, *line)
        copy = copy_of(machine)
        assert copy.digest() == machine.digest(), (at, line, reply)
        assert copy.next_deadline() == machine.next_deadline()
    for start in range(0, len(log), 17):
        original = QueueMachine()
        for line in log[:start]:
            replay(original, *line)
        copy = copy_of(original)
        for line in log[start : start + 40]:
            theirs, ours = replay(original, *line), replay(copy, *line)
            assert repr(theirs) == repr(ours)
            assert original.digest() == copy.digest()


@pytest.mark.parametrize("seed", range(3))
def test_what_is_drawn_is_the_state_as_it_was_whatever_comes_after(seed, monkeypatch):
    """One transaction over two partitions must be whole in a snapshot, or not in it at all."""
    monkeypatch.setattr(drawing, "_SLICE_ITEMS", 2)
    run = RandomRun(seed)
    for _ in range(120):
        run.step()
    expected = all_bytes(run.world.machine)
    drawings = [run.world.machine.snapshot() for _ in range(3)]
    drawn = [[], [], []]
    for at in range(400):
        run.step()
        if at % 40 == 0:
            drawn[0].append(next(drawings[0], b""))
        if at == 200:
            drawn[1] += drawings[1]
    drawn[0] += drawings[0]
    drawn[2] += drawings[2]
    for slices in drawn:
        assert b"".join(slices) == expected
    assert not drawings[0]._coming
    assert all_bytes(run.world.machine) != expected


def test_a_snapshot_that_is_given_up_is_not_kept_up():
    world = World()
    drawn, given_up = world.machine.snapshot(), world.machine.snapshot()
    assert len(world.machine._state.drawings) == 2
    del given_up
    assert len(world.machine._state.drawings) == 1
    assert list(drawn)
    assert list(drawn) == []
    del drawn
    assert world.machine._state.drawings == []


def test_slices_may_be_cut_anywhere():
    world = random_log(5, 150)
    whole = all_bytes(world.machine)
    for size in (1, 7, 4_096):
        machine = QueueMachine()
        machine.restore(iter([whole[at : at + size] for at in range(0, len(whole), size)]))
        assert machine.digest() == world.machine.digest()


def test_a_large_state_is_drawn_in_slices():
    machine = QueueMachine()
    config = QueueConfig(partitions=1_000)
    for number in range(1_000):
        meta = Meta(number + 1, 1, NOON, 0)
        machine.apply(meta, commands.encode_configure(QUEUE, number, 1, config), b"")
        machine.apply(meta, commands.encode_open_session(), b"")
    slices = list(machine.snapshot())
    assert len(slices) > 2
    assert max(map(len, slices)) < 300_000


def test_a_restored_session_holds_its_deliveries_in_their_order():
    world = World(partitions=2)
    client = Client(world)
    for partition in (1, 0, 1, 0):
        world.publish(1, partition=partition)
        client.receive(1)
    assert copy_of(world.machine).held_by(client.session) == (1, 2, 3, 4)


def golden_world():
    world = World(
        partitions=2, max_messages=500, delivery_limit=2, visibility_timeout=10, labels={"a": "b"}
    )
    world.subscribe("billing", "latest")
    client, other = Client(world), Client(world)
    world.publish(10, producer=5)
    world.publish(3, partition=1)
    world.apply(commands.encode_open_producer(QUEUE, 0, 6, epoch=0, opener=3))
    delivery = client.receive(6)[0]
    client.ack(delivery, (1, 2))
    client.nack(delivery, (2, 3), reason="no route", delay_us=5_000_000)
    client.nack(delivery, (3, 4), reject=True)
    client.nack(delivery, (4, 5))
    theirs = other.take(2, subscription="billing")
    other.receive(99, number=3)
    world.operate(commands.encode_purge, partition=1, subscription="default")
    world.apply(commands.encode_drop(QUEUE, 1, force=True))
    client.ack(delivery, (1, 2))
    world.change_leader(4_000_000)
    other.ack(theirs)
    client.ack(delivery, (0, 1))
    world.operate(commands.encode_purge)
    world.release((0, 1), chain=bytes(range(16)))
    log = world.config.updated({"retain_bytes": 64})
    world.apply(commands.encode_configure(QUEUE, 0, 9, log))
    world.publish(4)
    world.expire((0, 12))
    return world


def test_the_bytes_of_a_snapshot_never_change():
    encoded = all_bytes(golden_world().machine)
    if os.environ.get("RAFTQ_REWRITE_GOLDEN"):
        GOLDEN.write_bytes(encoded)
    assert GOLDEN.read_bytes() == encoded
    machine = QueueMachine()
    machine.restore(iter([GOLDEN.read_bytes()]))
    assert machine.digest() == golden_world().machine.digest()


def test_a_snapshot_cut_or_changed_is_refused_and_the_machine_stays_as_it_was():
    whole = all_bytes(golden_world().machine)
    machine = World().machine
    before = machine.digest()
    for length in range(len(whole)):
        with pytest.raises(Corrupted):
            machine.restore(iter([whole[:length]]))
    for damaged in (
        whole + b"x",
        b"rqqt" + whole[4:],
        whole[:5] + b"\x09" + whole[6:],
        whole[:10] + b"\xff" + whole[11:],
        whole[:5] + b"\x01\x03\x00\x00\x00" + cbor2.dumps([1]) + whole[-5:],
    ):
        with pytest.raises(Corrupted):
            machine.restore(iter([damaged]))
    with pytest.raises(UnsupportedVersion):
        machine.restore(iter([whole[:4] + b"\x02" + whole[5:]]))
    assert before == machine.digest()


def test_equal_states_have_equal_digests_and_unequal_ones_do_not():
    assert World().machine.digest() == World().machine.digest()
    assert len(World().machine.digest()) == 16
    world = World()
    seen = [world.machine.digest()]
    client = Client(world)
    seen.append(world.machine.digest())
    world.publish(3)
    seen.append(world.machine.digest())
    delivery = client.take()
    seen.append(world.machine.digest())
    client.extend(delivery, visibility_us=60_000_000)
    seen.append(world.machine.digest())
    client.ack(delivery, (1, 2))
    seen.append(world.machine.digest())
    assert len(set(seen)) == len(seen)


def test_an_unchanged_partition_is_not_digested_again(monkeypatch):
    world = World(partitions=50)
    world.machine.digest()
    encoded = []
    encode = "raftq.queue.snapshot.encode_item"
    monkeypatch.setattr(encode, lambda item: encoded.append(item) or b"")
    world.publish(1, partition=7)
    world.machine.digest()
    assert [item.number for item in encoded] == [7]
    assert world.now == NOON
