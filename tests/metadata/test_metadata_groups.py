"""Nodes and groups: who may host what, and the three steps before anybody may vote."""

import pytest
from metadata_driver import (
    FOUNDERS,
    INCARNATIONS,
    all_work,
    apply,
    apply_header,
    create_groups,
    do_node_work,
    new_machine,
)

from raftq.errors import Busy, ClusterMismatch, InvalidArgument
from raftq.limits import MAX_NODES
from raftq.metadata import (
    CreateGroup,
    EnsureGroups,
    RegisterNode,
    ReplicaCreated,
    ReplicaLost,
    encode,
)
from raftq.metadata.commands import MAX_GROUPS


def registration(name="n1", incarnation=101, host="10.0.0.1", port=7401, **labels):
    return RegisterNode(name=name, incarnation=incarnation, host=host, port=port, labels=labels)


def created(group, replica, incarnation):
    return ReplicaCreated(group=group, replica=replica, incarnation=incarnation)


def lost(group, replica, incarnation):
    return ReplicaLost(group=group, replica=replica, incarnation=incarnation)


def report_all(machine, group):
    for replica in machine.group(group).replicas:
        apply(machine, created(group, replica.replica, replica.incarnation))


# --- Nodes ---------------------------------------------------------------------------------------


def test_the_founders_are_known_from_the_start_with_group_0():
    machine = new_machine()
    assert [(node.name, node.incarnation) for node in machine.nodes()] == FOUNDERS
    (group,) = machine.groups()
    assert (group.group, group.state) == (0, "active")
    assert group.nodes == {1: "n1", 2: "n2", 3: "n3"}
    assert group.created == (1, 2, 3)
    assert machine.nodes_of(0) == ("n1", "n2", "n3")


def test_the_order_in_which_founders_are_given_is_no_matter():
    other = type(new_machine())(0x0123456789ABCDEF0123456789ABCDEF, FOUNDERS[::-1])
    assert other.digest() == new_machine().digest()


def test_registering_updates_the_address():
    machine = new_machine()
    assert apply(machine, registration()) == ("n1", 1)
    assert apply(machine, registration()) == ("n1", 1)
    assert apply(machine, registration(port=7402, rack="a")) == ("n1", 2)
    node = machine.node("n1")
    assert (node.host, node.port, node.labels) == ("10.0.0.1", 7402, {"rack": "a"})


def test_another_incarnation_of_a_known_name_is_refused():
    machine = new_machine()
    assert isinstance(apply(machine, registration(incarnation=999)), ClusterMismatch)
    assert machine.node("n1").host == ""


def test_a_new_node_is_known_and_hosts_nothing():
    machine = new_machine()
    apply(machine, registration("n4", 104))
    assert isinstance(apply(machine, registration("n4", 105)), ClusterMismatch)
    create_groups(machine)
    assert [node.name for node in machine.nodes()] == ["n1", "n2", "n3", "n4"]
    assert all("n4" not in machine.nodes_of(group.group) for group in machine.groups())


def test_nodes_are_bounded():
    machine = new_machine()
    for number in range(MAX_NODES - len(FOUNDERS)):
        apply_header(machine, encode(registration(f"m{number}", number + 1)))
    assert isinstance(apply(machine, registration("one-more", 7)), Busy)
    assert len(machine.nodes()) == MAX_NODES


# --- Making groups ---------------------------------------------------------------------------------


def test_a_group_gets_ids_that_were_never_used():
    machine = new_machine()
    assert apply(machine, CreateGroup(nodes=("n2", "n1"))) == (1, "creating", 1)
    assert apply(machine, CreateGroup(nodes=("n1", "n2", "n3"))) == (2, "creating", 2)
    assert machine.group(1).nodes == {4: "n2", 5: "n1"}
    assert machine.group(2).nodes == {6: "n1", 7: "n2", 8: "n3"}


def test_a_numbered_group_may_be_asked_for_twice():
    machine = new_machine()
    command = CreateGroup(group=1, nodes=("n1", "n2"))
    assert apply(machine, command) == apply(machine, command) == (1, "creating", 1)
    assert isinstance(apply(machine, CreateGroup(group=1, nodes=("n1", "n3"))), InvalidArgument)
    report_all(machine, 1)
    assert apply(machine, command).state == "active"


@pytest.mark.parametrize(
    "command",
    [
        CreateGroup(group=7, nodes=("n1",)),
        CreateGroup(nodes=("n1", "n1")),
        CreateGroup(nodes=("n1", "stranger")),
        CreateGroup(group=0, nodes=("n1",)),
    ],
)
def test_a_group_that_cannot_be_is_refused(command):
    machine = new_machine()
    assert isinstance(apply(machine, command), InvalidArgument)
    assert len(machine.groups()) == 1


def test_groups_are_bounded():
    machine = new_machine()
    assert len(apply(machine, EnsureGroups(count=MAX_GROUPS, replicas=1)).groups) == MAX_GROUPS
    assert isinstance(apply(machine, CreateGroup(nodes=("n1",))), Busy)
    hosted = [machine.nodes_of(group.group)[0] for group in machine.groups()[1:]]
    assert max(hosted.count(name) for name, _ in FOUNDERS) <= MAX_GROUPS // 3 + 1


def test_ensuring_groups_is_idempotent_and_grows():
    machine = new_machine()
    assert apply(machine, EnsureGroups(count=2)).groups == (1, 2)
    assert apply(machine, EnsureGroups(count=2)).groups == (1, 2)
    assert apply(machine, EnsureGroups(count=1)).groups == (1, 2)
    assert apply(machine, EnsureGroups(count=3)).groups == (1, 2, 3)
    assert sorted(machine.nodes_of(3)) == ["n1", "n2", "n3"]


def test_default_groups_spread_over_racks():
    machine = new_machine()
    for name, incarnation, rack in (("n1", 101, "a"), ("n2", 2**64 - 1, "a"), ("n3", 103, "b")):
        apply(machine, registration(name, incarnation, rack=rack))
    apply(machine, EnsureGroups(count=5, replicas=2))
    for group in machine.groups()[1:]:
        assert "n3" in group.nodes.values()


# --- The three steps -----------------------------------------------------------------------------


def test_a_group_is_active_when_all_have_reported():
    machine = new_machine()
    apply(machine, CreateGroup(nodes=("n1", "n2", "n3")))
    assert apply(machine, created(1, 4, 101)).state == "creating"
    assert apply(machine, created(1, 6, 103)).state == "creating"
    assert machine.group(1).created == (4, 6)
    assert apply(machine, created(1, 5, 2**64 - 1)).state == "active"
    version = machine.version
    assert apply(machine, created(1, 5, 2**64 - 1)) == (1, "active", version)


def test_one_report_twice_does_not_stand_for_two():
    machine = new_machine()
    apply(machine, CreateGroup(nodes=("n1", "n2")))
    for _ in range(5):
        assert apply(machine, created(1, 4, 101)).state == "creating"


@pytest.mark.parametrize(
    ("report", "error"),
    [
        (created(1, 5, 999), ClusterMismatch),
        (created(1, 5, 101), ClusterMismatch),
        (created(1, 2, 2**64 - 1), InvalidArgument),
        (created(1, 7, 103), InvalidArgument),
        (created(3, 5, 2**64 - 1), InvalidArgument),
        (created(2, 5, 2**64 - 1), InvalidArgument),
    ],
)
def test_a_report_of_another_incarnation_replica_or_group_activates_nothing(report, error):
    """A node wiped after its group was planned is another node: its directory proves nothing."""
    machine = new_machine()
    apply(machine, CreateGroup(nodes=("n1", "n2")))
    apply(machine, CreateGroup(nodes=("n3", "n2")))
    apply(machine, created(1, 4, 101))
    assert isinstance(apply(machine, report), error)
    assert machine.group(1).state == "creating"
    assert apply(machine, created(1, 5, 2**64 - 1)).state == "active"


def test_a_lost_replica_is_recorded_and_cannot_come_back():
    machine = new_machine()
    create_groups(machine, 1)
    replica = machine.group(1).replica_on("n2")
    report = lost(1, replica.replica, replica.incarnation)
    assert isinstance(apply(machine, lost(1, replica.replica, 999)), ClusterMismatch)
    assert apply(machine, report) == apply(machine, report)
    lost_id, new_id = replica.replica, 7
    assert [(each.replica, each.state) for each in machine.group(1).leaving] == [(lost_id, "lost")]
    assert machine.group(1).state == "active"
    again = created(1, replica.replica, replica.incarnation)
    assert isinstance(apply(machine, again), InvalidArgument)
    # It is told to make another one, which joins; the lost one is still routed for.
    work = machine.work_for_node("n2", INCARNATIONS["n2"])
    nodes = machine.group(1).nodes
    assert [nodes[lost_id], nodes[new_id], len(nodes)] == ["n2", "n2", 4]
    assert (work.create, work.keep, work.run) == (((1, new_id, nodes, True),), (), ())
    assert sorted(machine.nodes_of(1)) == ["n1", "n2", "n3"]


def test_a_group_that_lost_most_replicas_before_it_was_active_never_is():
    machine = new_machine()
    apply(machine, CreateGroup(nodes=("n1", "n2")))
    assert isinstance(apply(machine, lost(1, 4, 101)), InvalidArgument)
    apply(machine, created(1, 4, 101))
    apply(machine, lost(1, 4, 101))
    assert apply(machine, created(1, 5, 2**64 - 1)).state == "creating"
    assert machine.group(1).nodes == {4: "n1", 5: "n2"}, "the directories have this list"


def test_a_group_that_lost_the_lesser_part_before_it_was_active_begins_without_it():
    machine = new_machine()
    apply(machine, CreateGroup(nodes=("n1", "n2", "n3")))
    apply(machine, created(1, 4, 101))
    apply(machine, lost(1, 4, 101))
    assert apply(machine, created(1, 5, 2**64 - 1)).state == "creating"
    assert apply(machine, created(1, 6, 103)).state == "active"
    assert machine.group(1).nodes == {7: "n1", 5: "n2", 6: "n3", 4: "n1"}
    (work,) = machine.work_for_node("n1", 101).create
    assert (work.replica, work.joins) == (7, True)


# --- A node's work -------------------------------------------------------------------------------


def test_a_node_is_told_to_make_then_keep_then_run_its_replica():
    machine = new_machine()
    apply(machine, CreateGroup(nodes=("n2", "n1")))
    expected = ((1, 5, {4: "n2", 5: "n1"}, False),)
    assert machine.work_for_node("n1", 101) == (expected, (), ())
    apply(machine, created(1, 5, 101))
    assert machine.work_for_node("n1", 101) == ((), expected, ())
    apply(machine, created(1, 4, 2**64 - 1))
    expected = ((1, 5, {4: "n2", 5: "n1"}, True),)
    assert machine.work_for_node("n1", 101) == ((), (), expected)
    assert machine.work_for_node("n3", 103) == ((), (), ())


def test_a_wiped_node_is_told_nothing():
    machine = new_machine()
    create_groups(machine)
    assert machine.work_for_node("n1", 999) == ((), (), ())
    assert machine.work_for_node("stranger", 101) == ((), (), ())


def test_doing_the_work_leads_to_running_everywhere():
    machine = new_machine()
    apply(machine, EnsureGroups(count=4))
    do_node_work(machine)
    for name, incarnation in FOUNDERS:
        work = machine.work_for_node(name, incarnation)
        assert [item.group for item in work.run] == [1, 2, 3, 4]
        assert work.create == work.keep == ()
    assert all_work(machine) == []
