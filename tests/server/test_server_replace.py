"""A node that lost its data directory comes back as another one, and never as its old self."""

import contextlib
import random

import pytest
from server_world import NAMES, World, read_bodies
from test_server_nodes import begun, publish_somewhere

from raftq.errors import InvalidArgument, RaftqError
from raftq.metadata import CreateGroup, ReplicaWork, encode
from raftq.server.made import moved_aside
from raftq.server.replicas import Replicas
from raftq.sim.disk import SimulatedCrash
from raftq.wire.errors import NotLeader

GROUPS = (0, 1, 2, 3)


@pytest.fixture
def world():
    with World() as world:
        yield world


def machine_of(world, name):
    return world.nodes[name].metadata.machine


def ask(world, victim, *, through=None, seconds=20):
    """`raftq cluster replace`, asked again until it is accepted."""
    for _ in range(seconds * 10):
        for name in [through] if through else [n for n in world.nodes if n != victim]:
            try:
                return world.connect(name).try_control(do="replace_node", name=victim)
            except (RaftqError, NotLeader, AssertionError) as error:
                problem = error
        world.run(0.1)
    raise problem


def wiped(world, victim):
    """The node is killed, and comes back with an empty directory."""
    node = world.kill(victim)
    world.wipe(victim)
    world.start(victim)
    return node.host.identity


def has_changed(world, victim):
    """Whether every group has the new replica as a voter, and nobody else of that node."""
    return all(_group_has_changed(world, victim, group) for group in GROUPS)


def _group_has_changed(world, victim, group):
    leaders = [
        node
        for node in world.nodes.values()
        if group in node.host.groups and node.host.groups[group].leading
    ]
    if len(leaders) != 1:
        return False
    machine = leaders[0].metadata.machine
    raft = leaders[0].host.groups[group].raft
    known = machine.group(group)
    return (
        not known.leaving
        and raft.commit_index >= raft.status().membership_index
        and raft.membership.outgoing == raft.membership.learners == ()
        and raft.membership.voters == tuple(sorted(r.replica for r in known.replicas))
    )


def has_replaced(world, name, group, before):
    """Whether the node runs another replica of the group than these."""
    running = world.nodes[name].host.groups.get(group)
    return running is not None and running.replica not in before


def wait_until_changed(world, victim, seconds=20):
    world.until(lambda: has_changed(world, victim), seconds)


@pytest.mark.parametrize("victim", NAMES)
def test_a_wiped_node_is_replaced_catches_up_and_votes(world, victim):
    queue = begun(world)
    old = wiped(world, victim)
    for partition in range(3):
        publish_somewhere(world, queue, partition)
    assert ask(world, victim)["groups"] == list(GROUPS)
    wait_until_changed(world, victim)
    world.until(lambda: all(world.digests_agree(group) for group in GROUPS))
    node = world.nodes[victim]
    assert node.host.identity.cluster == old.cluster
    assert node.host.identity.incarnation != old.incarnation
    before = old.metadata_replicas()
    for group in GROUPS:
        known = machine_of(world, victim).group(group)
        assert node.host.groups[group].replica == known.replica_on(victim).replica
        assert node.host.groups[group].replica not in before
    # It counts now: with one of the two others gone, the group goes on.
    other = next(name for name in NAMES if name != victim)
    world.kill(other)
    for partition in range(3):
        publish_somewhere(world, queue, partition)
    kept = world.connect(victim)
    for partition in range(3):
        world.run(0.5)
        assert len(read_bodies(kept.read(queue, partition=partition))) >= 7


def test_before_it_is_replaced_it_is_listed_as_a_candidate(world):
    begun(world)
    wiped(world, "n3")
    world.run(2)
    status = world.connect("n1").try_control(do="status")
    assert [each["replacement"] for each in status["nodes"]] == [False, False, True]
    assert status["changing"] == []
    ask(world, "n3")
    status = world.connect("n1").try_control(do="status")
    assert {each["group"] for each in status["changing"]} <= set(GROUPS)
    wait_until_changed(world, "n3")
    world.run(1)
    status = world.connect("n2").try_control(do="status")
    assert [each["replacement"] for each in status["nodes"]] == [False, False, False]
    assert [each["up"] for each in status["nodes"]] == [True, True, True]
    assert status["changing"] == []


def test_a_node_that_is_up_or_that_nobody_follows_is_not_replaced(world):
    begun(world)
    leader = world.leader(0)
    client = world.connect(leader)
    for name in NAMES:
        with pytest.raises(InvalidArgument, match="is up"):
            client.try_control(do="replace_node", name=name)
        client = world.connect(leader)
    with pytest.raises(InvalidArgument, match="no member"):
        client.try_control(do="replace_node", name="n9")
    victim = next(name for name in NAMES if name != leader)
    world.kill(victim)
    world.run(1)
    with pytest.raises(InvalidArgument, match="no new data directory"):
        world.connect(leader).try_control(do="replace_node", name=victim)


def test_the_old_directory_is_refused_for_ever(world):
    queue = begun(world)
    victim = next(name for name in NAMES if name != world.leader(0))
    world.kill(victim)
    disk = world.machines[victim].disk
    kept = {path: disk.contents(path) for path in disk.paths()}
    world.wipe(victim)
    world.start(victim)
    ask(world, victim)
    wait_until_changed(world, victim)
    world.kill(victim)
    world.wipe(victim)
    restore(disk, kept)
    world.start(victim)
    world.run(3)
    for name in NAMES:
        if name != victim:
            assert victim not in world.nodes[name].host.links.up()
    assert not any(group.leading for group in world.nodes[victim].host.groups.values())
    del world.nodes[victim]
    for partition in range(3):
        publish_somewhere(world, queue, partition)


def restore(disk, kept):
    for path, content in kept.items():
        if "/" in path:
            disk.make_directory(path.rpartition("/")[0])
        file = disk.open(path, create=True)
        file.write(0, (content,))
        file.sync_now()
        file.close()
        disk.sync_directory(path.rpartition("/")[0])


def test_all_nodes_may_be_replaced_one_after_the_other(world):
    queue = begun(world)
    for victim in NAMES:
        wiped(world, victim)
        ask(world, victim)
        wait_until_changed(world, victim)
    for name in NAMES:
        world.machines[name].power_loss()
        del world.nodes[name]
    world.start()
    for partition in range(3):
        publish_somewhere(world, queue, partition)
    client = world.connect("n1")
    for partition in range(3):
        world.run(0.5)
        assert len(read_bodies(client.read(queue, partition=partition))) >= 6


def test_a_node_that_was_away_meanwhile_learns_of_it(world):
    """It has to accept the new directory's link although its own file names the old one."""
    queue = begun(world)
    wiped(world, "n3")
    ask(world, "n3")
    wait_until_changed(world, "n3")
    world.kill("n2")
    world.wipe("n2")
    world.start("n2")
    ask(world, "n2")
    wait_until_changed(world, "n2")
    world.kill("n1")
    publish_somewhere(world, queue)
    world.start("n1")
    world.until(lambda: all(world.digests_agree(group) for group in GROUPS))
    assert sorted(world.nodes["n1"].host.links.up()) == ["n2", "n3"]


@pytest.mark.parametrize("group", [1, 2, 3])
def test_a_lost_replica_comes_back_under_a_new_id(world, group):
    queue = begun(world)
    victim = "n3"
    old = world.group(victim, group).replica
    world.kill(victim)
    world.wipe(victim, below=f"group-{group}/")
    world.start(victim)
    world.until(lambda: has_replaced(world, victim, group, [old]), 20)
    wait_until_changed(world, victim)
    world.until(lambda: world.digests_agree(group))
    assert world.group(victim, group).replica > old
    assert world.connect(victim).try_control(do="status")["lost"] == []
    world.kill("n2")
    for partition in range(3):
        publish_somewhere(world, queue, partition)


def test_a_replica_that_forgot_comes_back_under_a_new_id(world):
    queue = begun(world)
    group = queue["partitions"][0]["group"]
    victim = next(name for name in NAMES if name != world.leader(group))
    replica = world.group(victim, group)
    replica.raft.may_vote = False
    replica.want_turn()
    world.run(0.2)
    assert world.machines[victim].disk.names(f"group-{group}").count("amnesiac") <= 1
    world.until(lambda: has_replaced(world, victim, group, [replica.replica]), 20)
    wait_until_changed(world, victim)
    world.until(lambda: world.digests_agree(group))
    assert world.group(victim, group).raft.may_vote
    assert world.group(victim, group).replica > replica.replica
    # What it held is still there, under a name that nothing opens, and is told.
    (aside,) = moved_aside(world.machines[victim].disk)
    assert aside.startswith(f"group-{group}.forgot-")
    assert any(name.startswith("segment-") for name in world.machines[victim].disk.names(aside))
    assert world.connect(victim).try_control(do="status")["moved_aside"] == [aside]
    world.kill(victim)
    world.start(victim)
    world.until(lambda: world.digests_agree(group))
    assert moved_aside(world.machines[victim].disk) == [aside]


def test_a_replica_that_forgot_is_kept_as_long_as_nobody_leads(world):
    """It is a copy: without a majority of the others it may be what somebody has to look into."""
    queue = begun(world)
    group = queue["partitions"][0]["group"]
    replica = world.group("n3", group)
    for name in ("n1", "n2"):
        world.kill(name)
    world.run(2)
    replica.raft.may_vote = False
    replica.want_turn()
    world.run(3)
    assert world.group("n3", group) is replica
    world.start("n1")
    world.run(3)
    assert world.group("n3", group) is replica, "the others need it, or n2: it does not vote"
    world.start("n2")
    world.until(lambda: world.nodes["n3"].host.groups.get(group) not in {None, replica}, 20)
    wait_until_changed(world, "n3")


@pytest.mark.parametrize("seed", range(8))
def test_kills_at_any_moment_of_a_replacement_are_harmless(seed):
    """Whoever dies, the leader of group 0, a group's, or the new node: it goes on when it is back."""
    choose = random.Random(seed)
    with World(seed=seed + 100) as world:
        queue = begun(world)
        victim = choose.choice(NAMES)
        wiped(world, victim)
        ask(world, victim)
        for _ in range(4):
            world.run(choose.random() * 0.5)
            name = choose.choice(list(world.nodes))
            if choose.random() < 0.5:
                world.kill(name)
            else:
                world.machines[name].power_loss()
                del world.nodes[name]
            world.run(choose.random() * 0.6)
            world.start(name)
        wait_until_changed(world, victim, 40)
        for partition in range(3):
            publish_somewhere(world, queue, partition)
        world.until(lambda: all(world.digests_agree(group) for group in GROUPS))
        client = world.connect(victim)
        for partition in range(3):
            world.run(0.5)
            assert len(read_bodies(client.read(queue, partition=partition))) >= 6


@pytest.mark.parametrize("seed", range(4))
def test_a_new_directory_that_is_lost_too_is_replaced_again(seed):
    choose = random.Random(seed)
    with World(seed=seed + 200) as world:
        queue = begun(world)
        wiped(world, "n3")
        ask(world, "n3")
        world.run(choose.random() * 0.8)
        wiped(world, "n3")
        incarnation = world.nodes["n3"].host.identity.incarnation
        while machine_of(world, "n1").node("n3").incarnation != incarnation:
            ask(world, "n3")
            world.run(0.1)
        wait_until_changed(world, "n3")
        world.kill("n1")
        publish_somewhere(world, queue)


def test_two_nodes_are_replaced_at_once_and_the_slower_one_gets_another_id():
    """Ids ascend within a group: one that comes too late for its own is given the next."""
    names = ("n1", "n2", "n3", "n4", "n5")
    with World(*names, groups=1) as world:
        world.connect("n1").create("q")
        leader = world.leader(0)
        header = encode(CreateGroup(nodes=names))
        propose = world.group(leader, 0).propose
        world.machines[leader].process.call(propose, header, b"", lambda *_: None, reserve=True)
        world.until(lambda: all(2 in node.host.groups for node in world.nodes.values()))
        world.leader(2)
        slow, quick = [name for name in names if name not in {leader, world.leader(2)}][:2]
        for victim in (slow, quick):
            world.kill(victim)
            world.wipe(victim)
        machine = machine_of(world, leader)
        world.start(slow)
        ask(world, slow, through=leader)
        world.kill(slow)
        planned = machine.group(2).replica_on(slow)
        assert planned.state == "pending"
        world.start(quick)
        ask(world, quick, through=leader)
        world.until(lambda: machine.group(2).replica_on(quick).state == "created")
        taken_in = machine.group(2).replica_on(quick).replica
        lead = world.group(world.leader(2), 2)
        world.until(lambda: taken_in in lead.raft.membership.voters)
        world.start(slow)
        world.until(lambda: not machine.group(2).leaving and not machine.group(0).leaving, 30)
        replica = machine.group(2).replica_on(slow)
        assert replica.replica > taken_in > planned.replica
        assert {replica.replica, taken_in} < set(lead.raft.membership.voters)
        assert len(world.group(leader, 0).raft.membership.voters) == 5


def test_what_an_older_copy_of_the_metadata_asks_for_is_not_made(world):
    """A restarted node reads its log again from the beginning, and with it what was true then."""
    begun(world)
    node = world.nodes["n1"]
    old = machine_of(world, "n1").group(1).replica_on("n1").replica
    places = {**world.group("n1", 1).nodes, 77: "n1"}
    newer, older = (ReplicaWork(1, replica, places, joins=True) for replica in (77, old))
    assert node.replicas.make(newer) is None, "first the running one is stopped"
    assert 1 not in node.host.groups
    assert node.replicas.make(newer)
    contents = sorted(node.environment.disk.names("group-1"))
    assert node.replicas.make(older) is None
    assert node.replicas.run(older)
    assert 1 not in node.host.groups, "an empty directory never runs under an id that was another's"
    assert sorted(node.environment.disk.names("group-1")) == contents
    again = Replicas(node)
    assert again.make(older) is None
    assert again.make(newer)


@pytest.mark.parametrize("count", range(1, 14))
def test_a_directory_whose_making_was_cut_never_runs_under_the_old_id(world, count):
    """The process dies at each step of the way from the one replica to the next."""
    begun(world)
    node = world.nodes["n1"]
    disk = node.environment.disk
    old = machine_of(world, "n1").group(1).replica_on("n1").replica
    places = {**world.group("n1", 1).nodes, 77: "n1"}
    newer, older = (ReplicaWork(1, replica, places, joins=True) for replica in (77, old))
    assert node.replicas.make(newer) is None
    steps = iter(range(count))
    cut = disk.cut

    def crash(*step):
        if next(steps, None) is None:
            raise SimulatedCrash
        cut(*step)

    disk.cut = crash
    with contextlib.suppress(SimulatedCrash):
        node.replicas.make(newer)
    disk.cut = cut
    again = Replicas(node)
    if again._made[1].replica == 77:
        assert again.run(older)
        assert 1 not in node.host.groups
    else:
        is_aside = bool(moved_aside(disk))
        assert again.exists(1) != is_aside, "it is whole, here or aside"
    assert again.make(newer)
    assert again.run(newer)
    assert node.host.groups[1].raft.membership == ((), (), (), 0)
    assert node.host.groups[1].raft.last_index == 0
