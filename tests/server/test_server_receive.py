"""Waiting receives, sessions, and what goes back when a client goes."""

import pytest
from server_world import World, bodies_of, receive_request

from raftq.errors import InvalidArgument, SessionExpired
from raftq.wire import requests
from raftq.wire.connection import GOODBYE
from raftq.wire.errors import NotLeader
from raftq.wire.frames import FrameKind, encode_frame

LONG = 20_000_000


@pytest.fixture
def world():
    with World() as world:
        world.client = world.connect("n1")
        world.queue = world.client.create("q", partitions=1)
        world.number = world.queue["partitions"][0]["group"]
        world.chief = world.leader(world.number)
        world.others = [name for name in world.names if name != world.chief]
        world.client = world.connect(world.chief)
        yield world
        assert world.failures == []


def in_flight(world):
    found = world.connect().control(do="describe_queue", name="q")["partitions"][0]
    return found["subscriptions"]["default"]["in_flight"]


def consumer(world, name=None):
    client = world.connect(name or world.chief)
    return client, client.open_session(world.number)


def watches(world):
    found = [
        watch
        for node in world.nodes.values()
        for queue in node.receiving._watches.values()
        for watch in queue
    ]
    return len(found)


def test_a_waiting_receive_gets_what_is_published_next(world):
    client, session = consumer(world)
    heard = client.ask_receive(session, world.queue, wait_us=LONG)
    world.run(1)
    assert heard == []
    assert watches(world) == 1
    world.client.publish(world.queue, [b"x"])
    assert bodies_of(client.delivered(heard)) == [b"x"]
    assert watches(world) == 0


def test_a_waiting_receive_ends_empty_in_time(world):
    client, session = consumer(world)
    begun = world.loop.now
    delivered = client.receive(session, world.queue, wait_us=2_000_000)
    assert delivered == requests.Delivered((), ())
    assert 1.9 < (world.loop.now - begun) / 1_000_000 < 2.2


def test_one_without_patience_ends_at_once(world):
    client, session = consumer(world)
    begun = world.loop.now
    assert client.receive(session, world.queue).deliveries == ()
    assert world.loop.now - begun < 100_000


def test_who_waits_longest_is_served_first(world):
    waiting = []
    for _ in range(4):
        client, session = consumer(world)
        asked = client.ask_receive(session, world.queue, wait_us=LONG, max_messages=1)
        waiting.append((client, asked))
        world.run(0.01)
    for number, (client, heard) in enumerate(waiting):
        world.client.publish(world.queue, [b"%d" % number])
        assert bodies_of(client.delivered(heard)) == [b"%d" % number]
        assert all(not later for _, later in waiting[number + 1 :])


def test_many_takers_share_what_there_is_once(world):
    waiting = []
    for _ in range(10):
        client, session = consumer(world)
        asked = client.ask_receive(session, world.queue, wait_us=LONG, max_messages=3)
        waiting.append((client, asked))
    world.run(0.1)
    world.client.publish(world.queue, [b"%d" % number for number in range(20)])
    world.run(0.5)
    got = [
        body for client, heard in waiting if heard for body in bodies_of(client.delivered(heard))
    ]
    assert sorted(got, key=int) == [b"%d" % number for number in range(20)]
    assert watches(world) == sum(not heard for _, heard in waiting)


def test_a_notifying_watch_takes_nothing(world):
    client = world.connect(world.chief)
    session = client.open_session(world.number)
    heard = client.ask_receive(session, world.queue, wait_us=LONG, notify_only=True)
    world.run(0.2)
    world.client.publish(world.queue, [b"x"])
    assert client.delivered(heard) == FrameKind.READY
    assert in_flight(world) == 0
    at_once = client.ask_receive(session, world.queue, wait_us=LONG, notify_only=True)
    assert client.delivered(at_once) == FrameKind.READY


def test_a_woken_watch_that_does_not_take_wakes_the_next(world):
    first, session = consumer(world)
    told = first.ask_receive(session, world.queue, wait_us=LONG, notify_only=True)
    world.run(0.01)
    second, other = consumer(world)
    heard = second.ask_receive(other, world.queue, wait_us=LONG)
    world.run(0.01)
    world.client.publish(world.queue, [b"x"])
    assert first.delivered(told) == FrameKind.READY
    assert bodies_of(second.delivered(heard, seconds=1)) == [b"x"]


def test_waiting_costs_nothing_while_nothing_is_ready(world):
    client, session = consumer(world)
    client.ask_receive(session, world.queue, wait_us=LONG)
    second, other = consumer(world)
    second.ask_receive(other, world.queue, wait_us=LONG)
    world.client.publish(world.queue, [b"x"])
    world.run(1)
    assert watches(world) == 1
    node = world.nodes[world.chief]
    assert node.receiving._looking == {}, "nobody looks again before something is ready"


@pytest.mark.parametrize("where", ["leader", "another"])
def test_a_cancelled_receive_is_answered_empty_at_once(world, where):
    client, session = consumer(world, world.chief if where == "leader" else world.others[0])
    heard = client.ask_receive(session, world.queue, wait_us=LONG)
    world.run(0.5)
    client.transport.writelines(encode_frame(FrameKind.CANCEL, heard.stream))
    assert client.delivered(heard, seconds=1) == requests.Delivered((), ())
    assert watches(world) == 0


def test_a_cancel_is_not_lost_while_a_delivery_is_decided(world):
    """Two takers for one message: who goes empty must not wait on after the cancel."""
    takers = [consumer(world) for _ in range(2)]
    world.client.publish(world.queue, [b"x"])
    asked = [
        client.ask_receive(session, world.queue, wait_us=LONG, max_messages=1)
        for client, session in takers
    ]
    for (client, _), heard in zip(takers, asked, strict=True):
        client.transport.writelines(encode_frame(FrameKind.CANCEL, heard.stream))
    got = [
        bodies_of(client.delivered(heard, seconds=2))
        for (client, _), heard in zip(takers, asked, strict=True)
    ]
    assert sorted(got) == [[], [b"x"]]
    assert watches(world) == 0


@pytest.mark.parametrize("where", ["leader", "another"])
def test_a_client_that_goes_while_it_waits_leaves_no_watch(world, where):
    client, session = consumer(world, world.chief if where == "leader" else world.others[0])
    client.ask_receive(session, world.queue, wait_us=LONG)
    world.run(0.5)
    assert watches(world) == 1
    client.transport.abort()
    world.run(0.1)
    assert watches(world) == 0


def test_a_goodbye_gives_back_at_once(world):
    client, session = consumer(world)
    world.client.publish(world.queue, [b"x"])
    delivered = client.receive(session, world.queue)
    assert bodies_of(delivered) == [b"x"]
    client.transport.write(GOODBYE)
    second, other = consumer(world)
    again = second.receive(other, world.queue, wait_us=400_000)
    assert bodies_of(again) == [b"x"]


@pytest.mark.parametrize("where", ["leader", "another"])
def test_a_broken_connection_gives_back_after_a_second(world, where):
    client, session = consumer(world, world.chief if where == "leader" else world.others[0])
    world.client.publish(world.queue, [b"x"])
    client.receive(session, world.queue)
    client.transport.abort()
    world.run(0.8)
    assert in_flight(world) == 1
    world.run(0.5)
    assert in_flight(world) == 0


def attach(client, session, *, last_seen=0):
    session.attachment += 1
    reply = client.control(
        do="attach",
        group=session.group,
        session=session.id,
        attachment=session.attachment,
        last_seen=last_seen,
    )
    assert reply["attachment"] == session.attachment
    return reply["held"]


def test_who_attaches_anew_in_time_keeps_what_it_holds(world):
    client, session = consumer(world)
    world.client.publish(world.queue, [b"x"])
    delivered = client.receive(session, world.queue)
    client.transport.abort()
    world.run(0.3)
    again = world.connect(world.others[0])
    held = attach(again, session, last_seen=delivered.deliveries[0].delivery)
    assert held == []
    world.run(3)
    assert in_flight(world) == 1
    assert again.settle(session, world.queue, delivered) == ()


def test_a_delivery_that_was_lost_on_its_way_is_told_to_who_attaches(world):
    client, session = consumer(world)
    world.client.publish(world.queue, [b"x"])
    client.receive(session, world.queue)
    client.transport.abort()
    again = world.connect(world.others[1])
    (held,) = attach(again, session, last_seen=0)
    assert held["ranges"] == [[0, 1, 1]]


def test_an_older_attachment_is_refused(world):
    client, session = consumer(world)
    other = world.connect(world.chief)
    attach(other, session)
    session.attachment -= 1
    world.client.publish(world.queue, [b"x"])
    with pytest.raises(SessionExpired, match="took it over"):
        client.receive(session, world.queue)


def test_a_repeated_receive_and_a_repeated_ack_are_the_same_ones(world):
    client, session = consumer(world)
    world.client.publish(world.queue, [b"a", b"b"])
    wanted = receive_request(session, world.queue)
    first = client.receive(session, world.queue, max_messages=1)
    again = client.receive(session, world.queue, max_messages=1, number=wanted.number)
    assert again.deliveries == first.deliveries
    assert bodies_of(again) == [b"a"]
    number = session.number
    assert client.settle(session, world.queue, first) == ()
    assert client.settle(session, world.queue, first, number=number) == ()
    (stale,) = client.settle(session, world.queue, first)
    assert (stale.start, stale.stop) == (0, 1)


def test_a_delivery_that_expired_is_stale_and_comes_again(world):
    client, session = consumer(world)
    world.client.publish(world.queue, [b"x"])
    first = client.receive(session, world.queue, visibility_us=500_000)
    world.run(1)
    second = client.receive(session, world.queue)
    assert second.deliveries[0].ranges[0].delivery_count == 2
    (stale,) = client.settle(session, world.queue, first)
    assert (stale.start, stale.stop) == (0, 1)
    assert client.settle(session, world.queue, second) == ()


@pytest.mark.parametrize(
    "changes",
    [{"max_messages": 0}, {"max_messages": 1 << 30}, {"max_bytes": 0}, {"wait_us": 1 << 60},
     {"visibility_us": 1 << 60}],
    ids=str,
)  # fmt: skip
def test_a_receive_out_of_range_is_named(world, changes):
    client, session = consumer(world)
    with pytest.raises(InvalidArgument):
        client.receive(session, world.queue, **changes)


def test_watches_and_takers_hear_when_their_leader_is_deposed(world):
    client, session = consumer(world)
    watch = client.ask_receive(session, world.queue, wait_us=LONG)
    world.run(0.1)
    world.fabric.partition([world.chief], world.others)
    with pytest.raises(NotLeader):
        client.delivered(watch, seconds=3)


def test_a_taker_is_answered_although_leadership_ends_before_its_delivery(world):
    """What was to be proposed at the end of this pass finds no leader any more."""
    client, session = consumer(world)
    world.client.publish(world.queue, [b"x"])
    node = world.nodes[world.chief]
    group = node.host.groups[world.number]
    taken = []
    original = node.receiving._take

    def take_and_lose(at, watch):
        original(at, watch)
        taken.append(watch)
        group.quarantine("a test")

    node.receiving._take = take_and_lose
    heard = client.ask_receive(session, world.queue, wait_us=LONG)
    with pytest.raises(Exception, match="leader"):
        client.delivered(heard, seconds=3)
    assert taken


def test_few_messages_of_many_batches_are_cut_out_of_them(world, monkeypatch):
    """Goal: an answer is bounded by its messages, also where whole batches would not fit a frame.

    Method: of each of 20 batches all but one message are settled, and that one is given back; then
    everything is asked for at once, with room for two of the batches.
    """
    monkeypatch.setattr("raftq.server.receive._WHOLE_BYTES_MAX", 10_000)
    client, session = consumer(world)
    sent = []
    for number in range(20):
        bodies = [b"%d-%d" % (number, each) + bytes(400) for each in range(10)]
        sent.append(bodies)
        client.publish(world.queue, bodies)
    every = client.receive(session, world.queue, max_messages=1_000)
    (delivery,) = every.deliveries
    assert sum(each.stop - each.start for each in delivery.ranges) == 200

    def part(chosen):
        """The same delivery with only these positions of each batch."""
        ranges = tuple(
            requests.Range(10 * number + start, 10 * number + stop, 1)
            for number in range(20)
            for start, stop in chosen
        )
        return every._replace(deliveries=(delivery._replace(ranges=ranges),))

    assert client.settle(session, world.queue, part([(0, 3), (4, 10)])) == ()
    assert client.settle(session, world.queue, part([(3, 4)]), requests.NACK) == ()
    again = client.receive(session, world.queue, max_messages=1_000)
    assert bodies_of(again) == [bodies[3] for bodies in sent]
    assert sum(len(each.data) for each in again.batches) < 20 * 1_000


def test_one_receive_that_makes_no_sense_spoils_nobody_elses(world):
    client, session = consumer(world)
    other, others = consumer(world)
    waiting = other.ask_receive(others, world.queue, wait_us=LONG)
    with pytest.raises(InvalidArgument):
        client.receive(session, world.queue, wanted=99)
    world.client.publish(world.queue, [b"x"])
    assert bodies_of(other.delivered(waiting)) == [b"x"]


def test_a_new_subscription_is_made_by_who_receives_from_it_first(world):
    world.client.publish(world.queue, [b"before"])
    client, session = consumer(world)
    first = client.receive(session, world.queue, subscription="billing", max_messages=10)
    assert bodies_of(first) == [b"before"]
    watch = client.ask_receive(
        session, world.queue, subscription="audit", notify_only=True, wait_us=LONG
    )
    world.run(0.1)
    assert watch[0][0] == FrameKind.READY
    again = client.receive(session, world.queue, max_messages=10)
    assert bodies_of(again) == [b"before"], "the default subscription has its own cursor"
