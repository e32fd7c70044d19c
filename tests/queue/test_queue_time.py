"""Log time: nothing is early, nothing depends on the heap, and a leader change postpones once."""

from queue_world import NOON, SECOND, Client, World, copy_of

from raftq.queue import commands


def test_nothing_is_due_in_an_empty_machine():
    assert World().machine.next_deadline() is None


def test_a_leader_change_gives_deliveries_in_flight_the_length_of_the_gap():
    world = World(visibility_timeout=10)
    world.publish(3)
    client = Client(world)
    soon = client.take(1)
    world.now += 6 * SECOND
    later = client.take(1)
    # A gap of three seconds: due at 10 and at 16, the floor is at 9.5 + 3.
    world.change_leader(3_500_000)
    world.tick(0.6)
    assert world.stats().in_flight == 2
    assert world.machine.next_deadline() == NOON + 13 * SECOND
    world.now = NOON + 13 * SECOND
    world.tick()
    assert world.machine.held_by(client.session) == (later.delivery,)
    assert client.ack(soon).stale
    assert world.machine.next_deadline() == later.deadline


def test_the_floor_is_never_longer_than_five_seconds_or_the_visibility():
    world = World(visibility_timeout=10)
    world.publish(2)
    client = Client(world)
    client.take(1)
    client.take(1, visibility_us=2 * SECOND)
    world.change_leader(60 * SECOND)
    world.tick(1.999_999)
    assert world.stats().in_flight == 2
    world.tick(0.000_001)
    assert world.stats().in_flight == 1
    world.tick(2.999_999)
    assert world.stats().in_flight == 1
    world.tick(0.000_001)
    assert world.stats().in_flight == 0


def test_the_floor_follows_the_visibility_of_the_last_extension():
    world = World(visibility_timeout=10)
    world.publish(1)
    client = Client(world)
    delivery = client.take()
    world.now += 9_500_000
    client.extend(delivery, visibility_us=SECOND)
    assert world.machine.next_deadline() == NOON + 10_500_000
    world.change_leader(5 * SECOND)
    assert world.machine.next_deadline() == NOON + 15_500_000


def test_leader_changes_every_four_seconds_do_not_stop_expiry():
    """A flapping link moves the floor each time, but each delivery only once."""
    world = World(visibility_timeout=10)
    world.publish(1)
    Client(world).take()
    for _ in range(4):
        world.change_leader(4 * SECOND)
        world.tick()
    assert world.stats().in_flight == 0
    assert world.now < NOON + 17 * SECOND


def test_a_delivery_that_is_due_late_is_not_touched_by_a_leader_change():
    world = World(visibility_timeout=60)
    world.publish(1)
    Client(world).take()
    before = world.machine.digest()
    world.change_leader(SECOND)
    assert before == world.machine.digest()
    world.change_leader(0)
    assert before == world.machine.digest()


def test_a_change_of_leader_is_part_of_the_replicated_state():
    world = World(visibility_timeout=3)
    world.publish(1)
    Client(world).take()
    world.change_leader(2 * SECOND)
    copy = copy_of(world.machine)
    assert copy.digest() == world.machine.digest()
    assert copy.next_deadline() == world.machine.next_deadline() == NOON + 4 * SECOND


def test_mass_expiry_is_worked_off_in_bounded_ticks(monkeypatch):
    monkeypatch.setattr("raftq.queue.passing_time.TICK_WORK", 50)
    world = World(visibility_timeout=1)
    client = Client(world)
    world.publish(60)
    for _ in range(60):
        client.take(1)
    world.tick(1)
    assert world.stats().in_flight == 10
    assert world.machine.next_deadline() <= world.now
    world.tick()
    assert world.stats().in_flight == 0


def test_pointless_deadlines_are_cleared_out(monkeypatch):
    monkeypatch.setattr("raftq.queue.deadlines._CLEARED_MIN", 50)
    world = World()
    client = Client(world)
    world.publish(300)
    for _ in range(300):
        client.ack(client.take(1))
    assert len(world.machine._state.deadlines._heap) <= 51


def test_repeated_delays_of_many_messages_do_not_pile_up_deadlines():
    world = World(delivery_limit=None)
    client = Client(world)
    world.publish(200)
    delivery = client.take(200)
    for offset in range(200):
        client.nack(delivery, (offset, offset + 1), delay_us=SECOND + offset)
    assert len(world.machine._state.deadlines._heap) < 10
    world.tick(2)
    assert world.stats().ready == 200


def test_a_tick_before_its_time_changes_nothing():
    world = World()
    world.publish(3)
    Client(world).take()
    before = world.machine.digest()
    world.apply(world.machine.tick_command())
    assert commands.encode_tick() == world.machine.tick_command()
    assert before == world.machine.digest()
