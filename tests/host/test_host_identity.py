"""Whose a data directory is."""

import contextlib
from dataclasses import replace

import pytest

from raftq.env import Environment
from raftq.errors import ClusterMismatch, Corrupted
from raftq.host import identity as identities
from raftq.host.identity import Member, advanced
from raftq.sim.disk import SimDisk, SimulatedCrash
from raftq.sim.entropy import SimEntropy

MEMBERS = (Member("n2", "host2", 7), Member("n1", "host1", 7))


@pytest.fixture
def disk():
    return SimDisk(lambda delay, call: None, SimEntropy(1, "disk"))


def load(disk, *, name="n1", members=MEMBERS, seed=1):
    entropy = SimEntropy(seed, "process")
    environment = Environment(clock=None, disk=disk, network=None, entropy=entropy, boot=5)
    return identities.load(environment, name=name, members=members)


def test_an_empty_directory_gets_an_incarnation_that_stays(disk):
    first = load(disk)
    assert first.state == "empty"
    assert first.cluster == 0
    assert first.incarnation != 0
    assert [member.name for member in first.members] == ["n1", "n2"]
    disk.power_loss()
    assert load(disk, seed=2) == first


def test_a_wiped_directory_is_another_incarnation(disk):
    first = load(disk)
    disk.lose_file("node")
    assert load(disk, seed=2).incarnation != first.incarnation


def test_the_directory_of_another_node_is_refused_by_name(disk):
    load(disk)
    with pytest.raises(ClusterMismatch, match="belongs to node 'n1', not 'n2'"):
        load(disk, name="n2")


def test_a_directory_that_lost_its_identity_but_holds_groups_is_refused(disk):
    load(disk)
    disk.make_directory("group-3")
    disk.lose_file("node")
    with pytest.raises(ClusterMismatch, match="no identity"):
        load(disk)


def test_until_it_is_prepared_the_list_is_that_of_the_last_start(disk):
    load(disk, members=(Member("n1", "host1", 7),))
    assert len(load(disk).members) == 2


@pytest.mark.parametrize("state", ["prepared", "active"])
def test_afterwards_the_list_on_disk_counts(disk, state):
    first = load(disk)
    identities.save(disk, advanced(first, state=state, cluster=9))
    disk.power_loss()
    again = load(disk, members=(Member("n1", "elsewhere", 1),))
    assert again == advanced(first, state=state, cluster=9)


def test_a_damaged_identity_is_not_replaced_by_a_new_one(disk):
    load(disk)
    disk.flip_bit("node", len(disk.contents("node")) - 1)
    with pytest.raises(Corrupted):
        load(disk)


def test_every_crash_while_saving_leaves_the_old_or_the_new():
    seen = set()
    for cut in range(1, 20):
        disk = SimDisk(lambda delay, call: None, SimEntropy(cut, "disk"))
        begun = load(disk)
        disk.crash_at = disk.operations + cut
        with contextlib.suppress(SimulatedCrash):
            identities.save(disk, advanced(begun, state="prepared", cluster=9))
        disk.power_loss()
        found = load(disk, seed=2)
        assert found.incarnation == begun.incarnation
        seen.add(found.state)
    assert seen == {"empty", "prepared"}


def test_a_node_that_knows_of_a_replacement_knows_it_after_a_restart(disk):
    founded = advanced(load(disk), state="active", cluster=7)
    identities.save(disk, founded)
    assert founded.first_members() == (("n1", 0), ("n2", 0))
    assert founded.metadata_replicas() == {1: "n1", 2: "n2"}
    members = (founded.members[0], replace(founded.members[1], incarnation=99))
    changed = founded.with_members(members, ((1, "n1"), (2, "n2"), (9, "n2")))
    identities.save(disk, changed)
    again = load(disk)
    assert again == changed
    assert again.member("n2").incarnation == 99
    assert again.first_members() == founded.first_members(), "the machine of group 0 begins alike"
    assert again.metadata_replicas() == {1: "n1", 2: "n2", 9: "n2"}
    assert again.metadata_replica() == 1
    # Another one: who the founders were stays known.
    third = again.with_members(members, ((1, "n1"), (9, "n2")))
    assert third.first_members() == founded.first_members()
