"""Sessions: what may be repeated, who holds what after a reconnect, and who is given back what."""

import pytest
from queue_world import DEFAULT, QUEUE, SECOND, Client, World, offsets

from raftq.errors import Busy, InvalidArgument, SessionExpired
from raftq.limits import SESSION_EXPIRES_MICROS, SESSION_REPLIES
from raftq.queue import commands
from raftq.queue.replies import Attached, Range, Released, SessionOpened, Settled


def opened(world, *clients):
    return world, *(Client(world) for _ in range(clients[0] if clients else 1))


def test_a_session_is_named_by_its_place_in_the_log():
    world = World()
    first, second = Client(world).session, Client(world).session
    assert first < second
    assert world.machine.session_exists(second)
    assert world.machine.attachment(second) == 0
    assert world.machine.sessions() == 2


# --- Numbers --------------------------------------------------------------------------------------


def test_a_repeated_ack_is_a_success():
    world, client = opened(World())
    world.publish(3)
    delivery = client.take(number=1)
    assert client.ack(delivery, number=2, wanted=1) == Settled(())
    assert client.ack(delivery, number=2, wanted=1) == Settled(())
    assert world.stats().settled == 3
    # Under a number of its own it is judged anew.
    assert len(client.ack(delivery, number=3, wanted=1).stale) == 1


def test_a_repeated_nack_does_not_give_back_what_another_consumer_has_now():
    world, one, two = opened(World(), 2)
    world.publish(1)
    delivery = one.take(number=1)
    one.nack(delivery, number=2)
    again = two.take()
    assert one.nack(delivery, number=2) == Settled(())
    assert world.machine.held_by(two.session) == (again.delivery,)
    assert world.stats().in_flight == 1


def test_a_repeated_receive_returns_what_is_still_held():
    world, client = opened(World())
    world.publish(10)
    first = client.take(4, number=1)
    assert client.take(4, number=1) == first
    client.ack(first, (1, 3), number=2, wanted=1)
    assert client.take(4, number=1).ranges == (Range(0, 1, 1), Range(3, 4, 1))
    assert world.stats().in_flight == 2


def test_a_repeated_receive_of_which_nothing_is_held_runs_anew():
    world, client = opened(World())
    world.publish(10)
    client.ack(client.take(4, number=1), number=2, wanted=1)
    assert client.take(4, number=1).ranges == (Range(4, 8, 1),)


def test_a_refusal_is_remembered_as_any_reply():
    world, client = opened(World())
    wanted = {"queue": QUEUE, "partition": 0, "subscription": "nobody"}
    by = client.by()
    first = world.apply(commands.encode_purge(*by, **wanted))
    world.subscribe("nobody")
    again = world.apply(commands.encode_purge(*by, **wanted))
    assert isinstance(again, InvalidArgument)
    assert str(first) == str(again)


def test_a_number_means_one_command():
    world, client = opened(World())
    world.publish(1)
    delivery = client.take(number=1)
    assert isinstance(client.ack(delivery, number=1), InvalidArgument)
    assert world.stats().in_flight == 1


def test_replies_are_forgotten_when_they_are_not_wanted_and_their_numbers_refused():
    world, client = opened(World())
    world.publish(4)
    delivery = client.take(number=1)
    client.ack(delivery, (0, 1), number=2, wanted=1)
    client.ack(delivery, (1, 2), number=3, wanted=3)
    session = world.machine._state.sessions[client.session]
    assert list(session.replies) == [3]
    late = client.receive(number=2, wanted=2)
    assert isinstance(late, SessionExpired)
    assert late.outcome == "unknown"
    assert world.stats().in_flight == 2


def test_no_more_numbers_are_taken_than_replies_are_kept():
    world, client = opened(World())
    world.publish(1)
    assert isinstance(client.receive(number=SESSION_REPLIES, wanted=0), Busy)
    assert client.take(number=SESSION_REPLIES - 1, wanted=0)


def test_numbers_may_arrive_in_any_order():
    world, client = opened(World())
    world.publish(2)
    later = client.take(1, number=9, wanted=1)
    sooner = client.take(1, number=4, wanted=1)
    assert [later.ranges[0].start, sooner.ranges[0].start] == [0, 1]
    assert client.take(1, number=9, wanted=1) == later


def test_a_command_of_an_unknown_session_is_refused_never_executed():
    world, client = opened(World())
    world.publish(2)
    delivery = client.take()
    client.session += 1
    for reply in (client.ack(delivery), client.nack(delivery), client.receive()):
        assert isinstance(reply, SessionExpired)
        assert reply.outcome == "unknown"
    client.session = commands.NO_SESSION
    assert isinstance(client.ack(delivery), SessionExpired)
    assert isinstance(client.receive(), SessionExpired)
    assert world.stats().in_flight == 2


# --- Reconnects -----------------------------------------------------------------------------------


@pytest.mark.parametrize("released_first", [True, False])
def test_a_release_that_races_with_a_reconnect_takes_nothing_from_the_living(released_first):
    """A connection is reset, the client is back in 5 ms; the server's release comes when it comes."""
    world, client, other = opened(World(), 2)
    world.publish(3)
    delivery = client.take()
    old = client.attachment
    if released_first:
        assert client.release(attachment=old) == Released(3)
        assert client.attach(delivery.delivery).held == ()
        assert offsets(*client.take().ranges) == [0, 1, 2]
    else:
        client.attach(delivery.delivery)
        assert client.release(attachment=old) == Released(0)
        assert client.ack(delivery) == Settled(())
    assert other.receive() == []


def test_what_an_older_connection_left_behind_is_refused():
    world, client = opened(World())
    world.publish(3)
    delivery = client.take()
    client.attach()
    client.attachment = 0
    refused = client.ack(delivery)
    assert isinstance(refused, SessionExpired)
    assert isinstance(client.receive(), SessionExpired)
    assert isinstance(world.apply(commands.encode_attach(client.session, 0, 0)), SessionExpired)
    assert world.stats().in_flight == 3
    client.attachment = 9
    assert isinstance(client.ack(delivery), SessionExpired)


def test_a_lost_forwarder_releases_nothing_the_visibility_does():
    """A node that forwards for a hundred clients dies: nobody releases, and nothing is stuck."""
    world = World(visibility_timeout=10)
    clients = [Client(world) for _ in range(100)]
    world.publish(100)
    for client in clients:
        client.take(1)
    world.tick(9.9)
    assert world.stats().in_flight == 100
    # Half of them reconnect by another node and go on.
    for client in clients[:50]:
        held = client.attach().held
        assert client.ack(held[0]) == Settled(())
    world.tick(0.1)
    stats = world.stats()
    assert (stats.settled, stats.in_flight, stats.ready) == (50, 0, 50)


def test_a_receive_retried_after_a_release_does_not_get_what_another_consumer_has():
    world, client, other = opened(World(), 2)
    world.publish(4)
    client.take(3, number=7)
    client.release()
    theirs = other.take(2)
    again = client.take(3, number=7)
    assert offsets(*theirs.ranges) == [0, 1]
    assert offsets(*again.ranges) == [2, 3]


def test_a_command_of_an_expired_session_is_refused_never_executed():
    world, client = opened(World(visibility_timeout=10))
    world.publish(4)
    delivery = client.take(number=9)
    client.nack(delivery, number=10)
    world.tick(SESSION_EXPIRES_MICROS / SECOND)
    assert not world.machine.session_exists(client.session)
    refused = client.receive(number=9)
    assert isinstance(refused, SessionExpired)
    assert refused.outcome == "unknown"
    assert isinstance(world.apply(commands.encode_attach(client.session, 1, 0)), SessionExpired)
    assert world.stats().ready == 4


def test_deliveries_lost_with_a_leader_are_sent_again():
    """Bytes never left the old leader: the client names the last delivery it saw."""
    world, client = opened(World())
    world.publish(9)
    seen, lost, partly = client.take(3), client.take(3), client.take(3)
    client.ack(partly, (7, 8))
    world.change_leader(SECOND)
    reply = client.attach(seen.delivery)
    assert reply == Attached(
        client.session, 1, (lost, partly._replace(ranges=(Range(6, 7, 1), Range(8, 9, 1))))
    )
    assert client.ack(lost) == Settled(())
    assert client.attach(partly.delivery).held == ()


def test_an_attach_may_be_repeated():
    world, client = opened(World())
    world.publish(1)
    delivery = client.take()
    client.attach()
    header = commands.encode_attach(client.session, 1, 0)
    assert world.apply(header) == world.apply(header) == Attached(client.session, 1, (delivery,))


# --- Releases -------------------------------------------------------------------------------------


def test_a_release_without_goodbye_counts_against_the_oldest_message_of_each_delivery_only():
    world, client = opened(World(delivery_limit=3))
    world.publish(1_000)
    first, second = client.take(500), client.take(500)
    client.ack(first, (0, 10))
    assert client.release() == Released(990)
    spans = sorted(world.machine._state.partitions[QUEUE, 0].subscriptions[DEFAULT].waiting)
    failed = [(span.start, span.stop) for span in spans if span.failures]
    assert failed == [(10, 11), (second.ranges[0].start, second.ranges[0].start + 1)]
    assert {span.delivery_count for span in spans} == {1}


def test_a_poison_message_that_kills_its_consumer_dies_and_takes_no_innocent_along():
    """Prefetch is a hundred; each consumer dies on offset 40 and says nothing."""
    world = World(delivery_limit=3)
    world.publish(100)
    handled = []
    for _ in range(50):
        client = Client(world)
        found = client.receive(100)
        if not found:
            break
        for offset in offsets(*found[0].ranges):
            if offset == 40:
                client.release()
                break
            client.ack(found[0], (offset, offset + 1))
            handled.append(offset)
    assert handled == [offset for offset in range(100) if offset != 40]
    (letter,) = world.dead()
    assert (letter.offset, letter.reason, letter.delivery_count) == (40, "delivery_limit", 3)
    assert "goodbye" in letter.error
    assert [attempt.outcome for attempt in letter.history] == ["released"] * 3


def test_a_release_with_goodbye_counts_for_none_and_ends_the_session():
    world, client = opened(World(delivery_limit=1))
    world.publish(10)
    delivery = client.take()
    assert client.release(goodbye=True) == Released(10)
    assert world.stats().dead == 0
    assert world.stats().ready == 10
    assert not world.machine.session_exists(client.session)
    assert isinstance(client.ack(delivery), SessionExpired)
    assert client.release(goodbye=True) == Released(0)


def test_a_session_released_without_goodbye_goes_on_when_its_client_is_back():
    world, client = opened(World())
    world.publish(2)
    client.take()
    client.release()
    client.attach()
    assert client.ack(client.take()) == Settled(())


# --- Their end ------------------------------------------------------------------------------------


def test_an_idle_session_expires_and_one_in_use_does_not():
    world, idle, used = opened(World(), 2)
    hour = SESSION_EXPIRES_MICROS / SECOND
    world.tick(hour - 1)
    used.receive()
    world.tick(1)
    assert not world.machine.session_exists(idle.session)
    assert world.machine.session_exists(used.session)
    world.tick(hour - 1)
    assert not world.machine.session_exists(used.session)
    assert world.machine.next_deadline() is None


def test_a_session_that_holds_something_does_not_expire_its_deliveries_do():
    world, client = opened(World(visibility_timeout=2 * 3_600))
    world.publish(1)
    client.take()
    world.tick(SESSION_EXPIRES_MICROS / SECOND)
    assert world.machine.session_exists(client.session)
    world.tick(SESSION_EXPIRES_MICROS / SECOND)
    assert world.stats().in_flight == 0
    world.tick(SESSION_EXPIRES_MICROS / SECOND)
    assert not world.machine.session_exists(client.session)


def test_there_are_not_more_sessions_than_the_bound(monkeypatch):
    monkeypatch.setattr("raftq.queue.session_commands.MAX_SESSIONS", 2)
    world, *_ = opened(World(), 2)
    assert isinstance(world.apply(commands.encode_open_session()), Busy)


def test_several_commands_of_one_entry_open_different_sessions():
    world = World()
    opening = commands.encode_open_session()
    meta = world.log[-1][0]._replace(index=50)
    replies = [world.machine.apply(meta._replace(position=at), opening, b"").reply for at in (0, 1)]
    assert isinstance(replies[0], SessionOpened)
    assert replies[0] != replies[1]
