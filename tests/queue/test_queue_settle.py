"""What becomes of messages that were handed out: settled, back, or dead with a reason."""

import pytest
from queue_world import DEFAULT, NOON, QUEUE, SECOND, Client, World

from raftq.queue import commands
from raftq.queue.dead_letters import DeadLetter
from raftq.queue.effects import Available, DeadLettered, Expired
from raftq.queue.replies import Purged, Range, Redriven, Settled
from raftq.queue.snapshot import encode_item
from raftq.queue.spans import HISTORY_ATTEMPTS, Attempt

FINE = Settled(())


def stale(delivery, *ranges):
    return Settled(tuple((QUEUE, 0, delivery.delivery, start, stop) for start, stop in ranges))


def test_acks_are_judged_message_by_message():
    world = World()
    world.publish(10)
    client = Client(world)
    delivery = client.take()
    assert client.ack(delivery, (2, 4)) == FINE
    assert client.ack(delivery, (0, 6)) == stale(delivery, (2, 4))
    assert client.ack(delivery, (5, 12)) == stale(delivery, (5, 6), (10, 12))
    assert world.stats().settled == 10
    assert client.ack(delivery) == stale(delivery, (0, 10))


def partitions_of(world):
    return [encode_item(partition) for partition in world.machine._state.partitions.values()]


def test_a_forged_receipt_changes_nothing():
    world = World(partitions=2)
    world.publish(4)
    world.subscribe("billing")
    client = Client(world)
    delivery = client.take()
    before = partitions_of(world)
    forged = [
        (QUEUE, 1, DEFAULT, delivery.delivery),
        (QUEUE, 9, DEFAULT, delivery.delivery),
        (9, 0, DEFAULT, delivery.delivery),
        (QUEUE, 0, "billing", delivery.delivery),
        (QUEUE, 0, "nobody", delivery.delivery),
        (QUEUE, 0, DEFAULT, delivery.delivery + 1),
        (QUEUE, 0, DEFAULT, 2**64 - 1),
    ]
    items = [(*where, 0, 2**62) for where in forged]
    reply = world.apply(commands.encode_ack(*client.by(), items))
    assert [row[:3] for row in reply.stale] == [(*where[:2], where[3]) for where in forged]
    assert before == partitions_of(world)


def test_many_ranges_of_many_deliveries_in_one_ack():
    world = World()
    world.publish(100)
    client = Client(world)
    deliveries = [client.take(10) for _ in range(10)]
    items = [
        (QUEUE, 0, DEFAULT, found.delivery, found.ranges[0].start, found.ranges[0].stop)
        for found in reversed(deliveries)
    ]
    assert world.apply(commands.encode_ack(*client.by(), items)) == FINE
    assert world.partition().first_offset == 100


def test_another_session_may_settle_with_the_receipt():
    world = World()
    world.publish(1)
    receiver, gateway = Client(world), Client(world)
    delivery = receiver.take()
    assert gateway.ack(delivery) == FINE
    assert world.machine.held_by(receiver.session) == ()


def test_a_nacked_message_comes_back_at_once_and_its_receipt_is_stale():
    world = World()
    world.publish(2)
    client = Client(world)
    delivery = client.take()
    assert client.nack(delivery, (1, 2)) == FINE
    assert world.effects == (Available(QUEUE, DEFAULT),)
    assert client.ack(delivery) == stale(delivery, (1, 2))
    assert client.take().ranges == (Range(1, 2, 2),)


def test_a_nack_with_delay_comes_back_at_its_time_never_before():
    world = World()
    world.publish(3)
    client = Client(world)
    delivery = client.take()
    client.nack(delivery, (0, 1), delay_us=2 * SECOND)
    client.nack(delivery, (1, 2), delay_us=SECOND)
    assert world.effects == ()
    assert world.machine.next_deadline() == NOON + SECOND
    assert world.stats().delayed == 2
    world.tick(0.999_999)
    assert client.receive() == []
    world.tick(0.000_001)
    assert world.effects == (Available(QUEUE, DEFAULT),)
    assert client.take().ranges == (Range(1, 2, 2),)
    assert world.machine.next_deadline() == NOON + 2 * SECOND
    world.tick(1)
    assert client.take().ranges == (Range(0, 1, 2),)


def test_an_expired_delivery_comes_back_and_its_receipt_is_stale():
    world = World(visibility_timeout=10)
    world.publish(3)
    client = Client(world)
    delivery = client.take()
    assert world.machine.next_deadline() == delivery.deadline
    world.tick(9.999_999)
    assert world.stats().in_flight == 3
    assert client.ack(delivery, (1, 2)) == FINE
    world.tick(0.000_001)
    assert world.effects == (
        Expired(QUEUE, 0, DEFAULT, delivery.delivery, client.session, 2),
        Available(QUEUE, DEFAULT),
    )
    assert client.ack(delivery) == stale(delivery, (0, 3))
    assert client.take().ranges == (Range(0, 1, 2), Range(2, 3, 2))


def test_a_receipt_is_good_until_a_tick_says_otherwise():
    world = World(visibility_timeout=10)
    world.publish(1)
    client = Client(world)
    delivery = client.take()
    world.now += 60 * SECOND
    assert client.ack(delivery) == FINE
    world.tick()
    assert world.stats().settled == 1


def test_extending_puts_off_the_deadline_and_never_shortens_it():
    world = World(visibility_timeout=10)
    world.publish(4)
    client = Client(world)
    delivery = client.take()
    world.now += 5 * SECOND
    assert client.extend(delivery, (0, 2), (6, 9), visibility_us=20 * SECOND) == stale(
        delivery, (6, 9)
    )
    client.extend(delivery, visibility_us=SECOND)
    world.tick(19)
    assert world.stats().in_flight == 4
    world.tick(1)
    assert world.stats().in_flight == 0
    assert client.extend(delivery, visibility_us=SECOND) == stale(delivery, (0, 4))


def test_extending_what_is_not_held_any_more_extends_nothing():
    world = World(visibility_timeout=10)
    world.publish(4)
    client = Client(world)
    delivery = client.take()
    client.ack(delivery, (0, 2))
    client.extend(delivery, (0, 2), visibility_us=60 * SECOND)
    world.tick(10)
    assert world.stats().ready == 2


# --- Delivery limit and dead letters --------------------------------------------------------------


def test_at_the_limit_a_message_dies_with_reason_last_error_and_history():
    world = World(delivery_limit=2, visibility_timeout=10)
    world.publish(3)
    client = Client(world)
    first = client.take(1)
    client.nack(first, reason="no route")
    world.now += SECOND
    second = client.take(1)
    assert second.ranges == (Range(0, 1, 2),)
    world.tick(10)
    assert world.effects == (
        Expired(QUEUE, 0, DEFAULT, second.delivery, client.session, 1),
        DeadLettered(QUEUE, 0, DEFAULT, ((0, 1),), "delivery_limit"),
    )
    history = (
        Attempt(first.delivery, client.session, NOON, NOON, "nacked", "no route"),
        Attempt(second.delivery, client.session, NOON + SECOND, NOON + 11 * SECOND, "expired", ""),
    )
    letter = DeadLetter(0, "delivery_limit", "no route", 2, NOON + 11 * SECOND, history)
    assert world.dead() == [letter]
    assert (world.stats().dead, world.stats().ready) == (1, 2)


def test_a_nack_that_does_not_count_never_kills():
    world = World(delivery_limit=1)
    world.publish(1)
    client = Client(world)
    for count in range(5):
        delivery = client.take()
        assert delivery.ranges == (Range(0, 1, count + 1),)
        client.nack(delivery, count=False)
    client.nack(client.take())
    assert world.stats().dead == 1


def test_without_a_limit_nothing_dies_by_itself():
    world = World(delivery_limit=None)
    world.publish(1)
    client = Client(world)
    for _ in range(20):
        client.nack(client.take(), reason="again")
    assert world.stats().dead == 0
    (span,) = world.machine._state.partitions[QUEUE, 0].subscriptions[DEFAULT].waiting
    assert (span.delivery_count, span.failures) == (20, 20)
    assert len(span.history) == HISTORY_ATTEMPTS
    assert span.history[-1].delivery == 20


def test_a_rejected_message_dies_at_once():
    world = World()
    world.publish(3)
    client = Client(world)
    client.nack(client.take(), (1, 2), reject=True, reason="not json", delay_us=SECOND)
    assert world.effects == (DeadLettered(QUEUE, 0, DEFAULT, ((1, 2),), "rejected"),)
    (letter,) = world.dead()
    assert (letter.offset, letter.reason, letter.error) == (1, "rejected", "not json")
    assert letter.history[0].outcome == "rejected"


def dead_world():
    """Offsets 0-2 rejected, 5-6 over the limit."""
    world = World(delivery_limit=1)
    world.publish(8)
    client = Client(world)
    delivery = client.take()
    client.nack(delivery, (0, 3), reject=True)
    client.nack(delivery, (5, 7), reason="late")
    client.ack(delivery, (3, 5), (7, 8))
    return world, client


def test_peeking_lists_messages_page_by_page_and_consumes_nothing():
    world, _ = dead_world()
    before = world.machine.digest()
    assert [letter.offset for letter in world.dead()] == [0, 1, 2, 5, 6]
    assert [letter.offset for letter in world.dead(after_offset=0, limit=2)] == [1, 2]
    assert [letter.offset for letter in world.dead(after_offset=5)] == [6]
    assert before == world.machine.digest()


def test_dead_letters_keep_their_place_until_they_are_dealt_with():
    world, _ = dead_world()
    assert world.partition().first_offset == 0
    assert world.partition().messages == 0
    assert world.operate(commands.encode_purge, dead=True) == Purged(5)
    stats = world.stats()
    assert (stats.dead, stats.discarded) == (0, 5)
    assert world.partition().first_offset == 8


@pytest.mark.parametrize(
    ("wanted", "ranges"),
    [
        ({}, ((0, 3), (5, 7))),
        ({"reason": "rejected"}, ((0, 3),)),
        ({"reason": "nobody's"}, ()),
        ({"ranges": [(6, 9), (1, 2), (1, 3)]}, ((1, 3), (6, 7))),
        ({"reason": "delivery_limit", "ranges": [(0, 6)]}, ((5, 6),)),
        ({"limit": 4}, ((0, 3), (5, 6))),
    ],
)
def test_redriving_what_was_chosen(wanted, ranges):
    world, client = dead_world()
    expected = Redriven(sum(stop - start for start, stop in ranges), ranges)
    before = world.machine.digest()
    assert world.operate(commands.encode_redrive, **wanted, dry_run=True) == expected
    assert before == world.machine.digest()
    assert world.operate(commands.encode_redrive, **wanted) == expected
    assert world.effects == ((Available(QUEUE, DEFAULT),) if ranges else ())
    assert world.stats().ready == expected.count
    got = client.receive()
    assert [found[:2] for delivery in got for found in delivery.ranges] == list(ranges)


def test_a_redriven_message_has_its_whole_limit_again_and_remembers():
    world, client = dead_world()
    world.operate(commands.encode_redrive, ranges=[(5, 6)])
    delivery = client.take()
    assert delivery.ranges == (Range(5, 6, 2),)
    client.nack(delivery, reason="still late")
    letter = next(letter for letter in world.dead() if letter.offset == 5)
    assert letter.delivery_count == 2
    assert [attempt.error for attempt in letter.history] == ["late", "still late"]


def test_a_delayed_nack_at_the_limit_dies_now():
    world = World(delivery_limit=1)
    world.publish(1)
    client = Client(world)
    client.nack(client.take(), delay_us=SECOND)
    assert (world.stats().dead, world.stats().delayed) == (1, 0)


def test_a_lowered_limit_holds_from_the_next_failure():
    world = World(delivery_limit=5)
    world.publish(1)
    client = Client(world)
    for _ in range(3):
        client.nack(client.take())
    world.configure(delivery_limit=2)
    assert world.stats().ready == 1
    client.nack(client.take())
    assert world.stats().dead == 1
