"""How a cluster begins, with a crash at every place where one can come."""

from dataclasses import replace

import pytest
from bootstrap_world import World, members_named

from raftq.errors import ProtocolError
from raftq.wire import cbor

NAMES = ("n1", "n2", "n3")


def heal(world):
    """Whoever is down comes back, and everybody is linked who may be."""
    for name, node in world.nodes.items():
        if node.bootstrap is None:
            world.start(name)
    world.link_all()
    world.settle()


def saves_of_a_whole_bootstrap():
    world = World(*NAMES)
    world.start_all()
    world.settle()
    return world.saves


def test_three_nodes_with_one_list_become_one_cluster():
    world = World(*NAMES)
    world.start_all()
    world.settle()
    world.assert_begun()
    assert [node.activations for node in world.nodes.values()] == [1, 1, 1]
    assert world.nodes["n1"].disk.metadata_replicas() == {1: "n1", 2: "n2", 3: "n3"}


def test_a_single_node_is_active_at_once():
    world = World("n1")
    world.start_all()
    world.assert_begun()
    assert world.nodes["n1"].activations == 1


def test_two_of_three_wait_for_the_third():
    world = World(*NAMES)
    world.start("n1")
    world.start("n2")
    world.settle()
    assert world.states() == ["empty"] * 3
    world.start("n3")
    world.settle()
    world.assert_begun()


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("save", range(1, saves_of_a_whole_bootstrap() + 1))
@pytest.mark.parametrize("seed", range(8))
def test_a_crash_around_any_save_is_harmless(side, save, seed):
    world = World(*NAMES, seed=seed)
    world.crash_at = (save, side)
    world.start_all()
    world.settle()
    assert len(world.crashed) == 1
    heal(world)
    world.assert_begun()


@pytest.mark.parametrize("victim", NAMES)
def test_a_crash_after_any_message_is_harmless(victim):
    step = 0
    while True:
        world = World(*NAMES, seed=step)
        world.start_all()
        if not all(world.step() for _ in range(step)):
            break
        world.kill(victim)
        world.settle()
        heal(world)
        world.assert_begun()
        step += 1
    assert step > 10, "a bootstrap takes more messages than that"


@pytest.mark.parametrize("seed", range(60))
def test_many_crashes_and_cut_links_still_end_in_one_cluster(seed):
    world = World(*NAMES, seed=seed)
    world.start_all()
    choose = world.random
    for _ in range(12):
        for _ in range(choose.randrange(4)):
            world.step()
        event = choose.randrange(4)
        one, other = choose.sample(NAMES, 2)
        if event == 0 and world.nodes[one].bootstrap:
            world.kill(one)
        elif event == 1 and world.nodes[one].bootstrap is None:
            world.start(one)
        elif event == 2:
            world.unlink(world.nodes[one], world.nodes[other])
        else:
            world.crash_at = (
                world.saves + 1 + choose.randrange(2),
                choose.choice(["before", "after"]),
            )
    world.crash_at = None
    heal(world)
    world.assert_begun()


@pytest.mark.parametrize("seed", range(20))
def test_a_node_wiped_before_activation_is_prepared_anew(seed):
    world = World(*NAMES, seed=seed)
    world.start_all()
    # Cut at the second save: somebody is prepared, nobody is active.
    while world.saves < 2:
        assert world.step()
    assert "active" not in world.states()
    prepared = next(node for node in world.nodes.values() if node.disk.state == "prepared")
    victim = next(name for name in NAMES if name != prepared.name)
    before = world.nodes[victim].disk.incarnation
    world.wipe(victim)
    heal(world)
    world.assert_begun()
    assert world.nodes[victim].disk.incarnation != before


def test_the_coordinator_that_prepared_only_itself_goes_on_after_a_crash():
    world = World(*NAMES)
    world.crash_at = (1, "after")
    world.start_all()
    world.settle()
    assert world.crashed == ["n1"]
    assert world.states() == ["prepared", "empty", "empty"]
    heal(world)
    world.assert_begun()


def test_a_member_that_died_before_its_prepare_is_waited_for():
    world = World(*NAMES)
    world.start_all()
    while world.saves < 2:
        assert world.step()
    missing = next(name for name, node in world.nodes.items() if node.disk.state == "empty")
    world.kill(missing)
    world.settle()
    assert "active" not in world.states(), "nobody may vote before all are prepared"
    heal(world)
    world.assert_begun()


def test_a_prepared_member_activates_when_any_active_one_says_so():
    world = World(*NAMES)
    world.start_all()
    while world.nodes["n2"].disk.state != "active":
        assert world.step()
        if world.nodes["n3"].bootstrap and world.nodes["n1"].disk.state == "active":
            # n3 misses what the coordinator says, and the coordinator never comes back.
            world.kill("n3")
    world.kill("n1")
    world.start("n3")
    world.settle()
    assert world.nodes["n3"].disk.state == "active"
    world.assert_begun("n2", "n3")


@pytest.mark.parametrize("victim", NAMES)
def test_a_node_wiped_after_activation_never_votes_again(victim):
    world = World(*NAMES)
    world.start_all()
    world.settle()
    cluster = world.nodes[victim].disk.cluster
    world.wipe(victim)
    heal(world)
    assert world.nodes[victim].disk.state == "empty"
    assert world.nodes[victim].activations == 0
    assert any("wiped or replaced" in refusal for refusal in world.refusals)
    assert {n.disk.cluster for n in world.nodes.values() if n.name != victim} == {cluster}


def test_a_wiped_coordinator_cannot_begin_a_second_cluster_with_the_merely_prepared():
    world = World(*NAMES)
    world.start_all()
    # n2 is active, n3 only prepared, when n1 loses its disk.
    while world.nodes["n2"].disk.state != "active":
        if world.nodes["n1"].disk.state == "active" and world.nodes["n3"].bootstrap:
            world.kill("n3")
        assert world.step()
    world.wipe("n1")
    heal(world)
    assert world.nodes["n1"].disk.state == "empty"
    world.assert_begun("n2", "n3")


def test_another_list_of_members_is_named_and_nothing_begins():
    world = World(*NAMES, members={"n3": members_named("n1", "n2", "n3", "n4")})
    world.start_all()
    world.settle()
    assert world.states() == ["empty"] * 3
    problem = world.nodes["n1"].bootstrap.problem
    assert "'n3'" in problem
    assert "another list of members" in problem
    # Started again with the right list, it joins, and the problem is gone.
    world.kill("n3")
    node = world.nodes["n3"]
    node.disk = replace(node.disk, members=members_named(*NAMES))
    heal(world)
    world.assert_begun()
    assert world.nodes["n1"].bootstrap.problem is None


def test_a_node_outside_the_list_is_refused_by_name():
    world = World(
        *NAMES, members={"n1": members_named("n1", "n3"), "n3": members_named("n1", "n3")}
    )
    world.start_all()
    world.settle()
    world.assert_begun("n1", "n3")
    assert world.nodes["n2"].disk.state == "empty"
    assert any("'n2' is not a member" in refusal for refusal in world.refusals)


def test_a_new_directory_beside_an_active_cluster_is_told_why_it_waits():
    """The coordinator's own disk was replaced; an active member is still willing to talk."""
    world = World(*NAMES)
    world.start_all()
    world.settle()
    world.wipe("n1")
    fresh = world.nodes["n1"]
    fresh.start()
    # As if the link had been accepted: what it then hears must not make it begin.
    for name in ("n2", "n3"):
        fresh.bootstrap.message(name, memoryview(world.nodes[name].bootstrap._report()))
    assert fresh.disk.state == "empty"
    assert "another list" in fresh.bootstrap.problem or "already belongs" in fresh.bootstrap.problem


def test_a_failed_save_is_not_reported_as_done():
    """What is not durable must not be told: the coordinator would activate on it."""
    world = World(*NAMES)
    world.start_all()
    node = world.nodes["n2"]
    reports = []

    def broken(identity):
        raise OSError(5, "Input/output error")

    node.bootstrap._save = broken
    node.bootstrap._send = lambda to, body: reports.append(bytes(body))
    with pytest.raises(OSError, match="Input/output error"):
        world.settle()
    node.bootstrap.link_up("n1")
    assert b"prepared" not in reports[-1]


def replaced(world, victim, *, replica=9):
    """The members that are left accept the wiped node's new directory in its place."""
    incarnation = world.nodes[victim].disk.incarnation
    for node in world.nodes.values():
        if node.name != victim and node.bootstrap:
            old = node.disk
            members = tuple(
                replace(m, incarnation=incarnation) if m.name == victim else m for m in old.members
            )
            replicas = tuple({**old.metadata_replicas(), replica: victim}.items())
            node.bootstrap.members_changed(old.with_members(members, replicas))


@pytest.mark.parametrize("victim", NAMES)
def test_a_wiped_node_that_has_a_place_is_adopted(victim):
    world = World(*NAMES)
    world.start_all()
    world.settle()
    founders = world.nodes[victim].disk.first_members()
    world.wipe(victim)
    heal(world)
    assert world.nodes[victim].disk.state == "empty"
    replaced(world, victim)
    heal(world)
    world.assert_begun()
    adopted = world.nodes[victim]
    assert adopted.activations == 1
    assert adopted.bootstrap.problem is None
    assert adopted.disk.metadata_replica() == 9
    assert adopted.disk.first_members() == founders
    assert adopted.disk.metadata_replicas() == {1: "n1", 2: "n2", 3: "n3", 9: victim}


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_crash_while_being_adopted_is_harmless(moment):
    world = World(*NAMES)
    world.start_all()
    world.settle()
    world.wipe("n3")
    heal(world)
    replaced(world, "n3")
    world.crash_at = (world.saves + 1, moment)
    heal(world)
    assert world.crashed == ["n3"]
    heal(world)
    world.assert_begun()


def test_an_adoption_that_is_meant_for_another_directory_is_ignored():
    world = World(*NAMES)
    world.start_all()
    world.settle()
    world.wipe("n3")
    heal(world)
    replaced(world, "n3")
    said = []
    world.nodes["n1"].bootstrap._send = lambda to, body: said.append(bytes(body))
    report = cbor.decode(world.nodes["n3"].bootstrap._report())
    world.nodes["n1"].bootstrap.message("n3", memoryview(cbor.encode(report)))
    world.wipe("n3")
    again = world.nodes["n3"]
    again.start()
    again.bootstrap.message("n1", memoryview(said[-1]))
    assert again.disk.state == "empty"
    # And a founder's directory, which cannot be empty, is never given a place.
    count = len(said)
    world.nodes["n1"].bootstrap.message("n2", memoryview(cbor.encode({**report, "incarnation": 1})))
    assert len(said) == count


def test_an_adoption_without_a_place_is_refused():
    world = World(*NAMES)
    fresh = world.nodes["n3"]
    fresh.start()
    fields = {
        "do": "adopt",
        "cluster": bytes(16),
        "incarnation": fresh.disk.incarnation,
        "replica": 9,
        "members": [],
        "founders": [],
        "replicas": [[9, "n2"]],
    }
    with pytest.raises(ProtocolError):
        fresh.bootstrap.message("n1", memoryview(cbor.encode(fields)))
    assert fresh.disk.state == "empty"
