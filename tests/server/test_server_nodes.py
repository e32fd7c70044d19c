"""Nodes that die, lose what they had, come back, or are not who they were."""

import contextlib
import random

import pytest
from server_world import NAMES, World, bodies_of, read_bodies

from raftq.errors import (
    Busy,
    ClusterMismatch,
    ConnectionFailed,
    InvalidArgument,
    ProtocolError,
    QueueNotFound,
    RaftqError,
)
from raftq.host import Member
from raftq.metadata import ReplicaWork
from raftq.server import Address, Node, NodeConfig
from raftq.wire import requests
from raftq.wire.errors import NotLeader, decode_error
from raftq.wire.frames import FrameKind


@pytest.fixture
def world():
    with World() as world:
        yield world


def begun(world, partitions=3):
    client = world.connect("n1")
    queue = client.create("q", partitions=partitions)
    for partition in range(partitions):
        client.publish(queue, [b"%d" % partition] * 5, partition=partition)
    return queue


def publish_somewhere(world, queue, partition=0):
    """Publish at whatever node serves it now, as a client would."""
    for _ in range(100):
        for name in world.nodes:
            with contextlib.suppress(RaftqError, NotLeader):
                return world.connect(name).publish(queue, [b"more"], partition=partition)
        world.run(0.1)
    raise AssertionError("nobody serves the partition")


@pytest.mark.parametrize("victim", NAMES)
def test_a_killed_node_comes_back_and_catches_up(world, victim):
    queue = begun(world)
    world.kill(victim)
    for partition in range(3):
        publish_somewhere(world, queue, partition)
    world.start(victim)
    world.until(lambda: all(world.digests_agree(group) for group in range(4)))
    client = world.connect(victim)
    for partition in range(3):
        world.run(0.5)
        assert len(read_bodies(client.read(queue, partition=partition))) >= 6


def test_all_nodes_lose_power_and_everything_is_there(world):
    queue = begun(world)
    session = world.connect("n1").open_session(queue["partitions"][0]["group"])
    for name in NAMES:
        world.machines[name].power_loss()
        del world.nodes[name]
    world.run(1)
    world.start()
    client = world.connect("n2")
    for partition in range(3):
        world.leader(queue["partitions"][partition]["group"])
        world.run(0.3)
        assert read_bodies(client.read(queue, partition=partition)) == [b"%d" % partition] * 5
    delivered = client.receive(session, queue)
    assert len(bodies_of(delivered)) >= 5, "the session survived too"


def votes_of(world, name):
    """Groups in which this node has any say."""
    return sorted(world.nodes[name].host.groups)


@pytest.mark.parametrize("victim", NAMES)
def test_a_wiped_node_is_refused_says_why_and_never_votes(world, victim):
    queue = begun(world)
    world.kill(victim)
    world.wipe(victim)
    world.start(victim)
    world.run(5)
    assert votes_of(world, victim) == []
    node = world.nodes[victim]
    assert node.host.identity.state == "empty"
    status = world.connect(victim).try_control(do="status")
    assert status["state"] == "empty"
    assert "wiped or replaced" in status["problem"]
    client = world.connect(victim)
    with pytest.raises(Busy):
        client.try_control(do="metadata")
    world.until(lambda: client.lost, 1)
    # One more lost: what is left is no majority, whatever the wiped one would like to say.
    other = next(name for name in NAMES if name != victim)
    world.kill(other)
    last = next(name for name in NAMES if name not in {victim, other})
    world.run(3)
    assert votes_of(world, victim) == []
    assert not any(group.leading for group in world.nodes[last].host.groups.values())
    world.start(other)
    publish_somewhere(world, queue)


def test_a_wiped_node_refuses_to_be_a_coordinator_again(world, caplog):
    begun(world)
    world.kill("n1")
    world.wipe("n1")
    world.start("n1")
    world.run(5)
    assert world.nodes["n1"].host.identity.cluster == 0
    assert "wiped or replaced" in caplog.text


@pytest.mark.parametrize("group", [1, 2, 3])
def test_a_lost_group_directory_never_votes(world, group):
    """Without the leader of group 0 nobody can give it a new replica: it has none."""
    queue = begun(world)
    victim = "n3"
    world.kill(victim)
    world.wipe(victim, below=f"group-{group}/")
    world.kill("n2")
    world.start(victim)
    for each in (1, 2, 3):
        machine = world.nodes["n1"].metadata.machine
        assert [r.state for r in machine.group(each).replicas] == ["created"] * 3
    world.fabric.partition([victim], ["n1"])
    world.run(3)
    assert votes_of(world, victim) == sorted({0, 1, 2, 3} - {group})
    status = world.connect(victim).try_control(do="status")
    assert status["lost"] == [group]
    assert not world.group("n1", group).leading
    world.fabric.heal()
    world.run(1)
    assert not world.group("n1", group).leading, "two of three, and one of them lost its memory"
    world.start("n2")
    for partition in range(3):
        publish_somewhere(world, queue, partition)


def test_the_lost_directory_of_group_0_stops_the_node_with_a_reason(world):
    begun(world)
    world.kill("n3")
    world.wipe("n3", below="group-0/")
    process, environment = world.machines["n3"].start()
    config = NodeConfig("n3", Address("n3", 70), tuple(Member(each, each, 7) for each in NAMES))
    task = process.spawn(world._run("n3", environment, config))
    world.until(task.done)
    with pytest.raises(ClusterMismatch, match="group-0"):
        task.result()


def test_the_directory_of_another_node_is_refused_and_given_back(world):
    begun(world)
    world.kill("n3")
    process, environment = world.machines["n3"].start()
    members = tuple(Member(each, each, 7) for each in NAMES)

    async def make(name):
        return Node(environment, NodeConfig(name, Address(name, 70), members))

    task = process.spawn(make("n2"))
    world.until(task.done)
    with pytest.raises(ClusterMismatch, match="belongs to node 'n3'"):
        task.result()
    again = process.spawn(make("n3"))
    world.until(again.done)
    assert again.result().identity.name == "n3", "the directory was unlocked"


def test_two_nodes_on_one_directory_are_one_too_many(world):
    environment = world.nodes["n1"].environment
    config = world.nodes["n1"].config

    async def make():
        return Node(environment, config)

    task = world.machines["n1"].process.spawn(make())
    world.until(task.done)
    with pytest.raises(InvalidArgument, match="in use"):
        task.result()
    assert world.connect("n1").ping()


def test_a_failed_disk_stops_the_node_and_the_others_go_on(world):
    queue = begun(world)
    leader = world.leader(queue["partitions"][0]["group"])
    world.machines[leader].disk.fail_syncs(-1)
    node = world.nodes[leader]
    client = world.connect(leader)
    heard = client.ask_publish(queue, [b"x"])
    world.until(lambda: client.lost and world.failures)
    assert node.stopped
    assert node.failure is world.failures[0]
    assert not heard or heard[0][0] == FrameKind.ERROR
    world.run(2)
    assert len(world.failures) == 1
    assert node.port.connections == {}
    del world.nodes[leader]
    publish_somewhere(world, queue)


def test_a_node_that_stops_hands_over_and_answers_everybody(world):
    queue = begun(world, partitions=1)
    group = queue["partitions"][0]["group"]
    leader = world.leader(group)
    client = world.connect(leader)
    heard = [client.ask_publish(queue, [b"before"]) for _ in range(10)]
    world.run(0.1)
    node = world.nodes.pop(leader)
    begun_at = world.loop.now
    task = world.machines[leader].process.spawn(node.stop())
    while not task.done():
        if not client.lost:
            heard.append(client.ask_publish(queue, [b"during"]))
        world.run(0.002)
    task.result()
    assert world.loop.now - begun_at < 600_000
    world.leader(group)
    assert world.loop.now - begun_at < 700_000
    acked = [each for each in heard if each and each[0][0] == FrameKind.PUBLISHED]
    assert len(acked) >= 10
    world.run(0.3)
    kept = read_bodies(world.connect(next(iter(world.nodes))).read(queue))
    assert len(kept) >= 5 + len(acked)


def test_stopping_while_cut_off_is_a_stop_all_the_same(world):
    queue = begun(world, partitions=1)
    leader = world.leader(queue["partitions"][0]["group"])
    world.isolate(leader)
    node = world.nodes.pop(leader)
    task = world.machines[leader].process.spawn(node.stop())
    world.until(task.done, 2)
    task.result()


def test_an_answer_to_a_dead_process_never_reaches_its_successor(world):
    """n1 forwards a publish, dies and is back before it is decided: the numbers begin anew."""
    queue = begun(world, partitions=3)
    partition = next(
        row["partition"] for row in queue["partitions"] if world.leader(row["group"]) != "n1"
    )
    group = queue["partitions"][partition]["group"]
    leader = world.leader(group)
    third = next(name for name in NAMES if name not in {"n1", leader})
    # Without the third and without n1 nothing commits.
    world.fabric.partition([third], [leader, "n1"])
    world.run(0.05)
    front = world.connect("n1")
    link = world.nodes["n1"].host.links.link(leader)
    number = link._next_stream
    world.machines["n1"].disk.stall(1_000_000, times=100)
    heard = front.ask_publish(queue, [b"first"], partition=partition)
    world.until(lambda: world.nodes[leader].router._forwarded)
    world.run(0.01)
    assert heard == []
    world.kill("n1")
    world.machines["n1"].disk._stalls.clear()
    world.start("n1")
    world.until(lambda: leader in world.nodes["n1"].host.links.up())
    node = world.nodes["n1"]
    answers = []
    process = world.machines["n1"].process
    link = node.host.links.link(leader)
    link._next_stream = number
    watch = requests.Receive(
        group, 0, 0, 0, 0, queue["id"], "default", 1, 1, 0, 1_500_000, notify_only=True
    )
    body = b"".join(requests.encode_receive(watch))
    process.call(link.request, FrameKind.RECEIVE, 1, body, lambda *each: answers.append(each))
    world.fabric.heal()
    world.run(3)
    assert [kind for kind, _ in answers] == [FrameKind.READY], "another question's answer"


def roles(world, queue):
    """A group of the queue with its leader, and another node."""
    group = queue["partitions"][0]["group"]
    leader = world.leader(group)
    return group, leader, next(name for name in NAMES if name != leader)


@pytest.mark.parametrize("way", ["both ways", "deaf", "mute"])
def test_whoever_waits_for_a_leader_that_is_cut_off_hears_within_a_second(world, way):
    """It answers what it holds, and its links break, so that others answer what they passed on."""
    queue = begun(world, partitions=1)
    group, leader, front = roles(world, queue)
    client, direct = world.connect(front), world.connect(leader)
    world.run(1)
    for other in NAMES:
        if other != leader and way != "mute":
            world.fabric.block(other, leader)
        if other != leader and way != "deaf":
            world.fabric.block(leader, other)
    passed_on, asked = client.ask_publish(queue, [b"x"]), direct.ask_publish(queue, [b"y"])
    watch = requests.Receive(
        group, 0, 0, 0, 0, queue["id"], "default", 1, 1, 0, 30_000_000, notify_only=True
    )
    waiting = client.ask(FrameKind.RECEIVE, *requests.encode_receive(watch))
    world.run(0.9)
    if way == "deaf" and passed_on:
        # It is heard, so its answer may have come back; then that was a true one.
        assert passed_on[0][0] in {FrameKind.ERROR, FrameKind.PUBLISHED}
    else:
        with pytest.raises(ConnectionFailed) as caught:
            client.reply(passed_on, seconds=0)
        assert caught.value.outcome == "unknown"
    assert asked[0][0] == FrameKind.ERROR
    assert waiting[0][0] == FrameKind.ERROR
    world.leader(group, among=[name for name in NAMES if name != leader])
    client.publish(queue, [b"z"])


def test_a_leader_that_cannot_be_reached_is_not_named(world):
    """To name it would send clients to a machine that is gone."""
    queue = begun(world, partitions=1)
    _, leader, front = roles(world, queue)
    client = world.connect(front)
    world.fabric.partition([front], [leader])
    link = world.nodes[front].host.links.link(leader)
    world.machines[front].process.call(link.close, "cut by the test")
    world.until(lambda: not link.is_up)
    with pytest.raises(NotLeader) as caught:
        client.publish(queue, [b"x"])
    assert caught.value.leader is None


@pytest.mark.parametrize("kind", [FrameKind.HELLO, FrameKind.PONG, 111])
def test_a_forwarded_frame_that_is_no_request_is_answered(world, kind):
    begun(world, partitions=1)
    answers = []
    link = world.nodes["n1"].host.links.link("n2")
    world.machines["n1"].process.call(
        link.request, kind, 1, b"x", lambda *answer: answers.append(answer)
    )
    world.until(lambda: answers)
    assert answers[0][0] == FrameKind.ERROR
    error = decode_error(answers[0][1])
    assert isinstance(error, ProtocolError)
    assert "no request" in str(error)
    assert link.is_up


def test_a_request_goes_no_further_than_two_hops(world):
    begun(world)
    client = world.connect("n1")
    for node in world.nodes.values():
        node.router.leading = lambda group: None
    wrong = {"n1": "n2", "n2": "n3", "n3": "n1"}
    for name, node in world.nodes.items():
        node.router.leader_node = lambda group, name=name: wrong[name]
    with pytest.raises(Exception, match="leader"):
        client.try_control(do="open_session", group=1)
    assert world.loop.now < 20_000_000


def test_a_single_node_is_a_cluster():
    with World("n1") as world:
        client = world.connect("n1")
        queue = client.create("q", partitions=2)
        client.publish(queue, [b"a"])
        world.kill("n1")
        world.start("n1")
        client = world.connect("n1")
        world.leader(queue["partitions"][0]["group"])
        assert read_bodies(client.read(queue)) == [b"a"]


@pytest.mark.parametrize("seed", range(6))
def test_kills_at_any_moment_of_a_beginning_are_harmless(seed):
    choose = random.Random(seed)
    with World(seed=seed, start=False) as world:
        world.start()
        for _ in range(4):
            world.run(choose.random() * 0.4)
            victim = choose.choice(list(world.nodes))
            if choose.random() < 0.5:
                world.kill(victim)
            else:
                world.machines[victim].power_loss()
                del world.nodes[victim]
            world.run(choose.random() * 0.3)
            world.start(victim)
        client = world.connect("n1")
        queue = client.create("q", partitions=3)
        assert publish_somewhere(world, queue).base_offset == 0
        assert len({node.host.identity.cluster for node in world.nodes.values()}) == 1


@pytest.mark.parametrize("lagging", [True, False], ids=["lagging", "wiped"])
def test_a_node_that_does_not_know_a_queue_says_so_only_if_it_is_certain(world, lagging):
    """Its copy of the metadata may lag; a queue that exists is never said to be missing."""
    queue = begun(world, partitions=1)
    victim = next(name for name in NAMES if name != world.leader(0))
    node = world.nodes[victim]
    if lagging:
        node.metadata._groups.clear()

        def nothing(name):
            raise QueueNotFound("not here yet")

        node.metadata.queue = nothing
    else:
        world.kill(victim)
        world.wipe(victim)
        world.start(victim)
    client = world.connect(victim)
    operations = [
        lambda: client.publish(queue, [b"x"]),
        lambda: client.read(queue),
        lambda: client.try_control(do="describe_queue", name="q"),
        lambda: client.try_control(do="metadata", queue="q"),
        lambda: client.try_control(do="purge_queue", name="q"),
    ]
    for operation in operations:
        if lagging:
            operation()
        else:
            with pytest.raises((NotLeader, Busy)):
                operation()
            client = world.connect(victim)


def test_a_replica_whose_making_was_cut_is_made_anew(world):
    """Goal: what a kill leaves of a directory is neither taken for a replica nor for a lost one."""
    begun(world)
    node = world.nodes["n1"]
    disk = node.environment.disk
    disk.make_directory("group-9")
    disk.open("group-9/segment-00000001.log.tmp", create=True).close()
    assert not node.replicas.exists(9)
    work = ReplicaWork(9, 41, {41: "n1", 42: "n2", 43: "n3"}, joins=False)
    assert node.replicas.make(work)
    assert node.replicas.exists(9)
