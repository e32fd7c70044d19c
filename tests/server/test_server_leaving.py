"""Between two leaders: requests that wait for the next one, a planned stop, a full disk."""

import pytest
from server_world import NAMES, World, read_bodies

from raftq.limits import DISK_RESERVE_BYTES, MIB
from raftq.server import vacancies
from raftq.server.leaving import FAREWELL_SECONDS
from raftq.wire.errors import NotLeader, decode_error
from raftq.wire.frames import FrameKind


@pytest.fixture
def world():
    with World() as world:
        yield world


def begun(world):
    """A queue with one partition; its group, its leader and the other nodes."""
    queue = world.connect("n1").create("q", partitions=1)
    group = queue["partitions"][0]["group"]
    leader = world.leader(group)
    world.connect(leader).publish(queue, [b"first"])
    world.run(0.3)
    return queue, group, leader, [name for name in NAMES if name != leader]


def test_requests_wait_for_the_next_leader_and_go_on_in_order(world):
    queue, group, leader, (front, _) = begun(world)
    client = world.connect(front)
    world.kill(leader)
    world.until(
        lambda: world.group(front, group).raft.leader == 0 or not linked(world, front, leader)
    )
    heard = [client.ask_publish(queue, [b"%d" % number]) for number in range(5)]
    world.run(0.001)
    assert world.nodes[front].router.vacancies.has(group)
    assert not any(heard)
    world.until(lambda: all(heard), vacancies.WAIT_SECONDS)
    assert [kind for ((kind, _),) in heard] == [FrameKind.PUBLISHED] * 5
    kept = read_bodies(world.connect(world.leader(group)).read(queue))
    assert kept == [b"first", b"0", b"1", b"2", b"3", b"4"]
    assert not world.nodes[front].router.vacancies.has(group)


def linked(world, one, other):
    return world.nodes[one].host.links.link(other).is_up


def leaderless(world, group, front):
    """Votes do not arrive any more, and the front has given its leader up."""
    replica = world.group(front, group)
    replica.raft.may_vote = False
    world.machines[front].process.call(replica.raft.become_follower, replica.raft.term + 5, 0)
    assert replica.leader_node is None
    return replica


def test_who_waited_in_vain_is_told_so(world):
    queue, group, leader, (front, third) = begun(world)
    client = world.connect(front)
    leaderless(world, group, front)
    for name in (leader, third):
        # They do not lead this group: their replicas are gone, their nodes are not.
        world.machines[name].process.call(world.nodes[name].host.remove_group, group)
    asked_at = world.loop.now
    heard = client.ask_publish(queue, [b"x"])
    with pytest.raises(NotLeader) as caught:
        client.reply(heard, seconds=1)
    assert caught.value.leader is None
    assert abs(world.loop.now - asked_at - vacancies.WAIT_SECONDS * 1e6) < 20_000
    assert world.nodes[front].router.vacancies._bytes == 0


def test_a_client_that_leaves_waits_no_longer(world):
    queue, group, _, (front, _) = begun(world)
    client = world.connect(front)
    leaderless(world, group, front)
    client.ask_publish(queue, [b"x"])
    world.run(0.001)
    waiting = world.nodes[front].router.vacancies
    assert waiting.has(group)
    client.transport.abort()
    world.run(0.001)
    assert not waiting.has(group)
    assert waiting._bytes == 0


def test_what_waits_is_bounded(world, monkeypatch):
    monkeypatch.setattr(vacancies, "WAITING_BYTES_MAX", 1_000)
    queue, group, _, (front, _) = begun(world)
    client = world.connect(front)
    leaderless(world, group, front)
    heard = [client.ask_publish(queue, [bytes(300)]) for _ in range(4)]
    world.run(0.002)
    assert [bool(each) for each in heard] == [False, False, True, True]
    with pytest.raises(NotLeader):
        client.reply(heard[-1])


def test_nobody_waits_where_no_majority_is_seen(world):
    queue, *_, (front, _) = begun(world)
    client = world.connect(front)
    world.isolate(front)
    world.run(0.7)
    asked_at = world.loop.now
    with pytest.raises(NotLeader):
        client.publish(queue, [b"x"])
    assert world.loop.now - asked_at < 20_000


def stopping(world, name):
    node = world.nodes.pop(name)
    return node, world.machines[name].process.spawn(node.stop())


def test_a_stopping_node_says_where_to_go_and_closes_when_nothing_is_under_way(world):
    queue, group, leader, others = begun(world)
    client, idle = world.connect(leader), world.connect(leader)
    node, task = stopping(world, leader)
    heir = world.leader(group, among=others)
    asked_at = world.loop.now
    with pytest.raises(NotLeader) as caught:
        client.publish(queue, [b"x"])
    assert caught.value.leader == heir
    assert world.loop.now - asked_at < 5_000
    assert client.ping(), "it goes on to answer what it can"
    assert not node.stopped
    world.until(task.done, FAREWELL_SECONDS + 0.1)
    task.result()
    world.until(lambda: client.lost and idle.lost, 0.1)
    world.connect(heir).publish(queue, [b"x"])


def test_who_was_refused_by_a_leader_that_hands_over_hears_to_whom(world):
    """What is not proposed any more is for the successor, who is not elected yet."""
    queue, group, leader, others = begun(world)
    client = world.connect(leader)
    for name in others:
        world.machines[name].disk.stall(30_000)
    _, task = stopping(world, leader)
    heard = [client.ask_publish(queue, [b"%d" % number]) for number in range(3)]
    world.until(lambda: all(heard), 1)
    assert not any(world.group(name, group).leading for name in others)
    errors = [decode_error(body) for ((_, body),) in heard]
    assert {type(error) for error in errors} == {NotLeader}
    (heir,) = {error.leader for error in errors}
    assert world.leader(group, among=others) == heir
    world.until(task.done, 2)


def test_a_planned_stop_of_one_that_leads_nothing_is_quick(world):
    *_, (front, _) = begun(world)
    for group, replica in world.nodes[front].host.groups.items():
        if replica.leading:
            other = next(name for name in NAMES if name != front)
            world.machines[front].process.call(replica.transfer, other)
            world.leader(group, among=[other])
    world.run(0.1)
    begun_at = world.loop.now
    _, task = stopping(world, front)
    world.until(task.done, 1)
    assert world.loop.now - begun_at < FAREWELL_SECONDS * 1e6 + 10_000


def test_what_a_session_holds_outlives_the_stop_of_its_node(world):
    """Its client attaches elsewhere; a release that came first would hand out what it works on."""
    queue, group, leader, others = begun(world)
    client = world.connect(leader)
    session = client.open_session(group)
    held = client.receive(session, queue)
    assert held.deliveries
    _, task = stopping(world, leader)
    world.until(task.done, 1)
    heir = world.connect(world.leader(group, among=others))
    world.run(3)
    found = heir.control(do="describe_queue", name="q")["partitions"][0]
    assert found["subscriptions"]["default"]["in_flight"] == 1
    heir.control(
        do="attach", group=group, session=session.id, attachment=session.attachment + 1, last_seen=0
    )
    session.attachment += 1
    assert heir.settle(session, queue, held) == ()


def fill(world, name, *, left):
    disk = world.machines[name].disk
    disk.capacity_bytes = disk.used_bytes + left


def test_a_leader_with_a_full_disk_hands_over_to_one_that_has_room(world):
    queue, group, leader, (scarce, roomy) = begun(world)
    fill(world, leader, left=DISK_RESERVE_BYTES - MIB)
    fill(world, scarce, left=DISK_RESERVE_BYTES + MIB)
    world.leader(group, among=[roomy])
    world.run(3)
    assert world.group(roomy, group).leading
    world.connect(roomy).publish(queue, [b"there is room here"])


def test_a_leader_with_a_full_disk_stays_where_nobody_has_room(world):
    _, group, leader, others = begun(world)
    for name in others:
        fill(world, name, left=DISK_RESERVE_BYTES + MIB)
    fill(world, leader, left=DISK_RESERVE_BYTES - MIB)
    term = world.group(leader, group).raft.term
    world.run(5)
    assert world.group(leader, group).log.is_full
    assert world.group(leader, group).leading
    assert world.group(leader, group).raft.term == term
