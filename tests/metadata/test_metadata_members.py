"""Nodes that are replaced, replicas that are lost: who joins, who leaves, and whose id is whose."""

import pytest
from metadata_driver import (
    FOUNDERS,
    INCARNATIONS,
    apply,
    create_queue,
    do_node_work,
    new_machine,
)

from raftq.errors import ClusterMismatch, InvalidArgument
from raftq.metadata import (
    CreateGroup,
    RegisterNode,
    ReplaceNode,
    ReplicaCreated,
    ReplicaLost,
    ReplicasLeft,
)

OLD = INCARNATIONS["n3"]
NEW = 999


def replace(machine, *, incarnation=OLD, successor=NEW, name="n3"):
    command = ReplaceNode(name=name, incarnation=incarnation, successor=successor)
    return apply(machine, command)


@pytest.fixture
def machine():
    """Group 0 with the replicas 1 to 3, group 1 with 4 to 6, all of them on n1, n2, n3."""
    machine = new_machine()
    apply(machine, CreateGroup(nodes=("n1", "n2", "n3")))
    do_node_work(machine)
    return machine


def ids(replicas):
    return [(each.replica, each.node, each.incarnation, each.state) for each in replicas]


def report(machine, replica, incarnation, *, group=1):
    return apply(machine, ReplicaCreated(group=group, replica=replica, incarnation=incarnation))


def leave(machine, *replicas, group=1):
    return apply(machine, ReplicasLeft(group=group, replicas=replicas))


def test_all_replicas_of_a_replaced_node_get_successors(machine):
    assert replace(machine).name == "n3"
    assert machine.node("n3").incarnation == NEW
    assert ids(machine.group(0).leaving) == [(3, "n3", OLD, "lost")]
    assert ids(machine.group(1).leaving) == [(6, "n3", OLD, "lost")]
    assert ids([machine.group(0).replica_on("n3")]) == [(7, "n3", NEW, "created")]
    assert ids([machine.group(1).replica_on("n3")]) == [(8, "n3", NEW, "pending")]
    assert machine.group(1).nodes == {4: "n1", 5: "n2", 8: "n3", 6: "n3"}
    assert machine.nodes_of(1) == ("n1", "n2", "n3")
    assert machine.group(1).state == "active"


def test_the_old_directory_has_no_work_and_no_say_any_more(machine):
    replace(machine)
    assert machine.work_for_node("n3", OLD) == ((), (), ())
    assert isinstance(report(machine, 6, OLD), InvalidArgument)
    assert isinstance(report(machine, 8, OLD), ClusterMismatch)
    back = RegisterNode(name="n3", incarnation=OLD, host="h", port=1)
    assert isinstance(apply(machine, back), ClusterMismatch)
    assert isinstance(replace(machine, incarnation=NEW + 1, successor=OLD), ClusterMismatch)


def test_the_new_directory_makes_its_replicas_as_ones_that_join(machine):
    replace(machine)
    (work,) = machine.work_for_node("n3", NEW).create
    assert (work.group, work.replica, work.joins) == (1, 8, True)
    assert machine.work_for_members(1).joining == (), "nobody joins before it is made"
    assert report(machine, 8, NEW).state == "active"
    assert [each.replica for each in machine.work_for_node("n3", NEW).run] == [8]
    assert apply(machine, RegisterNode(name="n3", incarnation=NEW, host="h", port=1)).name == "n3"


def test_a_groups_members_are_to_be_changed_until_that_is_reported(machine):
    assert machine.work_for_members(1) == ((), ())
    replace(machine)
    report(machine, 8, NEW)
    work = machine.work_for_members(1)
    assert [each.replica for each in work.joining] == [8]
    assert [each.replica for each in work.leaving] == [6]
    leave(machine, 6)
    assert machine.work_for_members(1) == ((), ())
    assert machine.group(1).nodes == {4: "n1", 5: "n2", 8: "n3"}
    version = machine.version
    leave(machine, 6)
    assert machine.version == version


def test_group_0_is_changed_without_a_report(machine):
    """The node cannot read what to make before it has made it."""
    replace(machine)
    work = machine.work_for_members(0)
    assert [each.replica for each in work.joining] == [7]
    assert [each.replica for each in work.leaving] == [3]


def test_who_shall_stay_cannot_leave(machine):
    replace(machine)
    assert isinstance(leave(machine, 6, 4), InvalidArgument)
    assert isinstance(leave(machine, 8), InvalidArgument)
    assert isinstance(leave(machine, 6, group=9), InvalidArgument)
    assert machine.work_for_members(1).leaving


def test_replacing_twice_is_replacing_once(machine):
    first = replace(machine)
    assert replace(machine) == first
    assert len(machine.group(1).leaving) == 1


@pytest.mark.parametrize("name", ["stranger", "n9"])
def test_a_node_that_is_not_known_cannot_be_replaced(machine, name):
    assert isinstance(replace(machine, name=name), InvalidArgument)


def test_of_two_that_want_the_place_the_second_is_refused(machine):
    replace(machine)
    assert isinstance(replace(machine, successor=555), ClusterMismatch)
    assert machine.node("n3").incarnation == NEW


def test_a_new_directory_may_be_lost_in_its_turn(machine):
    replace(machine)
    report(machine, 8, NEW)
    replace(machine, incarnation=NEW, successor=1000)
    work = machine.work_for_members(1)
    assert [each.replica for each in work.leaving] == [6, 8]
    assert ids([machine.group(1).replica_on("n3")]) == [(10, "n3", 1000, "pending")]
    leave(machine, 6, 8)
    assert machine.work_for_members(1) == ((), ())


def test_an_id_that_cannot_join_is_given_up_for_another(machine):
    """The leader says so in the name of the node: a higher id was in the group before."""
    replace(machine)
    report(machine, 8, NEW)
    apply(machine, ReplicaLost(group=1, replica=8, incarnation=NEW))
    assert ids([machine.group(1).replica_on("n3")]) == [(9, "n3", NEW, "pending")]
    assert [each.replica for each in machine.work_for_members(1).leaving] == [6, 8]
    version = machine.version
    apply(machine, ReplicaLost(group=1, replica=8, incarnation=NEW))
    assert machine.version == version, "an old report of a lost one is no news"


def test_a_node_replaced_while_a_group_is_made_is_left_out_at_first():
    """The other nodes have made their directories with the old one in the list of members."""
    machine = new_machine()
    apply(machine, CreateGroup(nodes=("n1", "n2", "n3")))
    report(machine, 4, FOUNDERS[0][1])
    replace(machine)
    assert machine.group(1).nodes == {4: "n1", 5: "n2", 6: "n3"}
    assert machine.work_for_node("n3", NEW).create == ()
    assert report(machine, 5, FOUNDERS[1][1]).state == "active"
    (work,) = machine.work_for_node("n3", NEW).create
    assert work.joins
    assert [each.replica for each in machine.group(1).leaving] == [6]


def test_a_restored_copy_has_the_same_work(machine):
    replace(machine)
    report(machine, 8, NEW)
    restored = new_machine()
    restored.restore(machine.snapshot())
    assert restored.digest() == machine.digest()
    assert restored.work_for_members(1) == machine.work_for_members(1)
    create_queue(machine)
