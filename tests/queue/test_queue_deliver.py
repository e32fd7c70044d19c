"""Handing out: in order, within bounds, in fair turns, to one consumer at a time."""

from itertools import pairwise

import pytest
from queue_world import DEFAULT, NOON, QUEUE, SECOND, Client, World, offsets

from raftq.batch import encode, encode_stamp
from raftq.errors import Busy, InvalidArgument, OffsetOutOfRange, QueueNotEmpty, QueueNotFound
from raftq.machine import Admitted
from raftq.queue import commands
from raftq.queue.config import QueueConfig
from raftq.queue.machine import QueueMachine
from raftq.queue.replies import Configured, Delivery, Dropped, Purged, Range, Subscribed


def ranges(deliveries):
    """(partition, first, last + 1) of deliveries whose ranges touch each other."""
    for found in deliveries:
        assert all(a.stop == b.start for a, b in pairwise(found.ranges))
    return [(found.partition, found.ranges[0].start, found.ranges[-1].stop) for found in deliveries]


def test_messages_come_in_their_order_and_only_once():
    world = World()
    world.publish(5)
    one, two = Client(world), Client(world)
    first = one.take(3)
    assert first == Delivery(1, QUEUE, 0, DEFAULT, NOON + 30 * SECOND, (Range(0, 3, 1),))
    assert two.take(3) == Delivery(2, QUEUE, 0, DEFAULT, NOON + 30 * SECOND, (Range(3, 5, 1),))
    assert one.receive() == []
    assert world.stats().in_flight == 5


def test_takers_are_served_in_their_order_and_one_that_gets_nothing_has_no_delivery():
    world = World()
    world.publish(3)
    clients = [Client(world) for _ in range(3)]
    takers = [commands.Taker(*client.by(), QUEUE, DEFAULT, 2) for client in clients]
    results = world.apply(commands.encode_deliver(takers)).results
    got = [offsets(*[r for found in result.deliveries for r in found.ranges]) for result in results]
    assert got == [[0, 1], [2], []]
    world.publish(1)
    # Its number is unused: the same taker is served when there is something.
    again = world.apply(commands.encode_deliver(takers[2:])).results
    assert again[0].deliveries[0].ranges == (Range(3, 4, 1),)


def test_what_was_handed_out_before_comes_before_new_lower_offsets_first():
    world = World()
    world.publish(10)
    client = Client(world)
    delivery = client.take(6)
    client.nack(delivery, (4, 5))
    client.nack(delivery, (1, 3))
    assert client.take(5).ranges == (Range(1, 3, 2), Range(4, 5, 2), Range(6, 8, 1))


def test_neighbours_with_the_same_past_are_one_range_again():
    world = World()
    world.publish(4)
    client = Client(world)
    delivery = client.take()
    for offset in (2, 0, 3, 1):
        client.nack(delivery, (offset, offset + 1), number=None)
    # Each was nacked by a command of its own, but with the same words at the same time.
    assert client.take().ranges == (Range(0, 4, 2),)


def test_a_receive_is_bounded_by_bytes_but_lets_one_message_pass():
    world = World()
    world.publish(4, size=100)
    client = Client(world)
    assert client.take(max_bytes=250).ranges == (Range(0, 2, 1),)
    assert client.take(max_bytes=1).ranges == (Range(2, 3, 1),)
    assert client.take(max_bytes=10**6).ranges == (Range(3, 4, 1),)


def test_the_bound_in_bytes_holds_over_partitions_and_over_what_comes_back():
    world = World(partitions=2)
    world.publish(2, size=100)
    world.publish(2, size=100, partition=1)
    client = Client(world)
    deliveries = client.receive(max_bytes=350)
    assert ranges(deliveries) == [(0, 0, 2), (1, 0, 1)]
    client.nack(deliveries[1])
    client.nack(deliveries[0], (1, 2))
    assert ranges(client.receive(max_bytes=250)) == [(1, 0, 2)]
    assert ranges(client.receive(max_bytes=250)) == [(0, 1, 2)]


def test_partitions_have_fair_turns():
    world = World(partitions=3)
    for partition in range(3):
        world.publish(4, partition=partition)
    client = Client(world)
    turns = [client.receive(1)[0].partition for _ in range(6)]
    assert turns == [0, 1, 2, 0, 1, 2]
    assert ranges(client.receive(5)) == [(0, 2, 4), (1, 2, 4), (2, 2, 3)]


def test_a_taker_may_accept_only_some_partitions():
    world = World(partitions=3)
    for partition in range(3):
        world.publish(2, partition=partition)
    client = Client(world)
    assert ranges(client.receive(10, partitions=(2, 1))) == [(1, 0, 2), (2, 0, 2)]
    assert client.receive(10, partitions=(7,)) == []


def test_visibility_is_the_calls_or_the_queues():
    world = World(visibility_timeout=7.5)
    world.publish(2)
    client = Client(world)
    assert client.take(1).deadline == NOON + 7_500_000
    assert client.take(1, visibility_us=SECOND).deadline == NOON + SECOND


def test_a_receive_from_nothing_is_refused_with_a_reason():
    world = World()
    client = Client(world)
    assert isinstance(client.receive(queue=99), QueueNotFound)
    assert isinstance(client.receive(subscription="nobody"), InvalidArgument)


def test_a_backlog_costs_the_same_whatever_its_length():
    world = World()
    for _ in range(50):
        world.publish(1_000)
    subscription = world.machine._state.partitions[QUEUE, 0].subscriptions[DEFAULT]
    assert world.stats().ready == 50_000
    assert not subscription.waiting
    assert len(subscription.finished) == 0


def test_what_is_settled_is_forgotten():
    world = World()
    client = Client(world)
    for _ in range(100):
        world.publish(3)
        client.ack(client.take())
    sizes = world.machine._state.partitions[QUEUE, 0].sizes
    assert len(sizes._offsets) < 5
    assert len(sizes.encoded()[0]) == 0


# --- Subscriptions ------------------------------------------------------------------------------


def test_subscriptions_are_independent():
    world = World()
    world.subscribe("billing")
    world.publish(3)
    client = Client(world)
    client.ack(client.take())
    assert client.take(subscription="billing").ranges == (Range(0, 3, 1),)
    assert (world.stats().settled, world.stats(subscription="billing").in_flight) == (3, 3)


@pytest.mark.parametrize(("start", "expected"), [("earliest", 2), ("latest", 6), (4, 4), (6, 6)])
def test_a_subscription_starts_where_it_is_told(start, expected):
    world = World()
    world.publish(6)
    client = Client(world)
    client.ack(client.take(2))
    assert world.subscribe("billing", start) == Subscribed(expected)
    assert world.subscribe("billing", "latest") == Subscribed(expected)
    world.publish(1)
    assert client.take(subscription="billing").ranges[0].start == expected


@pytest.mark.parametrize("start", [1, 7])
def test_a_subscription_cannot_start_where_nothing_is_held(start):
    world = World()
    world.publish(6)
    client = Client(world)
    client.ack(client.take(2))
    assert isinstance(world.subscribe("billing", start), OffsetOutOfRange)


def test_a_message_is_needed_until_every_subscription_is_done_with_it():
    world = World()
    world.subscribe("billing")
    world.publish(5)
    client = Client(world)
    client.ack(client.take())
    assert world.partition().first_offset == 0
    delivery = client.take(subscription="billing")
    client.ack(delivery, (0, 2))
    assert world.partition().first_offset == 2
    client.ack(delivery, (3, 5))
    assert world.partition().first_offset == 2
    client.nack(delivery, reject=True)
    assert world.partition().first_offset == 2
    world.operate(commands.encode_purge, subscription="billing", dead=True)
    assert world.partition().first_offset == 5


def test_an_unsubscribed_consumer_holds_nothing_any_more():
    world = World()
    world.subscribe("billing")
    world.publish(5)
    client = Client(world)
    delivery = client.take(subscription="billing")
    world.operate(commands.encode_unsubscribe, subscription="billing")
    assert client.ack(delivery).stale == ((QUEUE, 0, delivery.delivery, 0, 5),)
    assert world.machine.held_by(client.session) == ()
    assert isinstance(client.receive(subscription="billing"), InvalidArgument)
    # Made anew, it is another subscription.
    world.subscribe("billing", "latest")
    assert client.receive(subscription="billing") == []


def test_the_last_subscription_stays():
    world = World()
    assert isinstance(world.operate(commands.encode_unsubscribe), InvalidArgument)
    world.subscribe("billing")
    world.operate(commands.encode_unsubscribe)
    assert [found.name for found in world.partition().subscriptions] == ["billing"]


# --- Partitions come and go ---------------------------------------------------------------------


def test_configuring_is_idempotent_by_version():
    world = World(delivery_limit=3)
    late = commands.encode_configure(QUEUE, 0, 1, QueueConfig(delivery_limit=9))
    newer = commands.encode_configure(QUEUE, 0, 5, QueueConfig(delivery_limit=7))
    assert world.apply(late) == Configured(1)
    assert world.apply(newer) == Configured(5)
    assert world.apply(late) == Configured(5)
    config = world.machine._state.partitions[QUEUE, 0].config
    assert config.delivery_limit == 7
    assert world.machine.partitions() == ((QUEUE, 0, 5),)


def test_a_partition_that_still_holds_something_is_dropped_only_by_force():
    world = World()
    world.publish(2)
    client = Client(world)
    delivery = client.take(1)
    drop = commands.encode_drop(QUEUE, 0, force=False)
    assert isinstance(world.apply(drop), QueueNotEmpty)
    client.ack(delivery)
    client.nack(client.take(1), reject=True)
    assert isinstance(world.apply(drop), QueueNotEmpty)
    world.operate(commands.encode_purge, dead=True)
    assert world.apply(drop) == Dropped()
    assert world.machine.partitions() == ()


def test_a_dropped_partition_stays_closed():
    world = World()
    world.publish(2)
    client = Client(world)
    delivery = client.take()
    assert world.apply(commands.encode_drop(QUEUE, 0, force=True)) == Dropped()
    assert world.apply(commands.encode_drop(QUEUE, 0, force=True)) == Dropped()
    late = commands.encode_configure(QUEUE, 0, 99, QueueConfig())
    assert isinstance(world.apply(late), QueueNotFound)
    assert world.machine.held_by(client.session) == ()
    assert len(client.ack(delivery).stale) == 1
    assert world.machine.next_deadline() > NOON + 60 * SECOND
    assert world.apply(commands.encode_drop(QUEUE, 1, force=True)) == Dropped()
    never_opened = commands.encode_configure(QUEUE, 1, 1, QueueConfig(partitions=2))
    assert isinstance(world.apply(never_opened), QueueNotFound)


def test_a_sealed_partition_is_empty_and_takes_nothing_until_it_is_opened_again():
    world = World()
    world.publish(1)
    client = Client(world)
    seal = commands.encode_configure(QUEUE, 0, 2, QueueConfig(), sealed=True)
    assert isinstance(world.apply(seal), QueueNotEmpty)
    client.ack(client.take())
    assert world.apply(seal) == Configured(2)
    batch = encode([b"late"], queue=QUEUE, partition=0)
    stamp = encode_stamp(QUEUE, 0, 0, 1)
    verdict = world.machine.admission().admit(stamp, batch, 1_000, NOON)
    assert isinstance(verdict, Busy)
    restored = QueueMachine()
    restored.restore(iter(list(world.machine.snapshot())))
    assert isinstance(restored.admission().admit(stamp, batch, 1_000, NOON), Busy)
    assert world.apply(commands.encode_configure(QUEUE, 0, 3, QueueConfig())) == Configured(3)
    assert isinstance(world.machine.admission().admit(stamp, batch, 1_000, NOON), Admitted)


def test_purging_discards_what_is_ready_or_delayed_and_nothing_else():
    world = World()
    world.publish(10)
    client = Client(world)
    delivery = client.take(6)
    client.nack(delivery, (0, 2))
    client.nack(delivery, (2, 3), delay_us=SECOND)
    client.ack(delivery, (3, 4))
    assert world.operate(commands.encode_purge) == Purged(2 + 1 + 4)
    stats = world.stats()
    assert (stats.ready, stats.delayed, stats.in_flight) == (0, 0, 2)
    assert (stats.settled, stats.discarded) == (1, 7)
    client.ack(delivery, (4, 6))
    assert world.partition().first_offset == 10
    assert world.publish(1).base_offset == 10
    assert client.take().ranges == (Range(10, 11, 1),)


def test_questions_about_what_is_not_there():
    machine = World().machine
    assert machine.describe(9, 0) is None
    assert not machine.has_ready(9, DEFAULT)
    assert machine.dead_letters(9, 0, DEFAULT) == []
    assert machine.attachment(5) is None
    assert not machine.session_exists(5)


def test_has_ready_sees_any_partition():
    world = World(partitions=3)
    assert not world.machine.has_ready(QUEUE, DEFAULT)
    world.publish(1, partition=2)
    assert world.machine.has_ready(QUEUE, DEFAULT)
    assert not world.machine.has_ready(QUEUE, "billing")
    client = Client(world)
    delivery = client.take()
    assert not world.machine.has_ready(QUEUE, DEFAULT)
    client.nack(delivery)
    assert world.machine.has_ready(QUEUE, DEFAULT)
