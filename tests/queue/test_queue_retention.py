"""Letting go of history: what is needed stays, and what has gone never comes back."""

from random import Random

import pytest
from queue_world import NOON, QUEUE, SECOND, Client, World, check_retention, copy_of

from raftq.batch import encode
from raftq.errors import InvalidArgument, OffsetOutOfRange, QueueFull
from raftq.limits import AUDIT_BYTES_PER_PARTITION
from raftq.machine import Admitted, Bound, Kept, Meta, Retaining
from raftq.queue import commands
from raftq.queue.command_reader import decode
from raftq.queue.config import QueueConfig
from raftq.queue.faults import Faults
from raftq.queue.machine import QueueMachine
from raftq.queue.message_bytes import THINNED_MARKS
from raftq.queue.replies import HistoryReleased, LogsExpired
from raftq.queue.retention_commands import Outcome, encode_release_history

CHAIN = bytes(range(16))
DAY = 24 * 3_600 * SECOND


def settled_world(count=10, **options):
    """All messages are settled."""
    world = World(**options)
    world.publish(count)
    client = Client(world)
    client.ack(client.take(count))
    return world


def test_a_queue_machine_says_what_it_keeps():
    world = World(partitions=2, audit_retention=0)
    assert isinstance(world.machine, Retaining)
    world.publish(3, partition=1)
    client = Client(world)
    client.ack(client.take(3), (0, 1))
    assert world.machine.kept() == (
        Kept(QUEUE, 0, 0, 0, AUDIT_BYTES_PER_PARTITION, None, None),
        Kept(QUEUE, 1, 1, 0, AUDIT_BYTES_PER_PARTITION, None, None),
    )
    world.update(retain_seconds=1.5, retain_bytes=7, audit_retention=None)
    assert world.machine.kept()[1][3:] == (0, AUDIT_BYTES_PER_PARTITION, 1_500_000, 3)
    assert settled_world(retain="log").machine.kept() == (
        Kept(QUEUE, 0, 0, DAY, AUDIT_BYTES_PER_PARTITION, None, None),
    )


def test_nothing_is_released_at_first():
    assert QueueMachine().released == (0, bytes(16))


def test_a_release_is_in_the_state_with_its_chain_and_its_outcomes():
    world = settled_world()
    world.publish(2)
    world.operate(commands.encode_purge)
    header = world.machine.release_command(4, CHAIN, (Bound(QUEUE, 0, 11),))
    verdict = world.admission.admit(header, b"", world.index + 1, NOON)
    assert verdict == Admitted(header)
    assert world.apply(header) == HistoryReleased(4, 11)
    assert world.effects == ()
    assert world.machine.released == (4, CHAIN)
    assert world.partition().released == 11
    (found,) = decode(header).ranges
    assert found.outcomes == (Outcome("default", "settled", 10), Outcome("default", "purged", 1))
    again = decode(world.machine.release_command(9, CHAIN, (Bound(QUEUE, 0, 12),)))
    assert (again.after, again.chain_after) == (4, CHAIN)
    assert again.ranges[0].outcomes == (Outcome("default", "purged", 1),)
    assert copy_of(world.machine).released == (4, CHAIN)


def test_the_same_release_is_not_applied_twice():
    world = settled_world()
    header = world.machine.release_command(3, CHAIN, (Bound(QUEUE, 0, 5),))
    assert world.apply(header).messages == 5
    assert isinstance(world.apply(header), InvalidArgument)


@pytest.mark.parametrize(
    "change",
    [
        {"after": 2},
        {"chain_after": b"\x01" * 16},
        {"through": 0},
        {"through": 99},
        {"through": 6},
    ],
)
def test_a_release_that_does_not_follow_the_last_one_is_refused(change):
    world = settled_world()
    assert world.index == 5
    command = decode(world.machine.release_command(3, CHAIN, (Bound(QUEUE, 0, 5),)))
    before = world.machine.digest()
    reply = world.apply(encode_release_history(command._replace(**change)))
    assert isinstance(reply, InvalidArgument)
    assert world.machine.digest() == before


@pytest.mark.parametrize(
    "change",
    [
        {"before": 1},
        {"offset": 11},
        {"offset": 4},
        {"outcomes": ()},
        {"outcomes": (Outcome("default", "settled", 6),)},
        {"outcomes": (Outcome("default", "purged", 5),)},
    ],
)
def test_a_release_that_is_not_exactly_right_changes_no_partition(change):
    world = settled_world()
    world.configure(queue=QUEUE + 1)
    bounds = (Bound(QUEUE, 0, 5), Bound(QUEUE + 1, 0, 0))
    command = decode(world.machine.release_command(3, CHAIN, bounds))
    second, first = command.ranges[1], command.ranges[0]._replace(**change)
    before = world.machine.digest()
    reply = world.apply(encode_release_history(command._replace(ranges=(first, second))))
    assert isinstance(reply, InvalidArgument)
    assert world.machine.digest() == before


def test_what_was_in_flight_when_a_release_was_made_does_not_change_it():
    world = settled_world()
    world.publish(5)
    header = world.machine.release_command(3, CHAIN, (Bound(QUEUE, 0, 10),))
    client = Client(world)
    delivery = client.take(5)
    client.ack(delivery, (10, 12))
    client.nack(delivery, (12, 13), reject=True)
    world.subscribe("billing")
    assert world.apply(header).messages == 10


def test_partitions_that_are_closed_or_unknown_stop_no_release():
    world = settled_world(partitions=2)
    world.publish(2, partition=1)
    header = world.machine.release_command(
        3, CHAIN, (Bound(QUEUE + 1, 0, 9), Bound(QUEUE, 1, 0), Bound(QUEUE, 0, 7))
    )
    assert [row.partition for row in decode(header).ranges] == [0, 1, 0]
    world.apply(commands.encode_drop(QUEUE, 0, force=True))
    assert world.apply(header) == HistoryReleased(3, 0)
    assert world.is_settled(0, 99)
    assert not world.machine.is_settled(QUEUE + 1, 0, 0, 1)
    assert not world.is_settled(0, 1, partition=1)


def test_a_release_past_a_dead_letter_waits_until_it_is_purged():
    world = World()
    world.publish(3)
    client = Client(world)
    delivery = client.take(3)
    client.nack(delivery, (1, 2), reject=True)
    client.ack(delivery)
    assert world.is_settled(2, 3)
    assert not world.is_settled(1, 3)
    assert isinstance(world.release((0, 3)), InvalidArgument)
    assert world.release((0, 1)).messages == 1
    world.operate(commands.encode_redrive)
    assert not world.is_settled(1, 2)
    client.nack(client.take(), reject=True)
    world.operate(commands.encode_purge, dead=True)
    assert world.is_settled(1, 3)
    assert world.release((0, 3)).messages == 2


def test_a_checker_can_be_checked():
    world = World(faults=Faults(release_unchecked=True))
    world.publish(5)
    header = world.machine.release_command(2, CHAIN, (Bound(QUEUE, 0, 4),))
    meta = Meta(3, 1, NOON, 0)
    assert world.machine.apply(meta, header, b"").reply == HistoryReleased(2, 4)
    assert world.machine._state.partitions[QUEUE, 0].released == 4
    assert not world.machine.is_settled(QUEUE, 0, 0, 1)


def test_what_is_gone_does_not_come_alive_for_a_new_subscription():
    """Neither from the earliest, nor from an offset; and limits count what they did before."""
    world = World(max_messages=10, max_bytes=100)
    world.publish(10)
    client = Client(world)
    client.ack(client.take(10), (1, 4), (6, 7))
    before = world.partition()
    assert (before.messages, before.message_bytes) == (6, 60)
    assert world.subscribe("billing").start == 0
    assert world.subscribe("audit", 3).start == 3
    after = world.partition()
    assert (after.messages, after.message_bytes) == (6, 60)
    assert world.stats(subscription="billing")[2:] == (6, 0, 0, 0, 0, 4, 0)
    assert world.stats(subscription="audit")[2:] == (5, 0, 0, 0, 0, 2, 0)
    delivery = client.take(10, subscription="billing")
    assert [tuple(found) for found in delivery.ranges] == [(0, 1, 1), (4, 6, 1), (7, 10, 1)]
    assert world.publish(4).base_offset == 10
    delivery = client.take(3, subscription="audit")
    assert [tuple(found) for found in delivery.ranges] == [(4, 6, 1), (7, 8, 1)]


def test_an_unsubscription_lets_a_release_go_further_and_makes_an_older_one_wrong():
    world = settled_world()
    world.subscribe("billing", "latest")
    world.publish(2)
    client = Client(world)
    client.ack(client.take(2))
    world.operate(commands.encode_purge, subscription="billing")
    header = world.machine.release_command(3, CHAIN, (Bound(QUEUE, 0, 12),))
    world.operate(commands.encode_unsubscribe, subscription="billing")
    assert isinstance(world.apply(header), InvalidArgument)
    assert world.release((0, 12)).messages == 12


def test_a_log_keeps_what_is_settled_until_its_floor():
    world = settled_world(retain="log")
    assert world.partition()[4:6] == (0, 0)
    assert not world.is_settled(0, 1)
    assert isinstance(world.release((0, 1)), InvalidArgument)
    assert world.expire((0, 4)) == LogsExpired(0)
    assert world.partition().first_offset == 4
    assert world.is_settled(0, 4)
    assert not world.is_settled(3, 5)
    assert isinstance(world.subscribe("billing", 3), OffsetOutOfRange)
    assert world.subscribe("billing").start == 4
    assert world.stats(subscription="billing").ready == 6
    assert world.partition()[7:9] == (6, 60)


def test_a_log_is_read_again_only_if_it_fits():
    world = settled_world(retain="log", max_messages=10)
    world.publish(4)
    before = world.machine.digest()
    assert isinstance(world.subscribe("billing"), QueueFull)
    assert world.machine.digest() == before
    assert world.subscribe("billing", 4).start == 4
    assert isinstance(world.publish(1), QueueFull)


def test_the_floor_never_falls_and_never_passes_the_end():
    world = settled_world(retain="log")
    world.expire((0, 99))
    assert world.partition().first_offset == 10
    world.publish(2)
    world.expire((0, 5))
    assert world.partition().first_offset == 10
    assert world.stats().ready == 2


def test_a_partition_that_is_no_log_forgets_nothing():
    world = World()
    world.publish(5)
    before = world.machine.digest()
    assert world.expire((0, 3)) == LogsExpired(0)
    assert world.machine.digest() == before


def test_delayed_messages_below_the_floor_are_forgotten_and_wake_nobody():
    world = World(retain="log")
    world.publish(6)
    client = Client(world)
    delivery = client.take(6)
    client.nack(delivery, (0, 3), delay_us=5 * SECOND)
    client.nack(delivery, (3, 6), delay_us=9 * SECOND)
    assert world.expire((0, 4)) == LogsExpired(4)
    world.tick(5)
    assert world.stats().ready == 0
    world.tick(4)
    assert world.stats().ready == 2
    assert world.stats().discarded == 4


@pytest.mark.parametrize("how", ["nack", "delay", "expiry", "release", "goodbye"])
def test_what_is_given_back_below_the_floor_is_forgotten(how):
    world = World(retain="log")
    world.publish(6)
    client = Client(world)
    delivery = client.take(6)
    world.expire((0, 4))
    assert world.stats().in_flight == 6
    if how == "expiry":
        world.tick(30)
    elif how in {"nack", "delay"}:
        client.nack(delivery, delay_us=SECOND * (how == "delay"))
    else:
        client.release(goodbye=how == "goodbye")
    assert world.stats().discarded == 4
    assert world.stats().ready + world.stats().delayed == 2
    assert world.partition().needed_from == 4
    assert world.release((0, 4)).messages == 4


def test_what_is_rejected_below_the_floor_is_a_dead_letter():
    world = World(retain="log", delivery_limit=1)
    world.publish(6)
    client = Client(world)
    delivery = client.take(6)
    world.expire((0, 4))
    client.nack(delivery, (0, 1), reject=True)
    client.nack(delivery, (1, 2))
    client.ack(delivery)
    assert [letter.reason for letter in world.dead()] == ["rejected", "delivery_limit"]
    assert world.partition()[4:6] == (4, 0)
    assert world.is_settled(2, 4)


def test_a_queue_that_becomes_a_log_begins_its_history_then():
    world = settled_world(4)
    world.publish(4)
    world.update(retain_seconds=60)
    client = Client(world)
    client.ack(client.take(4), (5, 6))
    assert world.is_settled(5, 6)
    world.publish(1)
    client.ack(client.take(1, number=9), (8, 9))
    assert not world.is_settled(8, 9)
    assert world.subscribe("billing").start == 4
    assert world.stats(subscription="billing")[2:] == (4, 0, 0, 0, 0, 1, 0)


def test_a_log_that_becomes_a_queue_keeps_what_somebody_needs():
    world = World(retain="log")
    world.publish(8)
    client = Client(world)
    delivery = client.take(4)
    client.ack(delivery, (0, 1), (2, 3))
    world.expire((0, 2))
    world.update(retain="until_settled")
    assert world.is_settled(2, 3)
    assert not world.is_settled(1, 2)
    client.nack(delivery)
    assert world.stats().discarded == 0
    assert world.stats().ready == 6
    assert world.machine.kept()[0].needed_from == 1


def batches(machine, count, *, random, lengths=lambda random: [random.randrange(3_000)]):
    """Publishes by the machine alone: a world would look at everything after each of them."""
    sizes = []
    for index in range(1, count + 1):
        found = lengths(random)
        body = encode([b"x" * length for length in found], queue=QUEUE, partition=0)
        header = machine.admission().admit(b"\x01", body, index, NOON).header
        machine.apply(Meta(index, 1, NOON, 0), header, body)
        sizes += found
    return sizes


@pytest.mark.parametrize("limits", [{}, {"max_bytes": 2**40}])
def test_memory_of_a_long_log_is_bounded_and_its_bytes_add_up(limits):
    """With a limit of bytes, what counts keeps its exact marks; what is settled does not need them."""
    random = Random(7)
    world = World(retain="log", **limits)
    machine, client = world.machine, Client(world)
    exact, partition = [], machine._state.partitions[QUEUE, 0]
    for base in range(0, 6_000, 1_500):
        exact += batches(machine, 1_500, random=random)
        delivery = client.take(10_000, max_bytes=2**40)
        client.ack(delivery, *[(start, start + 2) for start in range(base, base + 1_300, 5)])
        left = [at for at in range(base, base + 1_500) if at - base >= 1_300 or at % 5 > 1]
        if limits:
            assert partition.message_bytes == sum(exact[at] for at in left)
        client.ack(delivery)
    batches(machine, 2 * THINNED_MARKS + 5, random=random)
    check_retention(partition)
    marks = len(partition.sizes.encoded()[0]) // 8
    # Behind the backlog, of which a limit keeps all marks, and those that wait to be thinned out.
    assert marks < 3 * THINNED_MARKS + 200
    assert world.subscribe("billing").start == 0
    delivery = client.take(10_000, subscription="billing", max_bytes=2**20)
    taken = sum(exact[: delivery.ranges[-1].stop])
    assert abs(taken - 2**20) < 2**18
    copy = copy_of(machine)
    assert copy.digest() == machine.digest()


def test_many_ranges_are_released_in_a_moment():
    """What was discarded one by one is looked at once, and forgotten with the release."""
    machine = QueueMachine()
    config = QueueConfig.from_user({"max_bytes": 2**40})
    machine.apply(Meta(1, 1, NOON, 0), commands.encode_configure(QUEUE, 0, 1, config), b"")
    batches(machine, 2, random=Random(1), lengths=lambda _: [1] * 20_000)
    subscription = machine._state.partitions[QUEUE, 0].subscriptions["default"]
    for start in range(0, 40_000, 2):
        machine._state.partitions[QUEUE, 0].discard(subscription, start, start + 1, "odd")
    subscription.next_new = 40_000
    for start in range(1, 40_000, 2):
        machine._state.partitions[QUEUE, 0].finish(subscription, start, start + 1)
        subscription.settled += 1
    machine._state.partitions[QUEUE, 0].trim()
    header = machine.release_command(2, CHAIN, (Bound(QUEUE, 0, 39_999),))
    assert machine.apply(Meta(9, 1, NOON, 0), header, b"").reply.messages == 39_999
    assert subscription.released == {"settled": 19_999, "odd": 20_000}
    assert subscription.discarded_ranges == {}
