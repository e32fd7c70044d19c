"""What is settled goes, what is not stays: on the disks of three nodes, and for one that was away."""

import pytest
from server_world import World, read_bodies

from raftq.host.tuning import Tuning
from raftq.storage.group_log import Condition, Sizes
from raftq.wire import requests
from raftq.wire.frames import FrameKind

KIB = 1024
SMALL = Tuning(
    snapshot_entries=50,
    retention_micros=500_000,
    expire_micros=500_000,
    sizes=Sizes(16 * KIB, 64 * KIB, 0, 0),
)
COUNT = 300
FILLING = bytes(range(256)) * 16
HOUR = 3_600_000_000


def body(number):
    return b"%06d" % number + FILLING


@pytest.fixture
def world():
    with World(groups=1, tuning=SMALL) as made:
        made.leader(1)
        yield made


def publish(wire, queue, numbers):
    for number in numbers:
        wire.publish(queue, [body(number)])


def consume(wire, session, queue, *, keep=()):
    """Receive all there is, and settle it but for `keep`."""
    while True:
        found = wire.receive(session, queue, visibility_us=HOUR, wanted=session.number)
        if not found.deliveries:
            return
        items = tuple(
            requests.Item(each.partition, each.delivery, offset, offset + 1)
            for each in found.deliveries
            for held in each.ranges
            for offset in range(held.start, held.stop)
            if offset not in keep
        )
        settle = requests.Settle(
            session.group, session.id, session.attachment, session.number, session.number, queue["id"],
            "default", requests.ACK, items,
        )  # fmt: skip
        session.number += 1
        _, answer = wire.answer(FrameKind.SETTLE, *requests.encode_settle(settle))
        assert not requests.decode_settled(answer).stale


def come_and_go(world, wire, session, queue):
    """A few more messages, so that the machine has two snapshots behind what is settled."""
    for number in range(COUNT, COUNT + 60):
        publish(wire, queue, [number])
        consume(wire, session, queue)
    world.run(3)


def log_bytes(world, name):
    disk = world.machines[name].disk
    return sum(
        len(disk.contents(path))
        for path in disk.paths()
        if path.startswith("group-1/") and path.endswith(".log") and "spare" not in path
    )


def test_one_old_message_pins_itself_and_not_what_came_after_it(world):
    wire = world.connect()
    queue = wire.create("jobs", audit_retention=0)
    session = wire.open_session(1)
    publish(wire, queue, range(COUNT))
    before = log_bytes(world, "n1")
    assert before > COUNT * len(FILLING)
    consume(wire, session, queue, keep={0})
    come_and_go(world, wire, session, queue)
    for name in world.names:
        after = log_bytes(world, name)
        assert after < before / 4, (name, before, after)
        assert world.group(name, 1).log.condition is Condition.OK
        assert world.group(name, 1).machine.released[0] < world.group(name, 1).log.last_index / 10
    assert read_bodies(wire.read(queue, 0, max_bytes=1)) == [body(0)]
    wire.control(do="purge_queue", name="jobs")
    world.until(lambda: world.digests_agree(1))


def test_what_is_settled_is_released_and_the_machine_says_what_became_of_it(world):
    wire = world.connect()
    queue = wire.create("jobs", audit_retention=0)
    session = wire.open_session(1)
    publish(wire, queue, range(COUNT))
    consume(wire, session, queue)
    come_and_go(world, wire, session, queue)
    for name in world.names:
        group = world.group(name, 1)
        released, chain = group.machine.released
        assert group.log.compaction.base.index == released > COUNT
        assert group.log.compaction.base.chain == chain
        assert log_bytes(world, name) < 100 * len(FILLING)
    found = wire.control(do="describe_queue", name="jobs")["partitions"][0]
    assert found["first_offset"] >= COUNT
    reply = wire.read(queue, 0)
    assert reply.first_offset >= COUNT


def test_a_node_that_was_away_gets_the_snapshot_and_what_is_live_before_it(world):
    wire = world.connect(world.leader(1))
    queue = wire.create("jobs", audit_retention=0)
    session = wire.open_session(1)
    publish(wire, queue, range(10))
    away = next(name for name in world.names if name != world.leader(1))
    world.kill(away)
    publish(wire, queue, range(10, COUNT))
    live = {3, 50, 51, 200}
    consume(wire, session, queue, keep=live)
    come_and_go(world, wire, session, queue)
    log = world.group(world.leader(1), 1).log
    assert log.first_index > 20, "what it missed is not whole any more"
    world.start(away)
    late = world.group(away, 1)
    world.until(lambda: world.digests_agree(1) and not late.mending.health, 30)
    assert late.log.snapshot.index > 20
    world.until(lambda: late.log.compaction.base.index == late.machine.released[0])
    assert late.log.holes == []
    for offset in live:
        (stored,) = late.log.batches(queue["id"], 0, offset, offset + 1, 1)
        assert bytes(stored.data).endswith(body(offset))
    world.kill(world.leader(1))
    world.leader(1)
    world.kill(away)
    world.start(away)
    late = world.group(away, 1)
    assert late.log.condition is Condition.OK
    assert late.log.holes == []


def test_a_log_forgets_what_is_too_much(world):
    wire = world.connect()
    queue = wire.create("events", retain_bytes=40 * len(FILLING), audit_retention=0)
    publish(wire, queue, range(COUNT))
    world.run(6)
    reply = wire.read(queue, 0)
    assert COUNT - 40 <= reply.first_offset < COUNT - 30
    read = read_bodies(wire.read(queue, reply.first_offset, max_bytes=1))
    assert read == [body(reply.first_offset)]
    found = wire.control(do="describe_queue", name="events")["partitions"][0]
    assert found["first_offset"] == reply.first_offset
    assert world.digests_agree(1)


def test_a_log_forgets_what_is_too_old(world):
    wire = world.connect()
    queue = wire.create("events", retain_seconds=20, audit_retention=0)
    publish(wire, queue, range(50))
    world.run(12)
    publish(wire, queue, range(50, 100))
    assert wire.read(queue, 0).first_offset == 0
    world.run(12)
    assert wire.read(queue, 0).first_offset == 50
    publish(wire, queue, [100])
    world.run(13)
    reply = wire.read(queue, 0)
    assert reply.first_offset >= 100
    assert reply.end_offset == 101
