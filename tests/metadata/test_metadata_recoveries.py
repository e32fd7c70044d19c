"""A group that goes on from one replica: who hosts it now, who is lost, and what is refused."""

import pytest
from metadata_driver import INCARNATIONS, apply, do_node_work, new_machine

from raftq.errors import ClusterMismatch, InvalidArgument
from raftq.metadata import (
    CreateGroup,
    GroupRecovered,
    ReplaceNode,
    ReplicaCreated,
    ReplicaLost,
    ReplicasLeft,
)

CHOSEN = 1_000


@pytest.fixture
def machine():
    """Group 0 with the replicas 1 to 3, groups 1 and 2 with 4 to 9, all of them on n1, n2, n3."""
    machine = new_machine()
    for _ in range(2):
        apply(machine, CreateGroup(nodes=("n1", "n2", "n3")))
    do_node_work(machine)
    return machine


def recover(machine, group=1, *, replica=CHOSEN, former=(4, 5, 6), node="n1", **changes):
    fields = {"incarnation": INCARNATIONS[node], "highest": CHOSEN + 5, **changes}
    command = GroupRecovered(group=group, replica=replica, node=node, former=former, **fields)
    return apply(machine, command)


def states(machine, group):
    known = machine.group(group)
    return {r.replica: (r.node, r.state) for r in known.replicas}


def test_one_replica_hosts_the_group_and_all_others_get_successors(machine):
    recover(machine)
    assert states(machine, 1) == {
        CHOSEN: ("n1", "created"),
        CHOSEN + 6: ("n2", "pending"),
        CHOSEN + 7: ("n3", "pending"),
    }
    assert sorted(r.replica for r in machine.group(1).leaving) == [4, 5, 6]
    # Nobody has to make anything anew where it goes on; the others begin again.
    assert [w.replica for w in machine.work_for_node("n1", INCARNATIONS["n1"]).run] == [CHOSEN, 7]
    assert [w.replica for w in machine.work_for_node("n2", INCARNATIONS["n2"]).create] == [1_006]


def test_it_may_be_said_again(machine):
    recover(machine)
    version = machine.version
    assert recover(machine).group == 1
    assert machine.version == version


def test_ids_of_the_same_decision_are_given_to_nobody_else(machine):
    recover(machine, 0, replica=CHOSEN, former=(1, 2, 3))
    for group, former in ((1, (4, 5, 6)), (2, (7, 8, 9))):
        assert recover(machine, group, replica=CHOSEN + group, former=former).group == group
    replicas = [replica for group in machine.groups() for replica in group.nodes]
    assert len(replicas) == len(set(replicas))


def test_the_lost_nodes_are_replaced_like_any_others(machine):
    recover(machine)
    apply(machine, ReplaceNode(name="n2", incarnation=INCARNATIONS["n2"], successor=77))
    own = machine.group(1).replica_on("n2")
    assert (own.incarnation, own.state) == (77, "pending")
    apply(machine, ReplicaCreated(group=1, replica=own.replica, incarnation=77))
    joining, leaving = machine.work_for_members(1)
    assert {r.replica for r in joining} == {CHOSEN, own.replica}
    gone = tuple(r.replica for r in leaving if r.node != "n3")
    apply(machine, ReplicasLeft(group=1, replicas=gone))
    assert {r.node for r in machine.group(1).leaving} == {"n3"}


def test_a_group_that_has_gone_on_is_not_overruled(machine):
    apply(machine, ReplicaLost(group=1, replica=6, incarnation=INCARNATIONS["n3"]))
    own = machine.group(1).replica_on("n3")
    # The successor alone proves nothing: it may never have been voted in.
    assert machine.gone_on(1, (4, 5, 6)) == ()
    created = ReplicaCreated(group=1, replica=own.replica, incarnation=INCARNATIONS["n3"])
    apply(machine, created)
    version = machine.version
    assert machine.gone_on(1, (4, 5, 6)) == (own.replica,)
    reply = recover(machine)
    assert isinstance(reply, InvalidArgument)
    assert "has gone on" in str(reply)
    assert machine.version == version
    # Whoever knew the newer one may.
    assert recover(machine, former=(4, 5, 6, own.replica)).group == 1


def test_of_two_recoveries_of_one_group_the_first_holds(machine):
    recover(machine, node="n1", replica=CHOSEN)
    reply = recover(machine, node="n2", replica=CHOSEN + 100)
    assert isinstance(reply, InvalidArgument)
    assert states(machine, 1)[CHOSEN] == ("n1", "created")


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"group": 9}, InvalidArgument, "no group 9"),
        ({"incarnation": 5}, ClusterMismatch, "another data directory"),
        ({"replica": 3}, InvalidArgument, "is newer"),
        ({"replica": 9}, InvalidArgument, "of another group"),
    ],
)
def test_what_is_refused_changes_nothing(machine, changes, error, says):
    version = machine.version
    reply = recover(machine, **changes)
    assert isinstance(reply, error)
    assert says in str(reply)
    assert machine.version == version
